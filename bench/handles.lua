-- SPDX-License-Identifier: MIT
-- measures: N3
--
-- What 1,000 interactive handles cost that are open at once in one process (SPEC N3).
--
--   sbxlua bench/handles.lua [--json] [--handles N]
--
-- Each is a `cat` that must answer one line while all the others are open. Resident memory is taken
-- after the first handle has answered, and again when all have. A handle takes four descriptors.

local lib = dofile((arg[0]:match("^(.*/)") or "") .. "lib.lua")
local sbx = require "sbx"

local options = lib.options { handles = 1000 }
local session, done = lib.session()
local handles = {}
local times = {}

local function open(i)
  handles[i] = session:exec_start({ "/bin/cat" }, { timeout_seconds = 300 })
end

local function ask(i)
  local line = ("line %d\n"):format(i)
  handles[i]:write_stdin(line)
  local answer = ""
  for item in handles[i]:output() do
    if item.exit_code then error(("handle %d ended: %d"):format(i, item.exit_code), 0) end
    answer = answer .. item.data
    if #answer >= #line then break end
  end
  if answer ~= line then error(("handle %d answered %q"):format(i, answer), 0) end
end

local function resident()
  collectgarbage()
  collectgarbage()
  return lib.resident_bytes()
end

local function timed(name, fn)
  local start = lib.now()
  fn()
  times[#times + 1] = { name = name, seconds = lib.now() - start }
end

local first, all
sbx.run(function()
  open(1)
  ask(1)
  first = resident()
  timed("open", function()
    for i = 2, options.handles do
      open(i)
    end
  end)
  timed("a line to and from each, all at once", function()
    local tasks = {}
    for i = 1, options.handles do
      tasks[i] = sbx.spawn(ask, i)
    end
    sbx.gather(tasks)
  end)
  all = resident()
  timed("kill", function()
    for i = 1, options.handles do
      handles[i]:kill()
    end
  end)
end)
done()

local each = (all - first) / 1024 / (options.handles - 1)
local target = lib.target("N3", "resident KiB of each handle beyond the first", each, "<=", 32)
if options.json then
  lib.print_json { benchmark = "handles", handles = options.handles, resident_first = first,
    resident_all = all, unit = "KiB each", value = each, times = times, targets = { target } }
  return
end
print(("%d interactive handles at once; resident %.1f MiB with one, %.1f MiB with all"):format(
  options.handles, first / 1024 / 1024, all / 1024 / 1024))
local rows = { { "", "seconds" } }
for _, time in ipairs(times) do
  rows[#rows + 1] = { time.name, ("%.3f"):format(time.seconds) }
end
lib.print_table(rows)
print()
lib.print_target(target)
