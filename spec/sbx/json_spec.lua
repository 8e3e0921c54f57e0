-- SPDX-License-Identifier: MIT
-- proves: A5, A6, T2, R2, M3
-- JSON: what is read and written, what is refused, and that nothing changes on the way.

local json = require "sbx.json"
local secret = require "sbx.secret"

local function decodes(text, value)
  local got = json.decode(text)
  assert.same(value, got)
  assert.equal(type(value), type(got))
end

local function refuses(text, word, options)
  local ok, message = pcall(json.decode, text, options)
  assert.is_false(ok, "it was taken: " .. text:sub(1, 60))
  assert.equal("string", type(message))
  assert.matches("^JSON", message)
  if word then assert.is_truthy(message:find(word, 1, true), message) end
  return message
end

local function unencodable(value, word)
  local ok, message = pcall(json.encode, value)
  assert.is_false(ok)
  assert.matches("^json%.encode: ", message)
  assert.is_truthy(message:find(word, 1, true), message)
end

describe("json.decode", function()
  it("reads every kind of value", function()
    decodes("true", true)
    decodes(" \t\r\n false \n", false)
    assert.is_true(rawequal(json.null, json.decode("null")))
    decodes('""', "")
    decodes('"a"', "a")
    decodes("[]", {})
    decodes("{}", {})
    decodes('[1,"a",true,[2],{"b":3}]', { 1, "a", true, { 2 }, { b = 3 } })
    decodes('{"a":{"b":{"c":[]}},"":0}', { a = { b = { c = {} } }, [""] = 0 })
    decodes('[ 1 , 2 ]', { 1, 2 })
    decodes('{ "a" : 1 , "b" : 2 }', { a = 1, b = 2 })
  end)

  it("tells arrays from objects, empty ones too", function()
    assert.is_true(json.is_array(json.decode("[]")))
    assert.is_true(json.is_array(json.decode("[1]")))
    assert.is_false(json.is_array(json.decode("{}")))
    assert.is_false(json.is_array(json.decode('{"1":2}')))
    assert.is_true(rawequal(json.null, json.decode("[null]")[1]))
    assert.equal(2, #json.decode("[null,null]"))
  end)

  it("keeps numbers", function()
    for text, number in pairs {
      ["0"] = 0, ["-0"] = 0, ["1"] = 1, ["-1"] = -1, ["1.5"] = 1.5, ["1e3"] = 1000,
      ["1E+3"] = 1000,
      ["1e-3"] = 0.001, ["0.1"] = 0.1, ["-0.0"] = 0, ["9007199254740992"] = 2 ^ 53,
      ["-9007199254740992"] = -2 ^ 53, ["1.7976931348623157e308"] = 1.7976931348623157e308,
      ["5e-324"] = 5e-324, ["0.30000000000000004"] = 0.1 + 0.2, ["1e22"] = 1e22,
      ["123456789.12345679"] = 123456789.12345679,
    } do
      decodes(text, number)
    end
  end)

  it("keeps the digits of integers that no double holds", function()
    for _, digits in ipairs { "9007199254740993", "-9007199254740993", "18446744073709551616",
      ("9"):rep(400) } do
      local big = json.decode(digits)
      assert.is_true(json.is_big(big))
      assert.equal(digits, tostring(big))
      assert.equal(digits, json.encode(big))
      assert.is_true(big == json.big(digits))
    end
    assert.is_false(json.is_big(json.decode("1")))
    assert.is_false(json.is_big("9007199254740993"))
    for _, digits in ipairs { "", "x", "1.5", "01", "-", "0x1", "1 ", "1e3" } do
      assert.is_false(pcall(json.big, digits))
    end
    assert.is_false(pcall(json.big, 12))
  end)

  it("reads strings, all escapes and any UTF-8", function()
    decodes([["\"\\\/\b\f\n\r\t"]], '"\\/\b\f\n\r\t')
    decodes([["\u0041\u00e9\u20AC\ud83d\ude00\uDBFF\uDFFF"]], "Aé€😀\244\143\191\191")
    decodes([["\u0000"]], "\0")
    decodes([["\ud7ff\ue000"]], "\237\159\191\238\128\128")
    decodes('"é€😀\127"', "é€😀\127")
    decodes('"a\127b\127"', "a\127b\127")
    decodes('{"\\u0061":1}', { a = 1 })
    decodes('"' .. ("x"):rep(1e6) .. '"', ("x"):rep(1e6))
  end)

  it("refuses what is no JSON", function()
    for _, text in ipairs {
      "", " ", "nul", "nulll", "True", "undefined", "NaN", "Infinity", "-Infinity", "'a'", "a",
      "[", "]", "{", "}", "[1", "[1,", "[1,]", "[,1]", "[1,,2]", "[1 2]", "{a:1}", '{"a"}',
      '{"a":}', '{"a":1,}', '{,}', '{"a" 1}', '{"a":1 "b":2}', "{1:2}", "{null:1}", '{"a":1', "[1}",
      '{"a":1]',
      "1 2", "[] []", "{}x", "1,", "//x\n1", "/**/1", "1//", "#1", '"', '"a', '"\\"', '"\\',
      '"\\u',
      '"\\u12"', '"\\u12g4"', '"\\x41"', '"\\a"', "\"\n\"", "\"\t\"", "\"\0\"", "\"\31\"", "\0",
      "1\0",
      "+1", "-", "--1", ".5", "1.", "1.e3", "1e", "1e+", "1e1.5", "01", "-01", "00", "0x10",
      "1_000",
      "1a", "1.5.5", "-a", "- 1", "0123", "1e5x", "\239\187\191{}", "\194\160 1", "\11 1", "\12 1",
      "[\"a\",\n\"b\"", "true false", "tru", "t",
    } do
      refuses(text)
    end
    assert.is_false(pcall(json.decode, nil))
    assert.is_false(pcall(json.decode, 1))
  end)

  it("refuses what has no exact form", function()
    refuses('{"a":1,"b":2,"a":3}', "twice")
    refuses('{"a":null,"\\u0061":null}', "twice")
    refuses([["\ud800"]], "surrogate")
    refuses([["\udc00"]], "surrogate")
    refuses([["\ud800\u0041"]], "surrogate")
    refuses([["\ud800x"]], "surrogate")
    refuses("1e400", "out of range")
    for _, text in ipairs { "-1e400", "1e-400", "-0.1e-400", "1e99999999999", "1e-99999999999",
      "90170365e40906434", "-2884840E43708484", "0.001e-9999999999999999" } do
      refuses(text, "out of range")
    end
    decodes("0e-400", 0)
    decodes("0.0e5", 0)
    for _, bytes in ipairs { "\255", "\128", "\194", "\194A", "\192\128", "\193\191",
      "\224\128\128",
      "\237\160\128", "\240\128\128\128", "\244\144\128\128", "\245\128\128\128", "\226\130",
      "\240\159\152" } do
      refuses('"' .. bytes .. '"', "not UTF-8")
      assert.is_false(json.is_utf8(bytes))
    end
    assert.is_true(json.is_utf8("é€😀\0"))
  end)

  it("says where", function()
    assert.equal("JSON, byte 5 (line 2): a value is wanted", refuses("[1,\n@]"))
    assert.matches("byte 11 %(line 1%): a name that stands twice", refuses('{"a": 1, \t"a": 2}'))
  end)

  it("never shows what stands there", function()
    for _, text in ipairs { '{"token":"canary', '"canary\\x"', "canary", '{"canary":1,"canary":2}',
      '["canary"' } do
      assert.is_nil(refuses(text):find("canary", 1, true))
    end
  end)

  it("keeps to its limits", function()
    local function nested(depth) return ("["):rep(depth) .. ("]"):rep(depth) end
    assert.is_table(json.decode(nested(200)))
    refuses(nested(201), "too deep")
    refuses(("["):rep(1e6), "too deep")
    refuses(('{"a":'):rep(1e5), "too deep")
    assert.is_table(json.decode(nested(3), { max_depth = 3 }))
    refuses(nested(4), "too deep", { max_depth = 3 })
    decodes("1", 1)
    refuses("12345", "longer than the limit of 4 bytes", { max_bytes = 4 })
    assert.equal(1234, json.decode("1234", { max_bytes = 4 }))
  end)
end)

describe("json.encode", function()
  it("writes every kind of value, names sorted", function()
    assert.equal('{"a":[],"b":{},"c":null,"d":[1,"x",true,false,null]}', json.encode {
      d = { 1, "x", true, false, json.null }, c = json.null, b = {}, a = json.array {},
    })
    assert.equal('{"":1,"A":2,"a":3}', json.encode { a = 3, A = 2, [""] = 1 })
  end)

  it("writes numbers with all their digits", function()
    for text, number in pairs {
      ["0"] = -0.0, ["1"] = 1.0, ["-17"] = -17, ["9007199254740992"] = 2 ^ 53, ["0.1"] = 0.1,
      ["0.30000000000000004"] = 0.1 + 0.2, ["1786380000.123456"] = 1786380000.123456,
      ["1e+300"] = 1e300, ["4294967296"] = 2 ^ 32, ["9007199254740994"] = 2 ^ 53 + 2,
    } do
      assert.equal(text, json.encode(number))
    end
  end)

  it("escapes what must be, in any string", function()
    assert.equal([["\"\\\n\r\t\u0000\u0001\u001f\u007f/é😀"]],
      json.encode("\"\\\n\r\t\0\1\31\127/é😀"))
  end)

  it("refuses what is no JSON", function()
    unencodable(0 / 0, "NaN")
    unencodable(1 / 0, "NaN and infinity")
    unencodable(-1 / 0, "infinity")
    unencodable("\255", "UTF-8")
    unencodable({ ["\255"] = 1 }, "UTF-8")
    unencodable({ [1.5] = 1 }, "no string")
    unencodable({ [true] = 1 }, "no string")
    unencodable({ 1, 2, a = 3 }, "no position")
    unencodable({ 1, nil, nil, 4 }, "hole")
    unencodable(json.array { 1, [3] = 3 }, "hole")
    unencodable(print, "function")
    unencodable({ a = coroutine.create(print) }, "thread")
    unencodable(nil, "nil")
    local circle = {}
    circle.a = circle
    unencodable(circle, "circle")
    local deep = {}
    for _ = 1, 250 do deep = { deep } end
    unencodable(deep, "too deep")
  end)

  it("shows no secret", function()
    local text = json.encode { token = secret.new("canary"), list = { secret.new("canary") } }
    assert.equal('{"list":["**********"],"token":"**********"}', text)
  end)

  it("leaves null as it is", function()
    assert.equal("null", tostring(json.null))
    assert.is_false(pcall(function() json.null.x = 1 end))
  end)
end)

describe("JSON there and back", function()
  -- Deep comparison that knows arrays, null, big numbers and every bit of a number.
  local function same(a, b)
    if type(a) == "number" and json.is_big(b) then return ("%.0f"):format(a) == b.digits end
    if type(a) ~= type(b) then return false end
    if type(a) ~= "table" then return a == b end
    if json.is_big(a) or a == json.null then return a == b end
    if json.is_array(a) ~= json.is_array(b) then return false end
    for key, value in pairs(a) do
      if not same(value, b[key]) then return false end
    end
    for key in pairs(b) do
      if a[key] == nil then return false end
    end
    return true
  end

  local POINTS = { 0, 1, 9, 10, 31, 32, 34, 47, 92, 126, 127 }
  local WIDE = { "é", "€", "😀", "\194\128", "\239\191\191", "\244\143\191\191" }

  local function random_string()
    local parts = {}
    for i = 1, math.random(0, 12) do
      local pick = math.random(3)
      parts[i] = pick == 1 and string.char(POINTS[math.random(#POINTS)])
        or pick == 2 and WIDE[math.random(#WIDE)] or string.char(math.random(32, 126))
    end
    return table.concat(parts)
  end

  local function random_number()
    local pick = math.random(5)
    if pick == 1 then return math.random(-1000, 1000) end
    if pick == 2 then return math.floor((math.random() - 0.5) * 2 ^ 54) end
    if pick == 3 then return (math.random() - 0.5) * 10 ^ math.random(-300, 290) end
    if pick == 4 then return math.random(-9999, 9999) / 10 ^ math.random(0, 6) end
    return json.big((math.random(2) == 1 and "-" or "") .. "9" .. ("%016d"):format(
      math.random(0, 1e15)))
  end

  local function random_value(depth)
    local pick = math.random(depth > 0 and 7 or 4)
    if pick == 1 then return random_number() end
    if pick == 2 then return random_string() end
    if pick == 3 then return math.random(2) == 1 end
    if pick == 4 then return json.null end
    local value = pick == 5 and json.array {} or {}
    for i = 1, math.random(0, 5) do
      value[pick == 5 and i or random_string()] = random_value(depth - 1)
    end
    return value
  end

  it("changes no value", function()
    local seed = tonumber(os.getenv("SBX_SEED")) or os.time()
    math.randomseed(seed)
    for round = 1, 3000 do
      local value = random_value(4)
      -- Integers beyond 2^53 that a double does hold come back by their digits.
      local text = json.encode(value)
      local back = json.decode(text)
      assert.is_true(same(value, back), ("seed %d, round %d: %s"):format(seed, round, text))
      assert.equal(text, json.encode(back))
    end
  end)

  it("never crashes on what is cut or garbled", function()
    local seed = tonumber(os.getenv("SBX_SEED")) or os.time()
    math.randomseed(seed)
    for round = 1, 3000 do
      local text = json.encode(random_value(3))
      local at = math.random(0, #text)
      local garbled = math.random(2) == 1 and text:sub(1, at)
        or text:sub(1, at) .. string.char(math.random(0, 255)) .. text:sub(at + 2)
      local ok, result = pcall(json.decode, garbled)
      if not ok then
        assert.matches("^JSON, byte %d+ %(line %d+%): ", result,
          ("seed %d, round %d"):format(seed, round))
      else
        assert.is_not_nil(result, ("seed %d, round %d: %q"):format(seed, round, garbled))
        json.encode(result)
      end
    end
  end)
end)
