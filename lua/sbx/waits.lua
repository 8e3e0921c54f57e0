-- SPDX-License-Identifier: MIT
--
-- Waiting for several tasks at once, or for one with a limit: gather, timeout, and the latch that
-- the kit waits on (SPEC A2).
--
-- Whoever waits here owns what he waits for: when he is cancelled, so are the tasks, and he goes on
-- only when they have ended.

local errors = require "sbx.errors"
local loop = require "sbx.loop"
local task = require "sbx.task"

local core = task.core
local ENDED = core.ENDED

local M = {}

-- Waits for the end of every task; if the caller is cancelled meanwhile, cancels them, waits for
-- their end, and passes the cancel on.
local function wait_all(tasks)
  local ok, err = pcall(function()
    for _, each in ipairs(tasks) do
      each._awaited = true
    end
    for _, each in ipairs(tasks) do
      core.wait_end(each)
    end
  end)
  if ok then return end
  for _, each in ipairs(tasks) do
    core.request_cancel(each)
  end
  task.shield(function()
    for _, each in ipairs(tasks) do
      core.wait_end(each)
    end
  end)
  error(err, 0)
end

local function first_failure(tasks)
  for _, each in ipairs(tasks) do
    if each._state == "failed" or each._state == "cancelled" then return each end
  end
  return nil
end

-- Waits until all have ended or one has failed, whichever it is.
local function wait_until_failure(tasks)
  local me = core.yielding_task()
  if not me then
    core.pump(function()
      if first_failure(tasks) then return true end
      for _, each in ipairs(tasks) do
        if not ENDED[each._state] then return false end
      end
      return true
    end)
    return
  end
  if first_failure(tasks) then return end
  local open = 0
  local wait = { cancel = core.cancel_plain }
  function wait.wants(ended)
    open = open - 1
    return open == 0 or ended._state ~= "done"
  end
  for _, each in ipairs(tasks) do
    if not ENDED[each._state] then
      open = open + 1
      table.insert(each._watchers, wait)
    end
  end
  if open > 0 then core.suspend(me, wait) end
end

---Waits for all tasks. The first failure cancels the rest, waits for them and is raised; so does a
---cancel of the caller (SPEC A2).
---@param tasks sbx.Task[]
---@return any[] results the first result of each task, in order; `n` is their number
function M.gather(tasks)
  for i, each in ipairs(tasks) do
    if getmetatable(each) ~= core.Task then
      error(("sbx.gather: item %d is not a task"):format(i), 2)
    end
    each._awaited = true
  end
  local ok, err = pcall(wait_until_failure, tasks)
  local failed = first_failure(tasks)
  if not ok or failed then
    for _, each in ipairs(tasks) do
      core.request_cancel(each)
    end
    task.shield(wait_all, tasks)
    error(not ok and err or failed._error, 0)
  end
  local results = { n = #tasks }
  for i, each in ipairs(tasks) do
    results[i] = each._results[1]
  end
  return results
end

---Runs fn as a task of its own and gives it seconds; then it is cancelled, and once it has ended
---`sbx.errors.TimeoutError` is raised (SPEC A2).
---@param seconds number > 0
---@param fn function
---@return any ... fn's results
function M.timeout(seconds, fn, ...)
  if type(seconds) ~= "number" or seconds ~= seconds or seconds <= 0 then
    error("sbx.timeout: seconds must be a number > 0", 2)
  end
  local child = core.new_task(core.active_root(), fn, ...)
  local expired = false
  local stop = loop.after(math.min(seconds, 4e9), function()
    if ENDED[child._state] then return end
    expired = true
    core.request_cancel(child)
    core.run_undriven()
  end)
  local ok, err = pcall(wait_all, { child })
  stop()
  if not ok then error(err, 0) end
  if expired and child._state ~= "failed" then
    errors.raise(errors.TimeoutError(("timed out after %g s"):format(seconds)))
  end
  return core.outcome(child)
end

---A condition that opens once; waiting for it before or after that is the same.
---@class sbx.Latch
local Latch = {}
Latch.__index = Latch

---@return sbx.Latch
function M.latch()
  return setmetatable({ _open = false, _waits = {} }, Latch)
end

function Latch:open()
  self._open = true
  for _, wait in ipairs(self._waits) do
    core.wake(wait)
  end
  self._waits = {}
end

function Latch:wait()
  if self._open then return end
  local me = core.yielding_task()
  if not me then
    core.pump(function() return self._open end)
    return
  end
  local wait = { cancel = core.cancel_plain }
  table.insert(self._waits, wait)
  core.suspend(me, wait)
end

return M
