-- SPDX-License-Identifier: MIT
-- measures: N1
--
-- What a one-shot exec of /bin/true costs on provider local, beside a C loop and others (SPEC N1).
--
--   sbxlua bench/exec.lua [--json] [--rounds N] [--iterations N]
--
-- All start /bin/true with an empty stdin, read both outputs to their ends and wait for the exit.

local lib = dofile((arg[0]:match("^(.*/)") or "") .. "lib.lua")
local sbx = require "sbx"
local uv = require "luv"

local options = lib.options { rounds = 11, iterations = 200 }
local count = options.iterations
local session, done = lib.session()
local TRUE = { "/bin/true" }
local LIMIT = { timeout_seconds = 10 }

local function exec_once()
  if session:exec(TRUE, LIMIT).exit_code ~= 0 then error("/bin/true failed", 0) end
end

-- Microseconds of one of the `runs` execs that fn makes.
local function per_exec(runs, fn)
  local start = lib.now()
  fn()
  return (lib.now() - start) * 1e6 / runs
end

local function ours_blocking()
  return per_exec(count, function()
    for _ = 1, count do
      exec_once()
    end
  end)
end

local function ours_in_task()
  return per_exec(count, function()
    sbx.run(function()
      for _ = 1, count do
        exec_once()
      end
    end)
  end)
end

-- Bare luv: on_end is called when the process has exited and both pipes have ended.
local function luv_spawn(on_end)
  local open = 3
  local function close(handle)
    handle:close()
    open = open - 1
    if open == 0 then on_end() end
  end
  local stdout, stderr = uv.new_pipe(false), uv.new_pipe(false)
  local process
  process = assert(uv.spawn("/bin/true", { stdio = { nil, stdout, stderr } }, function()
    close(process)
  end))
  for _, pipe in ipairs { stdout, stderr } do
    pipe:read_start(function(_, data)
      if not data then close(pipe) end
    end)
  end
end

-- total execs by luv, width of them at a time.
local function luv_many(total, width)
  local started, ended = 0, 0
  local function start()
    started = started + 1
    luv_spawn(function()
      ended = ended + 1
      if started < total then start() end
    end)
  end
  for _ = 1, math.min(width, total) do
    start()
  end
  lib.run_until(function() return ended == total end)
end

local function luv_one_by_one()
  return per_exec(count, function() luv_many(count, 1) end)
end

-- total execs by ours: width tasks, gathered.
local function ours_many(total, width)
  sbx.run(function()
    local tasks = {}
    for i = 1, width do
      tasks[i] = sbx.spawn(function()
        for _ = i, total, width do
          exec_once()
        end
      end)
    end
    sbx.gather(tasks)
  end)
end

local function co_process(...)
  local words = { ... }
  words[#words + 1] = tostring(count)
  return function() return assert(tonumber(lib.capture(unpack(words)))) end
end

-- One exec at a time.

local variants = {
  { name = "C loop of posix_spawn", run = co_process(lib.program("spawn_floor")) },
  { name = "sbx, plain script", run = ours_blocking },
  { name = "sbx, in a task", run = ours_in_task },
  { name = "luv spawn", run = luv_one_by_one },
}
local absent = {}
for _, other in ipairs {
  { name = "Python asyncio", program = "python3", file = "spawn_asyncio.py" },
  { name = "Node child_process", program = "node", file = "spawn_node.js" },
} do
  local path = lib.which(other.program)
  if path then
    table.insert(variants,
      { name = other.name, run = co_process(path, lib.here .. "/" .. other.file) })
  else
    absent[#absent + 1] = other.name
  end
end

local results = lib.rounds(variants, options.rounds)
local floor = results[1]
for _, result in ipairs(results) do
  result.ratio = lib.ratio(result, floor)
end

-- Many at a time.

local widths = { 1, 10, 100 }
local many = {}
for _, width in ipairs(widths) do
  table.insert(many, { name = ("sbx, %d at a time"):format(width), run = function()
    return 1e6 / per_exec(count, function() ours_many(count, width) end)
  end })
  table.insert(many, { name = ("luv, %d at a time"):format(width), run = function()
    return 1e6 / per_exec(count, function() luv_many(count, width) end)
  end })
end
local throughput = lib.rounds(many, options.rounds)
done()

local targets = {
  lib.target("N1", "sbx, plain script, to the C loop", results[2].ratio, "<=", 1.15),
  lib.target("N1", "sbx, in a task, to the C loop", results[3].ratio, "<=", 1.15),
}

if options.json then
  lib.print_json { benchmark = "exec", rounds = options.rounds, iterations = count,
    unit = "microseconds", results = results, throughput_unit = "execs per second",
    throughput = throughput, targets = targets, absent = absent }
  return
end

print(("one-shot /bin/true, microseconds each; %d interleaved rounds of %d"):format(options.rounds,
  count))
local rows = { { "", "median", "min", "max", "to C" } }
for _, r in ipairs(results) do
  rows[#rows + 1] = { r.name, ("%.0f"):format(r.median), ("%.0f"):format(r.min),
    ("%.0f"):format(r.max), ("%.3f"):format(r.ratio) }
end
lib.print_table(rows)
for _, name in ipairs(absent) do
  print(name .. ": absent")
end
print()
print("execs per second")
rows = { { "", "median", "min", "max" } }
for _, r in ipairs(throughput) do
  rows[#rows + 1] = { r.name, ("%.0f"):format(r.median), ("%.0f"):format(r.min),
    ("%.0f"):format(r.max) }
end
lib.print_table(rows)
print()
for _, target in ipairs(targets) do
  lib.print_target(target)
end
