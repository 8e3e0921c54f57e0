-- SPDX-License-Identifier: MIT
--
-- The conformance suite: the one executable definition of what a provider owes its callers
-- (SPEC C1-C3).
--
-- `run(sandbox, config)` drives a live provider through every promise of the contract; an empty
-- list certifies it. A case is a table { name, ids, promise, run(t), needs(config)? }: it knows no
-- provider and no test framework. Cases run one after the other, each with its own sessions, under
-- a generous limit; what a case leaves is destroyed before the next one begins, so that one fault
-- is one failure. The sandbox should have no other user meanwhile: the suite reaps, and for a
-- moment binds stricter policies.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local checked_config = require "sbx.conformance.config"
local context = require "sbx.conformance.context"
local errors = require "sbx.errors"
local task = require "sbx.task"
local waits = require "sbx.waits"

local M = {}

local CASE_LIMIT_SECONDS = 120

local GROUPS = { "lifecycle", "policy", "exec", "handle", "stops", "files" }

---@class sbx.ConformanceCase
---@field name string
---@field ids string IDs of the specification, as `X4, X9`
---@field promise string the sentence that it proves
---@field run fun(t: sbx.ConformanceContext)
---@field needs (fun(config: table): string|nil)|nil why it does not apply, nil when it does
---@field last boolean|nil it looks back on all the others

---@class sbx.ConformanceFailure
---@field case string
---@field promise string with its IDs
---@field message string

local function all_cases()
  local cases, last = {}, {}
  for _, group in ipairs(GROUPS) do
    for _, case in ipairs(require("sbx.conformance.cases." .. group)) do
      table.insert(case.last and last or cases, case)
    end
  end
  for _, case in ipairs(last) do
    cases[#cases + 1] = case
  end
  return cases
end

local function by_name()
  local known = {}
  for _, case in ipairs(all_cases()) do
    assert(not known[case.name], case.name)
    known[case.name] = true
  end
  return known
end

local function promise_of(case)
  return ("%s (%s)"):format(case.promise, case.ids)
end

-- The cases that a checked config asks for, each with why it is left out, if it is.
local function selected(config)
  local wanted
  if config.only then
    wanted = {}
    for _, name in ipairs(config.only) do
      wanted[name] = true
    end
  end
  local list = {}
  for _, case in ipairs(all_cases()) do
    if not wanted or wanted[case.name] then
      list[#list + 1] = { case = case, skip = case.needs and case.needs(config) }
    end
  end
  return list
end

-- nil, or what went wrong. The case runs in a task of its own; a cancel of ours goes through it.
local function verdict(case, t, limit)
  local done, ok, err
  local in_time, why = pcall(waits.timeout, limit, function()
    ok, err = xpcall(case.run, function(raised)
      if type(raised) == "string" then return debug.traceback(raised, 2) end
      return raised
    end, t)
    done = true
  end)
  if not in_time then
    if not errors.is(why, "TimeoutError") then error(why, 0) end
    return ("it did not end within %g s"):format(limit)
  end
  if done and ok then return nil end
  return context.is_fault(err) and err.message or "it raised " .. tostring(err)
end

local function run_case(case, sandbox, config, ledger)
  local t = context.new(sandbox, config, ledger)
  local ok, result = pcall(verdict, case, t, CASE_LIMIT_SECONDS * config.timing_scale)
  task.shield(t.clean_up, t)
  if not ok then error(result, 0) end
  return result
end

local function drive(sandbox, config, on_result)
  local failures = {}
  local ledger = { sessions = {} }
  for _, entry in ipairs(selected(config)) do
    local case, failure = entry.case, nil
    if not entry.skip then
      local message = run_case(case, sandbox, config, ledger)
      if message then
        failure = { case = case.name, promise = promise_of(case), message = message }
        failures[#failures + 1] = failure
      end
    end
    if on_result then on_result(case, failure, entry.skip) end
  end
  return failures
end

-- In a task as it is, outside of one in an sbx.run of its own.
local function in_task(fn)
  local begun = false
  local out = { pcall(task.run, function()
    begun = true
    return fn()
  end) }
  if not out[1] and not begun and errors.is(out[2], "TaskError") then return fn() end
  if not out[1] then error(out[2], 0) end
  return out[2]
end

---All cases, in the order they run.
---@return { name: string, ids: string, promise: string }[]
function M.cases()
  local list = {}
  for i, case in ipairs(all_cases()) do
    list[i] = { name = case.name, ids = case.ids, promise = case.promise }
  end
  return list
end

---Drives a live provider through the suite (SPEC C1). Works in a task and outside of one.
---@param sandbox sbx.ManagedSandbox with its policy bound
---@param config sbx.ConformanceConfig|nil
---@return sbx.ConformanceFailure[] empty: certified
---Raises SandboxValidationError for a bad config.
function M.run(sandbox, config)
  local checked = checked_config.check(config, by_name())
  return in_task(function() return drive(sandbox, checked) end)
end

---Registers the cases in busted, one test each (SPEC C1).
---@param describe function busted's
---@param it function busted's
---@param make_sandbox fun(): sbx.ManagedSandbox called in each test
---@param config sbx.ConformanceConfig|nil
---Raises SandboxValidationError for a bad config.
function M.busted(describe, it, make_sandbox, config)
  local checked = checked_config.check(config, by_name())
  local one = {}
  for key, value in pairs(config or {}) do
    one[key] = value
  end
  describe("conformance", function()
    for _, entry in ipairs(selected(checked)) do
      if not entry.skip then
        it(("%s (%s)"):format(entry.case.name, entry.case.ids), function()
          one.only = { entry.case.name }
          local failure = M.run(make_sandbox(), one)[1]
          if failure then error(failure.message .. "\nThe promise: " .. failure.promise, 0) end
        end)
      end
    end
  end)
end

-- A YAML string in double quotes.
local function yaml(text)
  return '"' .. text:gsub('[%z\1-\31"\\\127]', function(byte)
    if byte == "\n" then return "\\n" end
    if byte == '"' or byte == "\\" then return "\\" .. byte end
    return ("\\x%02x"):format(byte:byte())
  end) .. '"'
end

---Runs the suite and prints TAP 13 as it goes (SPEC C1).
---@param sandbox sbx.ManagedSandbox
---@param config sbx.ConformanceConfig|nil
---@param write (fun(text: string))|nil default: the standard output
---@return integer failures
---Raises SandboxValidationError for a bad config.
function M.tap(sandbox, config, write)
  write = write or function(text) io.stdout:write(text) end
  local checked = checked_config.check(config, by_name())
  local number = 0
  write(("TAP version 13\n1..%d\n"):format(#selected(checked)))
  local failures = in_task(function()
    return drive(sandbox, checked, function(case, failure, skip)
      number = number + 1
      write(("%s %d - %s%s\n"):format(failure and "not ok" or "ok", number, case.name,
        skip and " # SKIP " .. skip or ""))
      if failure then
        write(("  ---\n  message: %s\n  promise: %s\n  ...\n"):format(yaml(failure.message),
          yaml(failure.promise)))
      end
    end)
  end)
  return #failures
end

return M
