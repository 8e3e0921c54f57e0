-- SPDX-License-Identifier: MIT
--
-- Runs the conformance suite against the memory provider and all its doubles (SPEC C2). Run as a
-- program, it prints the table; the exit code is not 0 unless every double is caught by exactly
-- its case, every case has a double, and the provider itself passes whole.
--
--   build/release/sbxlua spec/conformance/matrix.lua      from the source tree's root

if ... ~= "spec.conformance.matrix" then package.path = "./?.lua;" .. package.path end

local conformance = require "sbx.conformance"
local doubles = require "spec.support.doubles"
local memory_provider = require "spec.support.memory_provider"
local virtual_time = require "spec.support.virtual_time"

local M = {}

-- One variable of the program that no command may see.
if not os.getenv("LOGNAME") then require("luv").os_setenv("LOGNAME", "conformance") end

---Runs the suite against the memory provider, changed or not.
---@param change? fun(parts: table)
---@return sbx.ConformanceFailure[]
function M.run(change)
  return virtual_time.run(function()
    return conformance.run(memory_provider.new(change), memory_provider.config)
  end)
end

---@return table[] the doubles
function M.doubles()
  return doubles
end

---What is wrong with how a double was caught: nil, or a text.
---@param double { case: string, name: string, change: function }
---@return string|nil
function M.judge(double)
  local others, caught = {}, false
  for _, failure in ipairs(M.run(double.change)) do
    if failure.message:find("stack traceback:", 1, true) then
      others[#others + 1] = "the suite itself fails: " .. failure.message
    end
    if failure.case == double.case then
      caught = true
    else
      others[#others + 1] = failure.case .. " (" .. failure.message .. ")"
    end
  end
  if not caught then table.insert(others, 1, "not caught") end
  return others[1] and table.concat(others, "; ") or nil
end

---@return string[] names of cases without a double
function M.uncovered()
  local covered, missing = {}, {}
  for _, double in ipairs(doubles) do
    covered[double.case] = true
  end
  for _, case in ipairs(conformance.cases()) do
    if not covered[case.name] then missing[#missing + 1] = case.name end
  end
  return missing
end

local function main()
  local started, wrong = os.clock(), 0
  local own = M.run()
  for _, failure in ipairs(own) do
    print(("FAIL  the provider itself: %s: %s"):format(failure.case, failure.message))
  end
  wrong = wrong + #own
  for _, double in ipairs(doubles) do
    local fault = M.judge(double)
    print(("%-5s %-34s %s%s"):format(fault and "FAIL" or "ok", double.case, double.name,
      fault and ": " .. fault or ""))
    if fault then wrong = wrong + 1 end
  end
  for _, name in ipairs(M.uncovered()) do
    print("FAIL  no double breaks " .. name)
    wrong = wrong + 1
  end
  print(("%d cases, %d doubles, %d faults, %.1f s"):format(#conformance.cases(), #doubles, wrong,
    os.clock() - started))
  os.exit(wrong == 0 and 0 or 1, true)
end

if ... == "spec.conformance.matrix" then return M end
main()
