-- SPDX-License-Identifier: MIT
--
-- JSON (RFC 8259) that changes nothing on the way (SPEC A6, T2).
--
-- null is `json.null`. A decoded array carries `json.array_mt`, so an empty one stays an array; an
-- integer beyond 2^53 becomes a `json.big`, which keeps its digits. What has no exact form is
-- refused: text that is not UTF-8, lone surrogates, a name twice in one object, NaN and infinity, a
-- number too large or too small for a double, nesting past a limit. Encoding is deterministic:
-- names sorted.
--
-- Own code because the packaged libraries print at most 14 digits, round large integers in silence
-- and do not tell an empty array from an empty object.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local M = {}

local EXACT = 2 ^ 53
local MAX_DEPTH = 200

M.null = setmetatable({}, {
  __name = "sbx.json.null",
  __tostring = function() return "null" end,
  __tojson = function() return "null" end,
  __newindex = function() error("json.null cannot be changed", 2) end,
})

M.array_mt = { __name = "sbx.json.array" }

---Marks a table as an array, so that it is one in JSON also when it is empty.
---@generic T : table
---@param list T
---@return T list the same table
function M.array(list)
  return setmetatable(list, M.array_mt)
end

local Big = { __name = "sbx.json.big" }
Big.__index = Big
function Big:__tostring() return self.digits end
function Big:__tojson() return self.digits end
function Big.__eq(a, b) return a.digits == b.digits end

---An integer that a double cannot hold, by its digits.
---@param digits string
---@return table
function M.big(digits)
  if type(digits) ~= "string" or not digits:find("^-?[1-9]%d*$") then
    error("json.big: decimal digits are wanted", 2)
  end
  return setmetatable({ digits = digits }, Big)
end

---@param value any
---@return boolean
function M.is_big(value)
  return getmetatable(value) == Big
end

---@param value any
---@return boolean whether it is an array in JSON
function M.is_array(value)
  if type(value) ~= "table" then return false end
  local mt = getmetatable(value)
  return mt == M.array_mt or (mt == nil and next(value) ~= nil and #value > 0)
end

-- Decoding. The state is the text and a position; every function takes and returns positions.

local find, sub, byte, char = string.find, string.sub, string.byte, string.char

local function fail(text, at, what)
  local line = select(2, sub(text, 1, at - 1):gsub("\n", "")) + 1
  error(("JSON, byte %d (line %d): %s"):format(at, line, what), 0)
end

local function utf8_char(code)
  if code < 0x80 then return char(code) end
  if code < 0x800 then return char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  if code < 0x10000 then
    return char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  end
  return char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64,
    0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

-- The position of the first byte that is not part of well-formed UTF-8, or nil.
local function utf8_fault(text)
  local at = find(text, "[\128-\255]")
  while at do
    local a, b, c, d = byte(text, at, at + 3)
    local function tail(x) return x and x >= 0x80 and x <= 0xBF end
    if a >= 0xC2 and a <= 0xDF and tail(b) then
      at = at + 2
    elseif a >= 0xE0 and a <= 0xEF and tail(b) and tail(c)
      and not (a == 0xE0 and b < 0xA0) and not (a == 0xED and b > 0x9F) then
      at = at + 3
    elseif a >= 0xF0 and a <= 0xF4 and tail(b) and tail(c) and tail(d)
      and not (a == 0xF0 and b < 0x90) and not (a == 0xF4 and b > 0x8F) then
      at = at + 4
    else
      return at
    end
    at = find(text, "[\128-\255]", at)
  end
  return nil
end

---@param text string
---@return boolean
function M.is_utf8(text)
  return utf8_fault(text) == nil
end

local ESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r",
  t = "\t" }

local function hex4(text, at)
  local digits = sub(text, at, at + 3)
  if not find(digits, "^%x%x%x%x$") then fail(text, at, "\\u wants four hexadecimal digits") end
  return tonumber(digits, 16)
end

local function unicode_escape(text, at)
  local code = hex4(text, at)
  if code >= 0xDC00 and code <= 0xDFFF then fail(text, at, "a lone surrogate") end
  if code < 0xD800 or code > 0xDBFF then return utf8_char(code), at + 4 end
  if sub(text, at + 4, at + 5) ~= "\\u" then fail(text, at, "a lone surrogate") end
  local low = hex4(text, at + 6)
  if low < 0xDC00 or low > 0xDFFF then fail(text, at, "a lone surrogate") end
  return utf8_char(0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)), at + 10
end

-- at: the position after the opening quote.
local function read_string(text, at)
  local stop = find(text, '["\\%c]', at)
  if stop and byte(text, stop) == 34 then return sub(text, at, stop - 1), stop + 1 end
  local parts, n = {}, 0
  while true do
    stop = find(text, '["\\%c]', at)
    if not stop then fail(text, #text + 1, "the string does not end") end
    n = n + 1
    parts[n] = sub(text, at, stop - 1)
    local what = byte(text, stop)
    if what == 34 then return table.concat(parts), stop + 1 end
    if what == 127 then
      parts[n] = parts[n] .. "\127"
      at = stop + 1
    elseif what ~= 92 then
      fail(text, stop, "a control character in a string")
    else
      local escape = sub(text, stop + 1, stop + 1)
      n = n + 1
      if escape == "u" then
        parts[n], at = unicode_escape(text, stop + 2)
      else
        parts[n] = ESCAPES[escape] or fail(text, stop, "an unknown escape")
        at = stop + 2
      end
    end
  end
end

local function read_number(text, at)
  local _, stop = find(text, "^-?%d+", at)
  if not stop then fail(text, at, "a value is wanted") end
  if find(text, "^-?0%d", at) then fail(text, at, "a number with a leading zero") end
  local _, fraction = find(text, "^%.%d+", stop + 1)
  local _, exponent = find(text, "^[eE][+-]?%d+", (fraction or stop) + 1)
  local last = exponent or fraction or stop
  if find(text, "^[%.%w]", last + 1) then fail(text, at, "a malformed number") end
  local digits = sub(text, at, last)
  local value = tonumber(digits) -- nil for an exponent of more digits than LuaJIT reads
  if fraction or exponent then
    if not value or value == math.huge or value == -math.huge
      or value == 0 and find(digits, "^[-0.]*[1-9]") then
      fail(text, at, "a number out of range")
    end
  elseif (value >= EXACT or value <= -EXACT) and ("%.0f"):format(value) ~= digits
    or value > EXACT or value < -EXACT then
    return M.big(digits), last + 1
  end
  return value, last + 1
end

local read_value

local function skip(text, at)
  local _, stop = find(text, "^[ \t\r\n]*", at)
  return stop + 1
end

local function read_array(text, at, depth)
  local list, n = M.array({}), 0
  at = skip(text, at)
  if byte(text, at) == 93 then return list, at + 1 end
  while true do
    n = n + 1
    list[n], at = read_value(text, at, depth)
    at = skip(text, at)
    local what = byte(text, at)
    if what == 93 then return list, at + 1 end
    if what ~= 44 then fail(text, at, "',' or ']' is wanted") end
    at = skip(text, at + 1)
  end
end

local function read_object(text, at, depth)
  local object = {}
  at = skip(text, at)
  if byte(text, at) == 125 then return object, at + 1 end
  while true do
    if byte(text, at) ~= 34 then fail(text, at, "a name in quotes is wanted") end
    local name, value
    local name_at = at
    name, at = read_string(text, at + 1)
    if object[name] ~= nil then fail(text, name_at, "a name that stands twice in one object") end
    at = skip(text, at)
    if byte(text, at) ~= 58 then fail(text, at, "':' is wanted") end
    value, at = read_value(text, skip(text, at + 1), depth)
    object[name] = value
    at = skip(text, at)
    local what = byte(text, at)
    if what == 125 then return object, at + 1 end
    if what ~= 44 then fail(text, at, "',' or '}' is wanted") end
    at = skip(text, at + 1)
  end
end

local LITERALS = { t = { "true", true }, f = { "false", false }, n = { "null", M.null } }

function read_value(text, at, depth)
  local what = sub(text, at, at)
  if what == '"' then return read_string(text, at + 1) end
  if what == "{" or what == "[" then
    if depth == 0 then fail(text, at, "nested too deep") end
    if what == "{" then return read_object(text, at + 1, depth - 1) end
    return read_array(text, at + 1, depth - 1)
  end
  local literal = LITERALS[what]
  if not literal then return read_number(text, at) end
  local stop = at + #literal[1]
  if sub(text, at, stop - 1) ~= literal[1] or find(text, "^[%w_]", stop) then
    fail(text, at, "an unknown word")
  end
  return literal[2], stop
end

---@param text string
---@param options? { max_bytes: integer?, max_depth: integer? } default: no limit of bytes, 200 deep
---@return any value
---Raises a string that says where and what, for text that is no JSON or passes a limit.
function M.decode(text, options)
  if type(text) ~= "string" then error("json.decode: a string is wanted", 2) end
  local max_bytes = options and options.max_bytes
  if max_bytes and #text > max_bytes then
    error(("JSON: longer than the limit of %d bytes"):format(max_bytes), 0)
  end
  local fault = utf8_fault(text)
  if fault then fail(text, fault, "not UTF-8") end
  local value, at = read_value(text, skip(text, 1), options and options.max_depth or MAX_DEPTH)
  at = skip(text, at)
  if at <= #text then fail(text, at, "something follows the value") end
  return value
end

-- Encoding.

local function encode_number(value)
  if value ~= value or value == math.huge or value == -math.huge then
    error("json.encode: NaN and infinity are no JSON", 0)
  end
  if value % 1 == 0 and value >= -EXACT and value <= EXACT then
    return value == 0 and "0" or ("%.0f"):format(value)
  end
  for digits = 15, 17 do
    local text = ("%." .. digits .. "g"):format(value)
    if tonumber(text) == value then return text end
  end
end

local SHORT = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(c)
  return SHORT[c] or ("\\u%04x"):format(byte(c))
end

local function encode_string(value)
  if utf8_fault(value) then error("json.encode: a string is not UTF-8", 0) end
  return '"' .. value:gsub('[%c"\\]', escape) .. '"'
end

local encode_value

local function encode_array(list, out, depth)
  local n = #list
  local seen = 0
  for key in pairs(list) do
    if type(key) ~= "number" or key % 1 ~= 0 or key < 1 or key > n then
      error("json.encode: an array has a key that is no position, or a hole", 0)
    end
    seen = seen + 1
  end
  if seen ~= n then error("json.encode: an array has a hole", 0) end
  out[#out + 1] = "["
  for i = 1, n do
    if i > 1 then out[#out + 1] = "," end
    encode_value(list[i], out, depth)
  end
  out[#out + 1] = "]"
end

local function encode_object(object, out, depth)
  local names = {}
  for name in pairs(object) do
    if type(name) ~= "string" then
      error("json.encode: an object has a name that is no string", 0)
    end
    names[#names + 1] = name
  end
  table.sort(names)
  out[#out + 1] = "{"
  for i, name in ipairs(names) do
    if i > 1 then out[#out + 1] = "," end
    out[#out + 1] = encode_string(name)
    out[#out + 1] = ":"
    encode_value(object[name], out, depth)
  end
  out[#out + 1] = "}"
end

function encode_value(value, out, depth)
  local kind = type(value)
  local mt = getmetatable(value)
  if kind ~= "string" and type(mt) == "table" and mt.__tojson then
    out[#out + 1] = mt.__tojson(value)
  elseif kind == "table" then
    if depth == 0 then error("json.encode: nested too deep, or in a circle", 0) end
    if M.is_array(value) then
      encode_array(value, out, depth - 1)
    else
      encode_object(value, out, depth - 1)
    end
  elseif kind == "string" then
    out[#out + 1] = encode_string(value)
  elseif kind == "number" then
    out[#out + 1] = encode_number(value)
  elseif kind == "boolean" then
    out[#out + 1] = tostring(value)
  else
    error("json.encode: a " .. kind .. " is no JSON", 0)
  end
end

---A table is an array when it is marked as one or has only positions; `{}` is an object.
---@param value any
---@return string
---Raises a string that says what cannot be encoded.
function M.encode(value)
  local out = {}
  encode_value(value, out, MAX_DEPTH)
  return table.concat(out)
end

return M
