-- SPDX-License-Identifier: MIT
--
-- The session a consumer runs code in: checks each call once and leaves the work to the provider
-- (SPEC P1, P4).
--
-- A provider's session class extends this one and has the fields `id` and `workspace_path` and the
-- methods _start_exec(request, interactive), _put_file(path, data) and _get_file(path). What they
-- get is checked; what they raise goes to the caller as it is.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local exec = require "sbx.kit.exec"
local models = require "sbx.models"

---@class sbx.ExecOptions
---@field timeout_seconds number > 0, required; the deadline, from the call on
---@field cwd string|nil workspace-relative directory; nil: the workspace
---@field env table<string, string|sbx.Secret>|nil over the spec's env
---@field stdin string|nil nil: the command reads end-of-file
---@field wait "output"|"exit"|nil what ends the exec: the end of its output, or its exit (SPEC X18)

---@class sbx.ManagedSandboxSession
---@field id string the session's id (SPEC P9)
---@field workspace_path string absolute path of its workspace (SPEC P9)
---@field _sandbox sbx.ManagedSandbox
---@field _handles table<sbx.ExecHandle, true> interactive execs whose resources are not gone
---@field _gone boolean
local Session = {}
Session.__index = Session
Session.__name = "sbx.SandboxSession"

---Makes a provider's session class.
---@param name string
---@return table class its instances are made by class.new(fields)
function Session.extend(name)
  local class = { __name = name }
  class.__index = class
  class.__tostring = Session.__tostring
  function class.new(fields)
    fields._handles = {}
    fields._gone = false
    return setmetatable(fields, class)
  end
  return setmetatable(class, { __index = Session })
end

function Session:__tostring()
  return ("SandboxSession(%s)"):format(self.id)
end

local EXEC_ALLOWED = { stdin = true }

function Session:_check_live()
  if self._gone or not self._sandbox:_is_live(self.id) then
    self._gone = true
    errors.raise(errors.SandboxSessionNotFoundError(
      ("no live session has the id %s"):format(self.id), { session_id = self.id }))
  end
end

local function starter(self)
  return function(request, interactive) return self:_start_exec(request, interactive) end
end

---Runs argv to its end (SPEC X1-X9).
---@param argv string[]
---@param options sbx.ExecOptions
---@return sbx.ExecResult
---Raises SandboxValidationError, SandboxExecTimeoutError, SandboxSessionNotFoundError and
---SandboxError.
function Session:exec(argv, options)
  local request = models.exec_request(argv, options, EXEC_ALLOWED)
  self:_check_live()
  return exec.run(starter(self), request)
end

---Starts argv as an interactive exec (SPEC X10-X18). A consumer done with the handle calls kill().
---@param argv string[]
---@param options sbx.ExecOptions without stdin
---@return sbx.ExecHandle
---Raises as exec, but for the deadline, which the handle's output raises.
function Session:exec_start(argv, options)
  local request = models.exec_request(argv, options)
  self:_check_live()
  local handle = exec.start(starter(self), request, function(handle)
    self._handles[handle] = nil
  end)
  self._handles[handle] = true
  if self._gone then
    handle:kill()
    self:_check_live()
  end
  return handle
end

---Writes a file, making missing directories, in one step for every reader (SPEC F1-F3).
---@param path string workspace-relative
---@param data string
---Raises SandboxValidationError, SandboxSessionNotFoundError, SandboxError.
function Session:put_file(path, data)
  models.file_path(path)
  if type(data) ~= "string" then
    errors.raise(errors.validation_error("put_file", {
      { path = "data", message = "must be a string, got " .. type(data) },
    }))
  end
  self:_check_live()
  self:_put_file(path, data)
end

---Reads a file (SPEC F1-F3).
---@param path string workspace-relative
---@return string data
---Raises SandboxFileNotFoundError when path does not exist, SandboxError for every other fault.
function Session:get_file(path)
  models.file_path(path)
  self:_check_live()
  return self:_get_file(path)
end

---@return sbx.SandboxSessionInfo
---Raises SandboxSessionNotFoundError.
function Session:info()
  self:_check_live()
  return self._sandbox:_info(self.id)
end

---Sets expires_at to now + ttl (SPEC P4).
---Raises SandboxSessionNotFoundError.
function Session:touch()
  self:_check_live()
  self._sandbox:_touch(self.id)
end

---Tears the session down. Idempotent; a persistent workspace stays (SPEC P4).
---@param options? { remove_workspace: boolean? }
function Session:destroy(options)
  self._sandbox:destroy_session(self.id, options)
end

-- For the sandbox: ends every interactive exec. The first that would not go is raised, after all
-- were tried.
function Session:_stop_handles()
  local handles = {}
  for handle in pairs(self._handles) do
    handles[#handles + 1] = handle
  end
  local first
  for _, handle in ipairs(handles) do
    local ok, err = pcall(handle.kill, handle)
    if not ok then first = first or err end
  end
  if first then error(first, 0) end
end

return Session
