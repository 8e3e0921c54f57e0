-- SPDX-License-Identifier: MIT
--
-- From the runtime's execs to the contract: results, stream items, handles and errors, once for
-- every provider that runs commands through the engine (SPEC X).
--
-- A provider gives a starter, `start(request, interactive)`, that returns an exec of the runtime or
-- nil, step, errno name, text. What an exec's words mean to a caller is decided here only.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local models = require "sbx.models"
local secret = require "sbx.secret"
local task = require "sbx.task"

local M = {}

---Merges environments, later ones winning, into the runtime's list (SPEC X2).
---@param ... table<string, string|sbx.Secret>
---@return string[] list of NAME=value
function M.env_list(...)
  local merged = {}
  for i = 1, select("#", ...) do
    for name, value in pairs((select(i, ...))) do
      merged[name] = secret.unwrap(value)
    end
  end
  local list = {}
  for name, value in pairs(merged) do
    list[#list + 1] = name .. "=" .. value
  end
  return list
end

local START_HINTS = {
  E2BIG = "arguments and environment are too long for the system",
  EAGAIN = "the limit of processes is reached",
  EMFILE = "the limit of open files of this program is reached",
  ENFILE = "the system's limit of open files is reached",
}

local STEPS = {
  cwd = function(request, name, text)
    local why = name == "EXDEV" and "it leads outside of the workspace" or text
    return ("cannot start in cwd %s: %s"):format(errors.quote(request.cwd or "."), why)
  end,
  start = function(request, name, text)
    local hint = START_HINTS[name]
    return ("cannot start %s: %s%s"):format(errors.quote(request.argv[1]),
      hint and hint .. ": " or "", text)
  end,
  engine = function(request, _, text)
    return ("cannot run %s: %s"):format(errors.quote(request.argv[1]), text)
  end,
  stdin = function(_, _, text) return "writing the command's stdin failed: " .. text end,
  held = function()
    return "the command exited while another process still held its stdin: not all of the input "
      .. "was delivered"
  end,
  output = function(_, name, text)
    if name == "EFBIG" then
      text = "it is larger than a Lua string can be; exec_start gives it in pieces"
    elseif name == "ENOSPC" or name == "EDQUOT" then
      text = text .. ", in the directory for temporary files (TMPDIR)"
    end
    return "the command's output could not be kept: " .. text
  end,
  status = function(_, name, text)
    if name == "ECHILD" then
      return "the command's exit status cannot be read: this program ignores SIGCHLD or reaps "
        .. "children that are not its own"
    end
    return "the command's exit status cannot be read: " .. text
  end,
  stop = function()
    return "the command could not be stopped: a process of its group survived SIGKILL"
  end,
}

local function fault_error(request, step, name, text)
  return errors.SandboxError(("%s (%s)"):format(STEPS[step](request, name, text), name))
end

local HELD_NOTE = "a process outside the command's group still held the output after the stop: "
  .. "the counts are of what was received up to then"

local function timeout_error(request, stdout_len, stderr_len, held)
  local err = errors.SandboxExecTimeoutError(
    ("%s was stopped at its deadline of %.15g s (stdout %.0f bytes, stderr %.0f bytes)"):format(
      errors.quote(request.argv[1]), request.timeout_seconds, stdout_len, stderr_len),
    { timeout_seconds = request.timeout_seconds, stdout_len = stdout_len, stderr_len = stderr_len })
  if held then err:add_note(HELD_NOTE) end
  return err
end

local function limit_error(request, record)
  return errors.SandboxOutputLimitError(
    ("%s was stopped: its output passed the limit of %.0f bytes (max_output_bytes)"):format(
      errors.quote(request.argv[1]), request.max_output_bytes),
    { max_output_bytes = request.max_output_bytes, stdout_len = record.stdout_bytes,
      stderr_len = record.stderr_bytes })
end

local function raise_fault(request, exec, step, name, text)
  if step == "limit" then errors.raise(limit_error(request, exec:record())) end
  errors.raise(fault_error(request, step, name, text))
end

local function start(starter, request, interactive)
  local exec, step, name, text = starter(request, interactive)
  if exec then return exec end
  errors.raise(fault_error(request, step, name, text))
end

local function one_shot_result(request, exec, record, kind, a, b, c)
  if kind == "exit" then
    record.exit_code, record.stdout, record.stderr = a, b, c
    return models.ExecResult(record)
  end
  if kind == "timeout" then errors.raise(timeout_error(request, a, b, c)) end
  if kind == "cancelled" then errors.raise(errors.Cancelled("the exec was cancelled")) end
  raise_fault(request, exec, a, b, c)
end

---Runs a command to its end (SPEC X6-X9, X18).
---@param starter function
---@param request table of sbx.models.exec_request
---@param on_ended fun(record: sbx.ExecRecord, exit_code: integer|nil)
---@return sbx.ExecResult
function M.run(starter, request, on_ended)
  local exec = start(starter, request, false)
  local ok, err = pcall(task.await, exec:op())
  local record = exec:record()
  if not ok then
    exec:close()
    if record then on_ended(record, nil) end
    error(err, 0)
  end
  local kind, code = exec:result()
  on_ended(record, kind == "exit" and code or nil)
  local out = { pcall(one_shot_result, request, exec, record, exec:result()) }
  exec:close()
  if not out[1] then error(out[2], 0) end
  return out[2]
end

---A live interactive exec (SPEC X10-X17).
---@class sbx.ExecHandle
local Handle = {}
Handle.__index = Handle
Handle.__name = "sbx.SandboxExecHandle"

---Starts a command and returns its handle.
---@param starter function
---@param request table of sbx.models.exec_request
---@param on_ended fun(record: sbx.ExecRecord, exit_code: integer|nil)
---@param on_release fun(handle: sbx.ExecHandle) called once, when its resources are gone
---@return sbx.ExecHandle
function M.start(starter, request, on_ended, on_release)
  local exec = start(starter, request, true)
  return setmetatable({ _exec = exec, _request = request, _on_ended = on_ended,
    _on_release = on_release }, Handle)
end

-- The record, told of once. A session's end is known here only: to the runtime it is a kill.
local function ended(self, exit_code)
  local record = self._exec:record()
  if not record then return nil end
  if self._session_ended and record.cause == "killed" then record.cause = "session_destroyed" end
  local on_ended = self._on_ended
  self._on_ended = nil
  if on_ended then on_ended(record, exit_code) end
  return record
end

function Handle:__tostring()
  return ("SandboxExecHandle(%s)"):format(errors.quote(self._request.argv[1]))
end

---Delivers data to the command's stdin, whole and in order. Returns when the command or a bounded
---buffer has it (SPEC X11).
---@param data string
---Raises SandboxError when the stdin is closed or the command has exited or been killed.
function Handle:write_stdin(data)
  if type(data) ~= "string" then
    errors.raise(errors.validation_error("write_stdin", {
      { path = "data", message = "must be a string, got " .. type(data) },
    }))
  end
  local taken, name, text = self._exec:write(data)
  if taken and taken ~= true then taken, name, text = task.await(taken) end
  if taken then return end
  if name == "EPIPE" then
    text = "it is closed, or the command has exited or been killed"
  end
  errors.raise(errors.SandboxError(("cannot write to the command's stdin: %s (%s)"):format(text,
    name)))
end

---Signals end-of-input once all that was written is delivered. Idempotent (SPEC X11).
function Handle:close_stdin()
  local ok, name, text = self._exec:close_stdin()
  if not ok then
    errors.raise(errors.SandboxError(("cannot close the command's stdin: %s (%s)"):format(text,
      name)))
  end
end

local function next_item(self)
  local exec = self._exec
  while true do
    local kind, a, b, c = exec:next()
    if kind == "chunk" then return models.SandboxStreamChunk(a, b) end
    if kind == "exit" then return models.SandboxStreamExit(a, ended(self, a)) end
    if kind == "end" then return nil end
    if kind == "timeout" then
      ended(self)
      errors.raise(timeout_error(self._request, a, b, c))
    elseif kind == "fault" then
      ended(self)
      raise_fault(self._request, exec, a, b, c)
    end
    local op, name, text = exec:readable()
    if not op then
      errors.raise(errors.SandboxError(("cannot wait for output: %s (%s)"):format(text, name)))
    end
    task.await(op)
  end
end

---The command's output: chunks in the order they arrived, then one exit item. Every call gives the
---same stream (SPEC X10, X12-X15).
---@return fun(): sbx.SandboxStreamChunk|sbx.SandboxStreamExit|nil
---Raises SandboxExecTimeoutError at the deadline, SandboxError when the exec itself failed.
function Handle:output()
  return function() return next_item(self) end
end

---Kills the command and its group and gives the handle's resources back. May be called at any time
---and more than once; after the command's exit it never raises (SPEC X14, X16, X17).
function Handle:kill()
  local op, name, text = self._exec:kill()
  local ok = op
  if op then ok, name, text = task.shield(task.await, op) end
  ended(self)
  if self._on_release then
    local on_release = self._on_release
    self._on_release = nil
    on_release(self)
  end
  if not ok then errors.raise(fault_error(self._request, "stop", name, text)) end
end

return M
