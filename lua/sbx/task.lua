-- SPDX-License-Identifier: MIT
--
-- Tasks: coroutines that wait in calls which look synchronous (SPEC A1-A4).
--
-- One rule decides how a call waits: in a task, at a point where it may yield, it yields and other
-- tasks go on; anywhere else (a plain script, a luv callback, another library's coroutine, inside
-- string.gsub) it blocks. This is the only module that yields or resumes.
--
-- A waiting task carries one wait record. Whatever ends the wait (the op, a timer, a cancel) wakes
-- that record, and only the first does: a late completion finds another record, or none.
-- Tasks are resumed from the driver's own loop rather than inside a luv callback while sbx.run
-- drives, so that a task may itself pump the loop where it cannot yield.

local errors = require "sbx.errors"
local loop = require "sbx.loop"

local M = {}

---@class sbx.Task
---@field _co thread
---@field _state "ready"|"waiting"|"running"|"done"|"failed"|"cancelled"
---@field _root table the sbx.run it belongs to
---@field _wait table|nil what it waits for
---@field _results table|nil
---@field _error any
---@field _watchers table waits of those who await its end
---@field _cancel_pending boolean
---@field _shields integer
---@field _awaited boolean somebody has taken or will take its failure
local Task = {}
Task.__index = Task
Task.__name = "sbx.Task"

-- Both weak: a task refers to its coroutine, and this Lua has no ephemerons.
local by_coroutine = setmetatable({}, { __mode = "kv" })
local waits_by_op = {}
local waits_count = 0
local ready = {}
local current_task
local driving = 0
local driven_root
local inbox
local kick

local ENDED = { done = true, failed = true, cancelled = true }

-- Roots: the tasks of one sbx.run. Those started outside of any belong to `outside`.

local function new_root()
  return { live = 0, failed = {} }
end

local outside = new_root()

local function report(task)
  local text = tostring(task._error)
  if type(task._error) == "string" then text = debug.traceback(task._co, text) end
  io.stderr:write("sbx: a task failed and nobody awaited it: ", text, "\n")
end

-- Waking and resuming.

local function enqueue(task)
  task._state = "ready"
  ready[#ready + 1] = task
  if driving == 0 then kick() else loop.hasten() end
end

-- Ends a wait; the first caller wins, and is told so.
local function wake(wait)
  local task = wait.task
  if not task or task._wait ~= wait then return false end
  task._wait = nil
  enqueue(task)
  return true
end

local function finish(task, state)
  task._state = state
  local root = task._root
  root.live = root.live - 1
  for _, wait in ipairs(task._watchers) do
    -- One that was cancelled meanwhile, or that only waits for the end, takes no failure.
    if (not wait.wants or wait.wants(task)) and wake(wait) and wait.awaits then
      task._awaited = true
    end
  end
  if state ~= "failed" or task._awaited then return end
  if root == outside then
    report(task)
  else
    root.failed[#root.failed + 1] = task
  end
end

local function pack(...)
  return { n = select("#", ...), ... }
end

local function settle(task, ok, ...)
  if coroutine.status(task._co) ~= "dead" then
    -- A yield that is not ours: the task waits for nobody, so nobody would ever resume it.
    task._error = errors.TaskError("a task yielded outside of an sbx call")
    finish(task, "failed")
  elseif ok then
    task._results = pack(...)
    finish(task, "done")
  else
    task._error = ...
    finish(task, errors.is(task._error, "Cancelled") and "cancelled" or "failed")
  end
end

local function resume(task)
  if ENDED[task._state] then return end
  local before = current_task
  current_task = task
  task._state = "running"
  local args = task._args
  task._args = nil
  local out
  if args then
    out = pack(coroutine.resume(task._co, unpack(args, 1, args.n)))
  else
    out = pack(coroutine.resume(task._co))
  end
  current_task = before
  if task._state == "running" then settle(task, unpack(out, 1, out.n)) end
end

-- Resumes those that are ready now; those they make ready come in the next round, after a look at
-- the loop.
local function run_ready()
  local batch = ready
  ready = {}
  for i = 1, #batch do
    resume(batch[i])
  end
end

-- What a loop callback does after waking tasks: where sbx.run drives, they are resumed there.
local function run_undriven()
  if driving == 0 then run_ready() end
end

local function on_port_ready()
  local port = inbox.port
  local id = port:take()
  while id do
    local wait = waits_by_op[id]
    if wait then
      waits_by_op[id] = nil
      waits_count = waits_count - 1
      if waits_count == 0 then inbox:release() end
      wake(wait)
    end
    id = port:take()
  end
  run_undriven()
end

kick = loop.kick(function()
  if driving == 0 then
    run_ready()
    if #ready > 0 then kick() end
  end
end)

-- Waiting.

---Raises SandboxError in a process that was forked after the library was loaded: engine, loop and
---identity are its parent's.
function M.check_usable()
  if loop.is_usable() then return end
  errors.raise(errors.SandboxError("this process was forked after sbx was loaded, and sbx belongs "
    .. "to its parent: fork before require \"sbx\", or exec after the fork"))
end

-- The running task if it can yield here, else nil.
local function yielding_task()
  local task = by_coroutine[coroutine.running() or false]
  if task and coroutine.isyieldable() then return task end
  return nil
end

local function deliver_cancel(task)
  if task._cancel_pending and task._shields == 0 then
    task._cancel_pending = false
    errors.raise(errors.Cancelled("the task was cancelled"))
  end
end

-- Takes back that a task is ready: it goes on by itself, and must not be resumed as well.
local function unready(task)
  for i = #ready, 1, -1 do
    if ready[i] == task then
      table.remove(ready, i)
      return
    end
  end
end

-- Suspends task until its wait is woken. wait.cancel, if given, hurries the end.
local function suspend(task, wait)
  wait.task = task
  task._wait = wait
  task._state = "waiting"
  if task._cancel_pending and task._shields == 0 then
    task._cancel_pending = false
    wait.cancelled = true
    wait.cancel(wait)
  end
  if task._wait == wait then coroutine.yield() else unready(task) end
  task._state = "running"
  if wait.cancelled then errors.raise(errors.Cancelled("the task was cancelled")) end
end

local function cancel_op(wait)
  wait.op:cancel()
end

---Waits for an op of the engine. In a task that is cancelled the op is cancelled, and Cancelled is
---raised only once it has ended: what it had begun is cleaned up by then (SPEC A3).
---@param op userdata
---@return true|nil ok
---@return string|nil errno name
---@return string|nil text
function M.await(op)
  local task = yielding_task()
  if not task then return op:wait() end
  inbox = inbox or loop.inbox(on_port_ready)
  if not op:notify(inbox.port) then
    local wait = { op = op, cancel = cancel_op }
    waits_by_op[op:id()] = wait
    waits_count = waits_count + 1
    if waits_count == 1 then inbox:hold() end
    suspend(task, wait)
  end
  return op:wait()
end

-- Pumps the loop until done() for a caller that cannot yield.
local function pump(done)
  M.check_usable()
  if loop.in_callback() then
    errors.raise(errors.TaskError("cannot wait for a task inside a loop callback"))
  end
  driving = driving + 1
  local ok, err = pcall(function()
    while not done() do
      run_ready()
      if done() then break end
      local alive = loop.turn(#ready == 0)
      if not alive and #ready == 0 and not done() then
        errors.raise(errors.TaskError("deadlock: every task waits for another"))
      end
    end
  end)
  driving = driving - 1
  if driving == 0 and #ready > 0 then kick() end
  if not ok then error(err, 0) end
end

local function cancel_plain(wait)
  wake(wait)
end

-- Waits until task has ended, without looking at how. awaits: the caller will take its failure.
local function wait_end(task, awaits)
  if ENDED[task._state] then return end
  local me = yielding_task()
  if not me then
    task._awaited = task._awaited or awaits
    pump(function() return ENDED[task._state] end)
    return
  end
  local wait = { cancel = cancel_plain, awaits = awaits }
  table.insert(task._watchers, wait)
  suspend(me, wait)
end

---Waits; other tasks go on. Outside a task the program blocks (SPEC A2).
---@param seconds number >= 0, fractions allowed
---@param background? boolean true: the wait does not keep the loop alive
function M.sleep(seconds, background)
  if type(seconds) ~= "number" or seconds ~= seconds or seconds < 0 or seconds == math.huge then
    error("sbx.sleep: seconds must be a finite number >= 0", 2)
  end
  local task = yielding_task()
  if not task then
    loop.block(seconds)
    return
  end
  local wait = {}
  local stop = loop.after(seconds, function()
    wake(wait)
    run_undriven()
  end, background)
  wait.cancel = function()
    stop()
    wake(wait)
  end
  suspend(task, wait)
end

-- Tasks.

local function new_task(root, fn, ...)
  if type(fn) ~= "function" then error("sbx: a task needs a function", 3) end
  local task = setmetatable({
    _co = coroutine.create(fn),
    _root = root,
    _args = pack(...),
    _watchers = {},
    _cancel_pending = false,
    _shields = 0,
    _awaited = false,
  }, Task)
  by_coroutine[task._co] = task
  root.live = root.live + 1
  enqueue(task)
  return task
end

local function active_root()
  if current_task then return current_task._root end
  return driven_root or outside
end

---Starts a task; it runs from the next turn on (SPEC A2).
---@param fn function
---@param ... any its arguments
---@return sbx.Task
function M.spawn(fn, ...)
  return new_task(active_root(), fn, ...)
end

local function outcome(task)
  task._awaited = true
  if task._state == "done" then return unpack(task._results, 1, task._results.n) end
  error(task._error, 0)
end

---Waits for the task's end. Raises what it failed with, or Cancelled (SPEC A2, A3).
---@return any ... the task's results
function Task:await()
  if self._co == coroutine.running() then
    errors.raise(errors.TaskError("a task cannot await itself"))
  end
  wait_end(self, true)
  return outcome(self)
end

---@return "running"|"done"|"failed"|"cancelled"
function Task:status()
  return ENDED[self._state] and self._state or "running"
end

function Task:__tostring()
  return ("sbx.Task (%s)"):format(self:status())
end

-- Asks for the cancel without waiting for it.
local function request_cancel(task)
  if ENDED[task._state] then return end
  local wait = task._wait
  if task._args then
    task._args = nil
    task._error = errors.Cancelled("the task was cancelled before it began")
    finish(task, "cancelled")
  elseif wait and task._shields == 0 then
    wait.cancelled = true
    wait.cancel(wait)
  else
    task._cancel_pending = true
  end
end

---Cancels the task: where it waits, Cancelled is raised. Returns when the task has ended, its
---clean-up included (SPEC A3). A task that cancels itself raises Cancelled here.
function Task:cancel()
  request_cancel(self)
  if self == current_task then
    deliver_cancel(self)
    return
  end
  wait_end(self)
end

---Runs fn; a cancel of the calling task waits until it has returned.
---@param fn function
---@return any ...
function M.shield(fn, ...)
  local task = by_coroutine[coroutine.running() or false]
  if not task then return fn(...) end
  task._shields = task._shields + 1
  local out = pack(pcall(fn, ...))
  task._shields = task._shields - 1
  if not out[1] then error(out[2], 0) end
  return unpack(out, 2, out.n)
end

-- Background work: functions that run as tasks during every sbx.run without keeping it alive.
local background_work = {}

local function start_background(root, fn)
  local task = new_task(root.background, fn)
  task._awaited = true -- what it has to say, it logs
  root.background_tasks[#root.background_tasks + 1] = task
end

local function end_background(root)
  for _, task in ipairs(root.background_tasks) do
    request_cancel(task)
  end
  pump(function() return root.background.live == 0 end)
end

---Has fn run as a task during every sbx.run from now on, the one under way included. It does not
---keep the run alive and is cancelled at its end (SPEC P8).
---@param fn function waits in calls that are marked as background, and handles its own errors
function M.in_background(fn)
  background_work[#background_work + 1] = fn
  if driven_root then start_background(driven_root, fn) end
end

---Runs fn as the first task until it and every task it left have ended (SPEC A2).
---@param fn function
---@return any ... fn's results; its error is raised again unchanged
function M.run(fn, ...)
  M.check_usable()
  if current_task or driven_root then
    errors.raise(errors.TaskError("sbx.run inside a task or another sbx.run"))
  end
  local root = new_root()
  root.background, root.background_tasks = new_root(), {}
  local main = new_task(root, fn, ...)
  main._awaited = true
  driven_root = root
  for _, work in ipairs(background_work) do
    start_background(root, work)
  end
  local ok, err = pcall(pump, function() return root.live == 0 end)
  local ended, why = pcall(end_background, root)
  driven_root = nil
  if not ok then error(err, 0) end
  if not ended then error(why, 0) end
  local unseen
  for _, task in ipairs(root.failed) do
    if not task._awaited then
      report(task)
      unseen = unseen or task
    end
  end
  if main._state == "done" and unseen then error(unseen._error, 0) end
  return outcome(main)
end

-- For the modules beside this one that wait in ways of their own; not for anyone else.
M.core = {
  ENDED = ENDED,
  Task = Task,
  active_root = active_root,
  cancel_plain = cancel_plain,
  new_task = new_task,
  outcome = outcome,
  pump = pump,
  request_cancel = request_cancel,
  run_undriven = run_undriven,
  suspend = suspend,
  wait_end = wait_end,
  wake = wake,
  yielding_task = yielding_task,
}

return M
