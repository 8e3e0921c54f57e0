-- SPDX-License-Identifier: MIT
-- measures: N5
--
-- How long `sbxlua -e ''` takes from start to end, beside `luajit -e ''` (SPEC N5).
--
--   sbxlua bench/startup.lua [--json] [--rounds N] [--iterations N]

local lib = dofile((arg[0]:match("^(.*/)") or "") .. "lib.lua")

local options = lib.options { rounds = 21, iterations = 20 }
local floor = lib.program("spawn_floor")
local luajit = lib.which("luajit")

local function runs(...)
  local words = { ... }
  return function()
    return assert(tonumber(lib.capture(floor, tostring(options.iterations), unpack(words))))
  end
end

local variants = { { name = "sbxlua -e ''", run = runs(lib.build .. "/sbxlua", "-e", "") } }
table.insert(variants, { name = "sbxlua -e 'require \"sbx\"'",
  run = runs(lib.build .. "/sbxlua", "-e", 'require "sbx"') })
if luajit then
  table.insert(variants, { name = "luajit -e ''", run = runs(luajit, "-e", "") })
end

local results = lib.rounds(variants, options.rounds)
local targets = {}
if luajit then
  for _, result in ipairs(results) do
    result.ratio = lib.ratio(result, results[3])
  end
  targets[1] = lib.target("N5", "sbxlua -e '' to luajit -e ''", results[1].ratio, "<=", 3)
end

if options.json then
  lib.print_json { benchmark = "startup", rounds = options.rounds, iterations = options.iterations,
    unit = "microseconds", results = results, targets = targets,
    absent = luajit and {} or { "luajit" } }
  return
end
print(("start to end, microseconds; %d interleaved rounds of %d"):format(options.rounds,
  options.iterations))
local rows = { { "", "median", "min", "max", "to luajit" } }
for _, r in ipairs(results) do
  rows[#rows + 1] = { r.name, ("%.0f"):format(r.median), ("%.0f"):format(r.min),
    ("%.0f"):format(r.max), r.ratio and ("%.3f"):format(r.ratio) or "-" }
end
lib.print_table(rows)
print()
if not luajit then print("luajit: absent") end
for _, target in ipairs(targets) do
  lib.print_target(target)
end
