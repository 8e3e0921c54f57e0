-- SPDX-License-Identifier: MIT
--
-- What a conformance case works with: sessions, time and checks here, commands and looks in
-- sbx.conformance.commands.
--
-- One context lives for one case. Whatever the case begins is noted here, so that the runner can
-- end it whatever became of the case. Every duration goes through `seconds`, so a slow machine or
-- a slow engine takes one setting (config.timing_scale). Checks that time something compare with a
-- generous bound; only "has stopped" and "goes on" are told from a file that grows.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local commands = require "sbx.conformance.commands"
local errors = require "sbx.errors"
local loop = require "sbx.loop"
local task = require "sbx.task"
local waits = require "sbx.waits"

local show = commands.show

local BEAT_SECONDS = 0.1
local CALL_SECONDS = 30

---@class sbx.ConformanceContext
---@field sandbox sbx.ManagedSandbox
---@field config table
local Context = {}
Context.__index = Context

---@class sbx.ConformanceFault what a check raises
local Fault = {}
Fault.__index = Fault
Fault.__tostring = function(self) return self.message end

local M = {}

---@param sandbox sbx.ManagedSandbox
---@param config table a checked config
---@param ledger table of the run: `sessions`, the ids of all that were ever created
---@return sbx.ConformanceContext
function M.new(sandbox, config, ledger)
  return setmetatable({
    sandbox = sandbox,
    config = config,
    ledger = ledger,
    beat_interval = ("%.3f"):format(BEAT_SECONDS * config.timing_scale),
    _sessions = {},
    _keys = {},
    _tasks = {},
    _handles = {},
    _readers = {},
    _undo = {},
  }, Context)
end

---@param err any
---@return boolean
function M.is_fault(err)
  return getmetatable(err) == Fault
end

-- Checks.

commands.add(Context)

---Fails the case.
---@param format string
---@param ... any its arguments; none: the format is the text
function Context.fail(_, format, ...)
  local message = select("#", ...) > 0 and format:format(...) or format
  error(setmetatable({ message = message }, Fault), 0)
end

---Fails the case unless the condition holds.
---@param condition any
---@param format string
---@param ... any
---@return any condition
function Context:check(condition, format, ...)
  if not condition then self:fail(format, ...) end
  return condition
end

local function first_difference(a, b)
  local low, high = 0, math.min(#a, #b) -- a and b agree up to `low`
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if a:sub(low + 1, middle) == b:sub(low + 1, middle) then low = middle else high = middle - 1 end
  end
  return low
end

---Fails the case unless two values are equal.
---@param expected any
---@param actual any
---@param what string what the value is
function Context:equal(expected, actual, what)
  if expected == actual then return end
  local where = ""
  if type(expected) == "string" and type(actual) == "string" and #expected > 64 then
    where = (", first difference after %d bytes"):format(first_difference(expected, actual))
  end
  self:fail("%s: %s is promised, got %s%s", what, show(expected), show(actual), where)
end

---Checks that fn(...) raises an error of the class.
---@param class string
---@param what string what was called
---@param fn function
---@param ... any
---@return sbx.Error err
function Context:raises(class, what, fn, ...)
  local ok, err = pcall(fn, ...)
  if ok then self:fail("%s raised nothing, %s is promised", what, class) end
  -- Our own faults, and the cancel of a call that hung, are not the provider's answer.
  if M.is_fault(err) or errors.is(err, "Cancelled") and class ~= "Cancelled" then error(err, 0) end
  if not errors.is(err, class) then
    self:fail("%s raised %s, %s is promised", what, show(tostring(err)), class)
  end
  return err
end

local SPECIAL = {
  "SandboxFileNotFoundError", "SandboxExecTimeoutError", "SandboxSessionNotFoundError",
  "SandboxUnavailableError", "SandboxSpecRejectedError",
}

---Checks that fn(...) raises a SandboxError that is none of the special ones.
---@param what string what was called
---@param fn function
---@param ... any
---@return sbx.Error err
function Context:raises_plain(what, fn, ...)
  local err = self:raises("SandboxError", what, fn, ...)
  for _, class in ipairs(SPECIAL) do
    if errors.is(err, class) then
      self:fail("%s raised %s, a plain SandboxError is promised", what, show(tostring(err)))
    end
  end
  return err
end

-- Time.

---@param seconds number
---@return number scaled
function Context:seconds(seconds)
  return seconds * self.config.timing_scale
end

---@param seconds number
---@return string scaled, as an argument of `sleep`
function Context:text_seconds(seconds)
  return ("%.3f"):format(self:seconds(seconds))
end

---@param seconds number before scaling
function Context:sleep(seconds)
  task.sleep(self:seconds(seconds))
end

---@return number monotonic time in seconds
function Context.now()
  return loop.monotonic()
end

---Runs fn and fails when it has not returned in time.
---@param seconds number before scaling
---@param what string what fn does
---@param fn function
---@param ... any
---@return any ... fn's results
function Context:within(seconds, what, fn, ...)
  local out = { pcall(waits.timeout, self:seconds(seconds), fn, ...) }
  if out[1] then return unpack(out, 2, table.maxn(out)) end
  if errors.is(out[2], "TimeoutError") then
    self:fail("%s did not end within %g s", what, self:seconds(seconds))
  end
  error(out[2], 0)
end

---Starts a task that the runner ends, whatever becomes of it. Its failure is seen by await only.
---@param fn function
---@param ... any
---@return sbx.Task
function Context:spawn(fn, ...)
  local arguments = { n = select("#", ...), ... }
  local started = task.spawn(function()
    return pcall(fn, unpack(arguments, 1, arguments.n))
  end)
  table.insert(self._tasks, started)
  return started
end

---The result of a spawned task, or its error raised.
---@param started sbx.Task
---@param what string what it does
---@param seconds number|nil before scaling
---@return any
function Context:await(started, what, seconds)
  local ok, value = self:within(seconds or CALL_SECONDS, what, started.await, started)
  if not ok then error(value, 0) end
  return value
end

-- Sessions.

local function new_key()
  return "conformance-" .. loop.random(8):gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end)
end

---A workspace key that nobody else has; the runner removes what is kept under it.
---@return string
function Context:key()
  local key = new_key()
  table.insert(self._keys, key)
  return key
end

---@param changes? table fields that outweigh the config's
---@return table fields of a spec
function Context:spec(changes)
  local config = self.config
  local spec = {
    image = config.image,
    durability = config.durabilities[1],
    network = config.network,
    isolation = config.isolation,
    ttl_seconds = math.ceil(self:seconds(600)),
  }
  for name, value in pairs(changes or {}) do
    spec[name] = value
  end
  spec.workspace_key = spec.workspace_key or self:key()
  return spec
end

---Notes a session, so that the runner destroys it.
---@param session sbx.ManagedSandboxSession
---@return sbx.ManagedSandboxSession session
function Context:note(session)
  table.insert(self._sessions, session)
  table.insert(self.ledger.sessions, session.id)
  return session
end

---Creates a session.
---@param changes? table fields that outweigh the config's
---@return sbx.ManagedSandboxSession
function Context:session(changes)
  return self:note(self.sandbox:create_session(self:spec(changes)))
end

---Whether the provider lists a live session of that id.
---@param id string
---@return boolean
---@return sbx.SandboxSessionInfo|nil
function Context:is_listed(id)
  for _, info in ipairs(self.sandbox:list_sessions()) do
    if info.id == id then return true, info end
  end
  return false
end

-- The end of a case.

---For what a case changes outside of its sessions: fn is called in the end.
---@param fn function
function Context:undo(fn)
  table.insert(self._undo, 1, fn)
end

-- Faults in here are the business of the cases that are about them.
local function try(limit_seconds, fn, ...)
  pcall(waits.timeout, limit_seconds, fn, ...)
end

---For the runner: ends whatever the case left.
function Context:clean_up()
  local limit = self:seconds(CALL_SECONDS)
  for _, fn in ipairs(self._undo) do
    pcall(fn)
  end
  for _, started in ipairs(self._tasks) do
    try(limit, started.cancel, started)
  end
  for _, handle in ipairs(self._handles) do
    try(limit, handle.kill, handle)
  end
  for _, session in ipairs(self._sessions) do
    try(limit, self.sandbox.destroy_session, self.sandbox, session.id)
  end
  for _, key in ipairs(self._keys) do
    try(limit, self.sandbox.remove_workspace, self.sandbox, key)
  end
end

return M
