-- SPDX-License-Identifier: MIT
-- measures: N2
--
-- The rate at which a command's output can be read through a handle, beside luv and C (SPEC N2).
--
--   sbxlua bench/stream.lua [--json] [--rounds N] [--mib N]
--
-- The command writes in steps of 64 KiB, then of 4 KiB. `luv, pipe` is the fair comparison: a pipe
-- like ours. luv's own stdio is a socket pair, which differs in speed and in kind.

local lib = dofile((arg[0]:match("^(.*/)") or "") .. "lib.lua")
local sbx = require "sbx"
local uv = require "luv"

local options = lib.options { rounds = 7, mib = 1024 }
local BYTES = options.mib * 1024 * 1024
local MB = 1e6
local PRODUCE = lib.program("produce")
local session, done = lib.session()

local function rate(bytes, seconds)
  if bytes ~= BYTES then error(("read %d bytes, not %d"):format(bytes, BYTES), 0) end
  return bytes / MB / seconds
end

local function arguments(step)
  return ("%d"):format(BYTES), ("%d"):format(step)
end

local function c_loop(step)
  local output = lib.capture(lib.program("stream_floor"), PRODUCE, arguments(step))
  local bytes, seconds = output:match("^(%d+) (%S+)")
  return rate(tonumber(bytes), tonumber(seconds))
end

-- pipe is read to its end; out is what the command gets as stdout.
local function luv_read(step, pipe, out, after_start)
  local start = lib.now()
  local bytes, open = 0, 2
  local process
  process = assert(uv.spawn(PRODUCE, { args = { arguments(step) }, stdio = { nil, out } },
    function()
      process:close()
      open = open - 1
    end))
  after_start()
  pipe:read_start(function(_, data)
    if data then
      bytes = bytes + #data
    else
      pipe:close()
      open = open - 1
    end
  end)
  lib.run_until(function() return open == 0 end)
  return rate(bytes, lib.now() - start)
end

local function luv_pipe(step)
  local ends = assert(uv.pipe({ nonblock = true }, { nonblock = false }))
  local pipe = uv.new_pipe(false)
  assert(pipe:open(ends.read))
  return luv_read(step, pipe, ends.write, function() assert(uv.fs_close(ends.write)) end)
end

local function luv_socketpair(step)
  local pipe = uv.new_pipe(false)
  return luv_read(step, pipe, pipe, function() end)
end

local function ours(step)
  local start = lib.now()
  local bytes = 0
  local handle = session:exec_start({ PRODUCE, arguments(step) }, { timeout_seconds = 300 })
  for item in handle:output() do
    if item.data then bytes = bytes + #item.data end
  end
  handle:kill()
  return rate(bytes, lib.now() - start)
end

local function ours_in_task(step)
  return sbx.run(ours, step)
end

local sections, targets = {}, {}
for _, step in ipairs { 64 * 1024, 4 * 1024 } do
  local variants = {}
  for i, variant in ipairs {
    { "C read loop", c_loop }, { "luv, pipe", luv_pipe }, { "luv, socket pair", luv_socketpair },
    { "sbx, in a task", ours_in_task }, { "sbx, plain script", ours },
  } do
    variants[i] = { name = variant[1], run = function() return variant[2](step) end }
  end
  local results = lib.rounds(variants, options.rounds)
  for _, result in ipairs(results) do
    result.ratio = lib.ratio(result, results[2])
  end
  sections[#sections + 1] = { write_bytes = step, results = results }
  for i = 4, 5 do
    table.insert(targets, lib.target("N2", ("%s, writes of %d KiB, to luv's pipe"):format(
      results[i].name, step / 1024), results[i].ratio, ">=", 0.9))
  end
end
done()

if options.json then
  lib.print_json { benchmark = "stream", rounds = options.rounds, bytes = BYTES,
    unit = "megabytes per second", sections = sections, targets = targets }
  return
end

for _, section in ipairs(sections) do
  print(("%d MiB in writes of %d KiB, MB/s; %d interleaved rounds"):format(options.mib,
    section.write_bytes / 1024, options.rounds))
  local rows = { { "", "median", "min", "max", "to luv" } }
  for _, r in ipairs(section.results) do
    rows[#rows + 1] = { r.name, ("%.0f"):format(r.median), ("%.0f"):format(r.min),
      ("%.0f"):format(r.max), ("%.3f"):format(r.ratio) }
  end
  lib.print_table(rows)
  print()
end
for _, target in ipairs(targets) do
  lib.print_target(target)
end
