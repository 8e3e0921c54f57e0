-- SPDX-License-Identifier: MIT
--- Owns the one family of errors that callers meet (SPEC E1-E3), and how they read.
--
-- An error is a table whose metatable is its class. A class is called to make one:
-- `errors.SandboxError(message, { attribute = value })`; that is the only way. Raising is separate
-- (`errors.raise`), so that an error can be made in one place, given notes, stored, and raised in
-- another, always as the same table.
--
-- Invariants: `message` is a string and `notes` a list from the start, so printing an error cannot
-- fail. The family is known by the class tables themselves, never by a field or a name that a
-- foreign table could also carry. Classes are open: a provider adds its own with `errors.subclass`
-- and needs no entry here. Whoever makes an error keeps secrets and output out of its text (SPEC
-- E2); `errors.quote` is for the rest.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local M = {}

-- Weak, so that a class made by a program (or by a spec) can go again.
local classes = setmetatable({}, { __mode = "k" })

local RESERVED = { message = true, notes = true, class_name = true, add_note = true, _init = true }

---@class sbx.Error
---@field message string what went wrong, without the class name
---@field notes string[] added on the way up, oldest first
---@field class_name string the name of the class, without `sbx.`

---@class sbx.Fault
---@field path string field path (`env.TOKEN`, `argv[2]`), empty for the value as a whole
---@field message string what is wrong with it, never its value where that may be secret

local function render(err)
  local lines = { err.class_name .. ": " .. tostring(err.message) }
  for i = 1, #err.notes do lines[#lines + 1] = "  note: " .. err.notes[i] end
  return table.concat(lines, "\n")
end

local function construct(class, message, attributes)
  if type(message) ~= "string" then
    error(("sbx.%s: message must be a string, got %s"):format(class.class_name, type(message)), 2)
  end
  local err = { message = message, notes = {} }
  for name, value in pairs(attributes or {}) do
    if RESERVED[name] then
      error(("sbx.%s: %s cannot be an attribute"):format(class.class_name, name), 2)
    end
    err[name] = value
  end
  setmetatable(err, class)
  err:_init()
  return err
end

local function define(parent, name)
  local class = {
    class_name = name,
    __name = "sbx." .. name,
    __tostring = render,
    _parent = parent or false,
  }
  class.__index = class
  classes[class] = true
  return setmetatable(class, {
    __call = construct,
    __index = parent,
    __tostring = function() return class.__name end,
  })
end

--- Makes a new class of errors below `parent` (SPEC E1). It is returned, not registered anywhere.
--- A class may define `_init(err)`, called once for each new error, to fill attributes that were
--- not given. Raises a plain Lua error for a parent that is no error class or a name that is no
--- identifier.
---@param parent table a class of this module, or one made by this function
---@param name string
---@return table class callable: `class(message, attributes)`
function M.subclass(parent, name)
  if type(parent) ~= "table" or not classes[parent] then
    error("errors.subclass: parent must be an error class", 2)
  end
  if type(name) ~= "string" or not name:find("^[%a_][%w_]*$") then
    error("errors.subclass: name must be an identifier", 2)
  end
  return define(parent, name)
end

--- The root of everything here: `errors.is(e, "Error")` is true for any error of this project.
M.Error = define(nil, "Error")

function M.Error._init() end

--- Adds a note, shown below the message (SPEC E1). Anything but a string goes through tostring,
--- since a clean-up that wants to add a note must not hide the error it adds it to.
---@param text any
---@return sbx.Error self
function M.Error:add_note(text)
  self.notes[#self.notes + 1] = tostring(text)
  return self
end

--- Base of every failure of a sandbox (SPEC E1).
M.SandboxError = define(M.Error, "SandboxError")
--- No provider is registered.
M.SandboxUnavailableError = define(M.SandboxError, "SandboxUnavailableError")
--- A spec that the policy or the provider cannot honor; the text says which.
M.SandboxSpecRejectedError = define(M.SandboxError, "SandboxSpecRejectedError")
--- No live session has that id. Attribute: `session_id`.
M.SandboxSessionNotFoundError = define(M.SandboxError, "SandboxSessionNotFoundError")
--- The path does not exist in the workspace. Attribute: `path`.
M.SandboxFileNotFoundError = define(M.SandboxError, "SandboxFileNotFoundError")
--- The deadline of an exec passed. Attributes: `timeout_seconds`, and the byte counts
--- `stdout_len`, `stderr_len`.
M.SandboxExecTimeoutError = define(M.SandboxError, "SandboxExecTimeoutError")
--- An argument is not what it must be. Attribute: `faults`, a list of sbx.Fault with at least one
--- entry.
M.SandboxValidationError = define(M.SandboxError, "SandboxValidationError")
--- A tier refused: the caller may not do this.
M.SandboxPermissionError = define(M.SandboxError, "SandboxPermissionError")

---An exec's output passed the limit its caller set (an extension to the contract).
---@class sbx.SandboxOutputLimitError : sbx.SandboxError
---@field max_output_bytes integer the limit, of both streams together
---@field stdout_len integer bytes received up to the stop
---@field stderr_len integer
M.SandboxOutputLimitError = define(M.SandboxError, "SandboxOutputLimitError")
--- The task that waited here was cancelled. No SandboxError: code that handles
--- whatever a sandbox raises must not swallow a cancel.
M.Cancelled = define(M.Error, "Cancelled")
--- `sbx.timeout` ran out.
M.TimeoutError = define(M.Error, "TimeoutError")
--- Tasks were misused: run inside a task, a deadlock, awaiting oneself.
M.TaskError = define(M.Error, "TaskError")

function M.SandboxValidationError:_init()
  if self.faults == nil then self.faults = { { path = "", message = self.message } } end
end

--- Tells whether a value is an error of the given class or of one below it (SPEC E1). False for
--- everything that is no error of this family: nil, strings, foreign tables, the classes
--- themselves.
---@param value any
---@param class string|table the name of a class (without `sbx.`), or the class
---@return boolean
function M.is(value, class)
  if type(value) ~= "table" then return false end
  local current = getmetatable(value)
  if type(current) ~= "table" or not classes[current] then return false end
  while current do
    if current == class or current.class_name == class then return true end
    current = current._parent
  end
  return false
end

--- Raises an error as it is: the same table, no position added (SPEC A2, E1).
---@param err any
function M.raise(err)
  error(err, 0)
end

--- Makes one SandboxValidationError out of all the faults found (SPEC M2); does not raise it.
---@param subject string what was checked, for the text: `SandboxSessionSpec`, `exec`
---@param faults sbx.Fault[] at least one
---@return sbx.Error
function M.validation_error(subject, faults)
  local parts = {}
  for i, fault in ipairs(faults) do
    parts[i] = fault.path == "" and fault.message or (fault.path .. ": " .. fault.message)
  end
  local message = "invalid " .. subject .. ": " .. table.concat(parts, "; ")
  return M.SandboxValidationError(message, { faults = faults })
end

--- Shows a name or a value that is no secret in an error's text: quoted, cut, and in printable
--- ASCII, so that what comes from outside cannot forge lines of a log or break the JSON it is put
--- into.
---@param text string
---@param max_bytes integer|nil longest part shown, 64 unless told
---@return string
function M.quote(text, max_bytes)
  max_bytes = max_bytes or 64
  local cut = #text > max_bytes
  local shown = text:sub(1, max_bytes):gsub('[^\32-\126]', function(byte)
    return ("\\%03d"):format(byte:byte())
  end)
  return '"' .. shown .. (cut and '..."' or '"')
end

return M
