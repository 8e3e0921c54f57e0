-- SPDX-License-Identifier: MIT
--
-- The part of a conformance context that runs commands, reads their output, and looks from inside
-- the session at what they did: methods of sbx.ConformanceContext.
--
-- Whether a process still runs is told by a file of the session that it adds a byte to every beat:
-- that works for a host, a container and a simulation alike, and takes no zombie for alive.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local programs = require "sbx.conformance.programs"
local task = require "sbx.task"

local CALL_SECONDS = 30
local POLL_SECONDS = 0.05
local QUIET_SECONDS = 0.5
local STOP_SECONDS = 8

local M = {}

---@class sbx.ConformanceContext
local Commands = {}

---A value in the text of a failure; of a long string its start and length.
---@param value any
---@return string
local function show(value)
  if type(value) ~= "string" then return tostring(value) end
  if #value <= 64 then return errors.quote(value) end
  return ("%s (%d bytes)"):format(errors.quote(value, 32), #value)
end

M.show = show

---Gives a class these methods.
---@param class table
function M.add(class)
  for name, method in pairs(Commands) do
    class[name] = method
  end
end

local function with_limit(self, options)
  local out = { timeout_seconds = self:seconds(CALL_SECONDS) }
  for name, value in pairs(options or {}) do
    out[name] = value
  end
  return out
end

---Runs a command, with a generous timeout_seconds unless the options say another.
---@param session sbx.ManagedSandboxSession
---@param argv string[]
---@param options? table
---@return sbx.ExecResult
function Commands:exec(session, argv, options)
  return session:exec(argv, with_limit(self, options))
end

---Runs what only prepares a case; it has to end with 0.
---@param session sbx.ManagedSandboxSession
---@param argv string[]
---@param options? table
---@return sbx.ExecResult
function Commands:prepare(session, argv, options)
  local result = self:exec(session, argv, options)
  if result.exit_code ~= 0 then
    self:fail("the command that prepares the case (%s) ended with %s: %s", argv[1],
      tostring(result.exit_code), show(result.stderr))
  end
  return result
end

---Starts an interactive command; the runner kills it in the end.
---@param session sbx.ManagedSandboxSession
---@param argv string[]
---@param options? table
---@return sbx.ExecHandle
function Commands:start(session, argv, options)
  local handle = session:exec_start(argv, with_limit(self, options))
  table.insert(self._handles, handle)
  return handle
end

---The one iterator of a handle: every reading helper goes on where the last one stopped.
---@param handle sbx.ExecHandle
---@return function
function Commands:items(handle)
  local reader = self._readers[handle]
  if not reader then
    reader = handle:output()
    self._readers[handle] = reader
  end
  return reader
end

---Reads to the end, whatever it is.
---@param handle sbx.ExecHandle
---@param what string|nil what is read
---@param seconds number|nil limit, before scaling
---@return { stdout: string, stderr: string, exit_code: integer|nil, exits: integer, err: any }
function Commands:collect(handle, what, seconds)
  local parts = { stdout = {}, stderr = {} }
  local got = { exits = 0 }
  local reader = self:items(handle)
  self:within(seconds or CALL_SECONDS, what or "the output", function()
    local ok, err = pcall(function()
      for item in reader do
        if item.exit_code then
          got.exits = got.exits + 1
          got.exit_code = item.exit_code
        else
          table.insert(parts[item.stream], item.data)
        end
      end
    end)
    if not ok and errors.is(err, "Cancelled") then error(err, 0) end
    if not ok then got.err = err end
  end)
  got.stdout, got.stderr = table.concat(parts.stdout), table.concat(parts.stderr)
  return got
end

---As collect; the output has to end well.
---@param handle sbx.ExecHandle
---@param what string|nil what is read
---@param seconds number|nil limit, before scaling
---@return table as collect gives it
function Commands:collect_all(handle, what, seconds)
  local got = self:collect(handle, what, seconds)
  if got.err then
    self:fail("%s ended with %s", what or "the output", show(tostring(got.err)))
  end
  return got
end

---As collect; the output has to end with the timeout.
---@param handle sbx.ExecHandle
---@param what string what is read
---@param seconds number|nil limit, before scaling
---@return sbx.Error err
---@return table before what came before it, as collect gives it
function Commands:collect_timeout(handle, what, seconds)
  local got = self:collect(handle, what, seconds)
  if not errors.is(got.err, "SandboxExecTimeoutError") then
    self:fail("%s ended with %s, SandboxExecTimeoutError is promised", what,
      got.err and show(tostring(got.err)) or "exit code " .. tostring(got.exit_code))
  end
  return got.err, got
end

---Reads until `text` has come on stdout.
---@param handle sbx.ExecHandle
---@param text string
---@return string seen all that came on stdout
function Commands:read_until(handle, text)
  local seen = ""
  self:within(CALL_SECONDS, "the output up to " .. errors.quote(text), function()
    for item in self:items(handle) do
      if item.exit_code then break end
      if item.stream == "stdout" then seen = seen .. item.data end
      if seen:find(text, 1, true) then return end
    end
    self:fail("the output ended before %s came", errors.quote(text))
  end)
  return seen
end

local function size_of(session, path)
  local ok, data = pcall(session.get_file, session, path)
  if ok then return #data end
  if errors.is(data, "SandboxFileNotFoundError") then return nil end
  error(data, 0)
end

---Waits until a file is there.
---@param session sbx.ManagedSandboxSession
---@param path string
function Commands:wait_for_file(session, path)
  self:within(CALL_SECONDS, "the wait for the command's file " .. path, function()
    while not size_of(session, path) do
      task.sleep(POLL_SECONDS)
    end
  end)
end

---Waits until what beats into a file has been quiet for a while; fails when it goes on.
---@param session sbx.ManagedSandboxSession
---@param path string
---@param what string what beats
---@return integer beats
function Commands:check_stops(session, path, what)
  local limit = self.now() + self:seconds(STOP_SECONDS)
  local before = size_of(session, path)
  while true do
    self:sleep(QUIET_SECONDS)
    local after = size_of(session, path)
    if after == before then return after or 0 end
    if self.now() > limit then self:fail("%s still runs", what) end
    before = after
  end
end

---Checks that what beats into a file goes on.
---@param session sbx.ManagedSandboxSession
---@param path string
---@param what string what beats
function Commands:check_goes_on(session, path, what)
  local before = size_of(session, path)
  for _ = 1, 6 do
    self:sleep(QUIET_SECONDS)
    if size_of(session, path) ~= before then return end
  end
  self:fail("%s has stopped", what)
end

---Tells a program that beats into a file to end, and waits until it has.
---@param session sbx.ManagedSandboxSession
---@param path string
function Commands:end_beat(session, path)
  session:put_file(path .. ".stop", "")
  self:check_stops(session, path, "the program that was told to end")
end

---Whether there is something at a path, a dangling link included.
---@param session sbx.ManagedSandboxSession
---@param path string
---@return boolean
function Commands:exists(session, path)
  return self:exec(session, programs.build.exists(path)).exit_code == 0
end

return M
