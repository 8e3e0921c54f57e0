-- SPDX-License-Identifier: MIT
--
-- What the benchmarks share: options, interleaved rounds, medians, tables and a session to measure.
--
-- Variants are measured in rounds, A B C ... A B C ..., so that a machine that grows slower or
-- faster meanwhile does so for all of them. A benchmark reports; it never fails for being slow.

local uv = require "luv"

local M = {}

M.build = uv.exepath():match("^(.*)/[^/]*$")
M.here = (arg[0] or ""):match("^(.*)/[^/]*$") or "."

---@param name string a program of bench/*.c
---@return string path
function M.program(name)
  return M.build .. "/bench_" .. name
end

---Reads `--name value` options and `--json` from the command line.
---@param defaults table<string, number> numeric options and their defaults
---@return table options
function M.options(defaults)
  local options = { json = false }
  for name, value in pairs(defaults) do
    options[name] = value
  end
  local i = 1
  while i <= #arg do
    local name = arg[i]:match("^%-%-(%l+)$")
    if name == "json" then
      options.json = true
    elseif name and defaults[name] and tonumber(arg[i + 1]) then
      options[name] = tonumber(arg[i + 1])
      i = i + 1
    else
      local known = {}
      for option in pairs(defaults) do
        known[#known + 1] = "[--" .. option .. " N]"
      end
      table.sort(known)
      io.stderr:write("usage: sbxlua ", arg[0], " [--json] ", table.concat(known, " "), "\n")
      os.exit(2)
    end
    i = i + 1
  end
  return options
end

---@return number seconds, monotonic
function M.now()
  return uv.hrtime() / 1e9
end

---@param name string
---@return string|nil path of the program in PATH
function M.which(name)
  for dir in (os.getenv("PATH") or ""):gmatch("[^:]+") do
    local path = dir .. "/" .. name
    if uv.fs_access(path, "X") and uv.fs_stat(path).type == "file" then return path end
  end
  return nil
end

---Runs a program and returns what it printed; the caller waits for it.
---@param ... string program and arguments
---@return string output
function M.capture(...)
  local words = { ... }
  for i, word in ipairs(words) do
    words[i] = "'" .. word:gsub("'", "'\\''") .. "'"
  end
  local pipe = assert(io.popen(table.concat(words, " ")))
  local output = pipe:read("*a")
  pipe:close()
  if output == "" then error("no output from " .. words[1], 0) end
  return output
end

-- Statistics.

---@param values number[]
---@return number
function M.median(values)
  local sorted = { unpack(values) }
  table.sort(sorted)
  local middle = math.floor(#sorted / 2)
  if #sorted % 2 == 1 then return sorted[middle + 1] end
  return (sorted[middle] + sorted[middle + 1]) / 2
end

---Measures each variant once per round, in turn, after a round that does not count.
---@param variants { name: string, run: fun(): number }[]
---@param rounds integer
---@return table[] results { name, median, min, max, values }, in the variants' order
function M.rounds(variants, rounds)
  local results = {}
  for i, variant in ipairs(variants) do
    variant.run()
    results[i] = { name = variant.name, values = {} }
  end
  for _ = 1, rounds do
    for i, variant in ipairs(variants) do
      collectgarbage()
      table.insert(results[i].values, variant.run())
    end
  end
  for _, result in ipairs(results) do
    result.median = M.median(result.values)
    result.min = math.min(unpack(result.values))
    result.max = math.max(unpack(result.values))
  end
  return results
end

---The median of one variant's ratio to another, taken round by round.
---@param result table
---@param base table
---@return number
function M.ratio(result, base)
  local ratios = {}
  for i, value in ipairs(result.values) do
    ratios[i] = value / base.values[i]
  end
  return M.median(ratios)
end

-- Output.

---Prints rows of text, the first column to the left and the others to the right.
---@param rows string[][] the first is the heading
function M.print_table(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do
      widths[i] = math.max(widths[i] or 0, #cell)
    end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      cells[i] = ("%" .. (i == 1 and "-" or "") .. widths[i] .. "s"):format(cell)
    end
    print((table.concat(cells, "  "):gsub("%s+$", "")))
  end
end

---@param id string requirement
---@param what string
---@param value number
---@param op "<="|">="
---@param limit number
---@return table target { id, what, value, op, limit, met }
function M.target(id, what, value, op, limit)
  local met = value <= limit
  if op == ">=" then met = value >= limit end
  return { id = id, what = what, value = value, op = op, limit = limit, met = met }
end

---@param target table
function M.print_target(target)
  print(("%s  %s: %.3g (target %s %g): %s"):format(target.id, target.what, target.value, target.op,
    target.limit, target.met and "met" or "not met"))
end

local function encode(value)
  if type(value) == "string" then
    return '"' .. value:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
  elseif type(value) ~= "table" then
    return type(value) == "number" and ("%.17g"):format(value) or tostring(value)
  end
  local items = {}
  if #value > 0 or next(value) == nil then
    for i, item in ipairs(value) do
      items[i] = encode(item)
    end
    return "[" .. table.concat(items, ",") .. "]"
  end
  for name, item in pairs(value) do
    items[#items + 1] = encode(name) .. ":" .. encode(item)
  end
  table.sort(items)
  return "{" .. table.concat(items, ",") .. "}"
end

---Prints one line of JSON.
---@param value table
function M.print_json(value)
  print(encode(value))
end

-- What is measured.

---A session of provider local in a directory of its own.
---@return table session
---@return function done removes both
function M.session()
  local sbx = require "sbx"
  local root = assert(uv.fs_mkdtemp((os.getenv("TMPDIR") or "/tmp") .. "/sbx-bench-XXXXXX"))
  sbx.sandboxes.configure {
    sandbox_module = "sbx.providers.local", isolation = "none", provider = { root = root },
  }
  local session = sbx.sandboxes.require_sandbox():create_session {
    image = "none", workspace_key = "bench", durability = "ephemeral", network = "egress",
    ttl_seconds = 3600,
  }
  return session, function()
    session:destroy()
    os.execute("rm -rf '" .. root .. "'")
  end
end

---Runs luv's loop until done() is true.
---@param done fun(): boolean
function M.run_until(done)
  while not done() do
    uv.run("once")
  end
end

---@return integer bytes of this process that are resident
function M.resident_bytes()
  return uv.resident_set_memory()
end

return M
