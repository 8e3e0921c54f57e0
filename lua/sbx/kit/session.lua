-- SPDX-License-Identifier: MIT
--
-- The session a consumer runs code in: checks each call once and leaves the work to the provider
-- (SPEC P1, P4).
--
-- A provider's session class extends this one and has the fields `id` and `workspace_path` and the
-- methods _start_exec(request, interactive), _put_file(path, data) and _get_file(path). What they
-- get is checked; what they raise goes to the caller as it is. The hooks of calls that not every
-- provider has stand below, with what they must do; without them such a call raises.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local events = require "sbx.events"
local exec = require "sbx.kit.exec"
local models = require "sbx.models"
local task = require "sbx.task"

---@class sbx.ExecOptions
---@field timeout_seconds number > 0, required; the deadline, from the call on
---@field cwd string|nil workspace-relative directory; nil: the workspace
---@field env table<string, string|sbx.Secret>|nil over the spec's env
---@field stdin string|nil nil: the command reads end-of-file
---@field max_output_bytes integer|nil > 0; when both streams together pass it, the command is
---stopped and SandboxOutputLimitError raised; nil: no limit
---@field wait "output"|"exit"|nil what ends the exec: its output's end, or its exit (SPEC X18)

---@class sbx.FileEntry
---@field name string
---@field type "file"|"directory"|"link"|"other"
---@field size integer bytes, as the system tells it
---@field mode integer permission bits: 420 is 0644
---@field mtime number last change of the content, UTC epoch seconds with a fraction

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
  task.check_usable()
  if self._gone or not self._sandbox:_is_live(self.id) then
    if not self._gone then self._sandbox:_let_go(self) end
    errors.raise(errors.SandboxSessionNotFoundError(
      ("no live session has the id %s"):format(self.id), { session_id = self.id }))
  end
end

local function on_ended(self)
  return function(record, exit_code)
    if not events.is_wanted("exec.ended") then return end
    local event = { session_id = self.id, provider = self._sandbox.provider_name,
      exit_code = exit_code }
    for field, value in pairs(record) do
      if event[field] == nil and field ~= "stdout" and field ~= "stderr" then
        event[field] = value
      end
    end
    events.emit("exec.ended", event)
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
  return exec.run(starter(self), request, on_ended(self))
end

---Starts argv as an interactive exec (SPEC X10-X18). A consumer done with the handle calls kill().
---@param argv string[]
---@param options sbx.ExecOptions without stdin
---@return sbx.ExecHandle
---Raises as exec, but for the deadline, which the handle's output raises.
function Session:exec_start(argv, options)
  local request = models.exec_request(argv, options)
  self:_check_live()
  local handle = exec.start(starter(self), request, on_ended(self), function(handle)
    self._handles[handle] = nil
  end)
  self._handles[handle] = true
  if self._gone then
    handle:kill()
    self:_check_live()
  end
  return handle
end

local function validation(subject, path, message)
  errors.raise(errors.validation_error(subject, { { path = path, message = message } }))
end

local function is_open_file(value)
  return io.type(value) == "file"
end

local function shown_type(value)
  return io.type(value) or type(value)
end

-- What pieces of files are gathered to, or read in.
local PIECE_BYTES = 128 * 1024

-- The collector works by the number of allocations: of strings this large it would leave many times
-- what is alive. These steps keep the garbage about as large as what is alive.
local function collect(bytes)
  collectgarbage("step", math.ceil(bytes / 2048))
end

local function pieces_of(data)
  if type(data) == "function" then return data end
  return function()
    local piece, why = data:read(PIECE_BYTES)
    if piece == nil and why then
      errors.raise(errors.SandboxError("cannot read the file given to put_file: " .. why))
    end
    return piece
  end
end

-- Small pieces are written together.
local function write_pieces(put, next_piece)
  local pending, bytes = {}, 0
  local function flush()
    if bytes == 0 then return end
    put:write(#pending == 1 and pending[1] or table.concat(pending))
    collect(bytes)
    pending, bytes = {}, 0
  end
  for piece in next_piece do
    if type(piece) ~= "string" then
      validation("put_file", "data", "must return strings, and nil at the end, got " .. type(piece))
    end
    if piece ~= "" then pending[#pending + 1], bytes = piece, bytes + #piece end
    if bytes >= PIECE_BYTES then flush() end
  end
  flush()
end

function Session:_put_pieces(path, next_piece)
  local put = self:_open_put(path)
  local ok, err = pcall(function()
    write_pieces(put, next_piece)
    self:_check_live()
    put:commit()
  end)
  if ok then return end
  local ended, why = pcall(task.shield, put.abort, put)
  if not ended and errors.is(err, "Error") then
    err:add_note("the clean-up failed: " .. tostring(why))
  end
  error(err, 0)
end

---Writes a file, making missing directories, in one step for every reader (SPEC F1-F3). From an
---iterator or a file it takes as little memory as one piece, and writes nothing until it has all:
---an error of the iterator goes to the caller as it is, and the file is as before.
---@param path string workspace-relative
---@param data string|file*|fun(): string? bytes; an open file, read from where it stands on;
---or a function that returns the next piece, nil at the end, and may wait
---Raises SandboxValidationError, SandboxSessionNotFoundError, SandboxError.
function Session:put_file(path, data)
  models.file_path(path)
  local is_stream = type(data) == "function" or is_open_file(data)
  if type(data) ~= "string" and not is_stream then
    validation("put_file", "data",
      "must be a string, a function or an open file, got " .. shown_type(data))
  end
  self:_check_live()
  if is_stream then
    self:_put_pieces(path, pieces_of(data))
  else
    self:_put_file(path, data)
  end
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

local function write_to(file, piece)
  local ok, why
  if piece then
    ok, why = file:write(piece)
  else
    ok, why = file:flush()
  end
  if not ok then
    errors.raise(errors.SandboxError("cannot write the file given to get_file_to: "
      .. tostring(why)))
  end
end

local function pass_pieces(get, target)
  local is_file = is_open_file(target)
  while true do
    local piece = get:read()
    if piece == "" then break end
    if is_file then write_to(target, piece) else target(piece) end
    collect(#piece)
  end
  if is_file then write_to(target) end
end

---Reads a file piece by piece (SPEC F1-F3), with as little memory as one piece.
---@param path string workspace-relative
---@param target file*|fun(chunk: string) an open file, written from where it stands and flushed; or
---a function called with each piece, never empty, that may wait; its errors go to the caller
---Raises SandboxFileNotFoundError when path does not exist (nothing has been written then),
---SandboxValidationError, SandboxSessionNotFoundError, SandboxError.
function Session:get_file_to(path, target)
  models.file_path(path)
  if type(target) ~= "function" and not is_open_file(target) then
    validation("get_file_to", "target",
      "must be an open file or a function, got " .. shown_type(target))
  end
  self:_check_live()
  local get = self:_open_get(path)
  local ok, err = pcall(pass_pieces, get, target)
  local closed, why = pcall(task.shield, get.close, get)
  if not ok then error(err, 0) end
  if not closed then error(why, 0) end
end

local function by_name(a, b)
  return a.name < b.name
end

---What is in a directory, sorted by name (SPEC F2, F3). Links are told as such.
---@param path? string workspace-relative directory, links to it followed; nil: the workspace
---@return sbx.FileEntry[]
---Raises SandboxFileNotFoundError when path does not exist, SandboxError when it is no directory
---and for every other fault.
function Session:list_files(path)
  if path == nil then path = "." end
  models.file_path(path)
  self:_check_live()
  local entries = self:_list_files(path)
  table.sort(entries, by_name)
  return entries
end

---What is at a path (SPEC F2, F3). A link is told as such, not what it leads to.
---@param path string workspace-relative
---@return sbx.FileEntry
---Raises SandboxFileNotFoundError when path does not exist, SandboxError for every other fault.
function Session:stat_file(path)
  models.file_path(path)
  self:_check_live()
  local entry = self:_stat_file(path)
  entry.name = path:match("([^/]+)/*$") or path
  return entry
end

local function remove_options(options)
  if options == nil then return false end
  if type(options) ~= "table" then
    validation("remove_file", "options", "must be a table, got " .. type(options))
  end
  for name in pairs(options) do
    if name ~= "recursive" then
      validation("remove_file", type(name) == "string" and errors.quote(name) or "options",
        "unknown option")
    end
  end
  local recursive = options.recursive
  if recursive ~= nil and type(recursive) ~= "boolean" then
    validation("remove_file", "recursive", "must be a boolean, got " .. type(recursive))
  end
  return recursive == true
end

---Removes a file, a link (itself) or an empty directory, with `recursive` any directory with all
---that is in it (SPEC F2, F3). The workspace itself is refused.
---@param path string workspace-relative
---@param options? { recursive: boolean? }
---Raises SandboxFileNotFoundError when path does not exist, SandboxValidationError, SandboxError; a
---recursive removal that raises may have removed a part.
function Session:remove_file(path, options)
  models.file_path(path)
  local recursive = remove_options(options)
  self:_check_live()
  self:_remove_file(path, recursive)
end

-- Hooks that a provider may leave out. Paths are as the caller gave them, not empty, without NUL.

local function cannot(what)
  return function()
    errors.raise(errors.SandboxError("the provider of this session cannot " .. what))
  end
end

-- (path): begins a put; an object with write(data), commit() and abort(). What was not committed
-- leaves nothing, also when _open_put itself raises. abort comes after any failure, a commit's too,
-- and is not cancelled.
Session._open_put = cannot "write files from an iterator or a file"
-- (path): an object with read(), the next piece and "" at the end, and close(), which is not
-- cancelled.
Session._open_get = cannot "read files piece by piece"
-- (path): a list of sbx.FileEntry in any order.
Session._list_files = cannot "list files"
-- (path): one sbx.FileEntry; its name is not looked at.
Session._stat_file = cannot "tell what a path is"
-- (path, recursive)
Session._remove_file = cannot "remove files"

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

-- What a provider's session need not have: things of this process to give back at its end.
function Session:_close() -- luacheck: ignore self
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
    handle._session_ended = true
    local ok, err = pcall(handle.kill, handle)
    if not ok then first = first or err end
  end
  if first then error(first, 0) end
end

return Session
