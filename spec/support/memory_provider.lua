-- SPDX-License-Identifier: MIT
--
-- A provider without any process: it plays the commands of the conformance suite, and only those,
-- in tables and virtual time, with the semantics of the contract. It shows that the suite asks
-- for the contract and nothing of a particular runtime, and its variants (spec.support.doubles)
-- show that each case sees what it is for.
--
-- It stands on the kit's base classes, but for exec and exec_start: the kit's way from a request
-- to a result presumes execs of the C runtime. `new(change)` gives every provider classes of its
-- own, and `change(parts)` may replace any method of any of them.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local kit = require "sbx.kit"
local memory_exec = require "spec.support.memory_exec"
local memory_files = require "spec.support.memory_files"
local memory_programs = require "spec.support.memory_programs"
local models = require "sbx.models"
local policy = require "sbx.policy"
local programs = require "sbx.conformance.programs"
local secret = require "sbx.secret"
local virtual_time = require "spec.support.virtual_time"

local M = {}

---What the suite is told of this provider.
M.config = {
  image = "memory",
  isolation = "container",
  reject_specs = {
    { spec = { isolation = "vm" }, why = "isolation vm" },
    { spec = { cpu = 1000 }, why = "cpu 1000" },
    { spec = { memory_mb = 1 }, why = "memory_mb 1" },
  },
}

local function raise(format, ...)
  errors.raise(errors.SandboxError(format:format(...)))
end

-- The methods of the classes; `self._parts` is the set of classes an object belongs to.
local Handle, Session, Sandbox = {}, {}, {}

function Handle:write_stdin(data)
  if type(data) ~= "string" then
    errors.raise(errors.validation_error("write_stdin",
      { { path = "data", message = "must be a string" } }))
  end
  if not self.exec:feed(data) then raise("the stdin is closed") end
end

function Handle:close_stdin()
  self.exec:close_stdin()
end

function Handle:next_item()
  local exec = self.exec
  while true do
    if exec.ended and exec.how == "timeout" then errors.raise(self._parts.timeout_error(exec)) end
    local item = exec:take()
    if item then return models.SandboxStreamChunk(item.stream, item.data) end
    if exec.ended then return self:last_item() end
    exec:wait_change()
  end
end

function Handle:last_item()
  if self.exit_given then return nil end
  self.exit_given = true
  return models.SandboxStreamExit(self.exec.exit_code)
end

function Handle:output()
  return function() return self:next_item() end
end

function Handle:kill()
  self.exec:kill()
  self.session._handles[self] = nil
end

-- Commands.

function Session:_environment(request)
  local env = { PATH = "/bin", HOME = self.workspace_path }
  for _, map in ipairs { self._spec_env, request.env } do
    for name, value in pairs(map) do
      env[name] = secret.unwrap(value)
    end
  end
  return env
end

function Session:_directory(request)
  local cwd = request.cwd
  if not cwd then return self._dir end
  local inside = cwd:sub(1, 1) ~= "/" and self._dir or nil
  local node, why = memory_files.find(self._root, self._dir, cwd, { inside = inside })
  if not node then raise("cannot start in %s: %s", cwd, why) end
  if node.kind ~= "dir" then raise("cannot start in %s: ENOTDIR", cwd) end
  return node
end

function Session._is_in_path(_, path)
  return (":" .. path .. ":"):find(":/bin:", 1, true) ~= nil
end

-- The function that plays an argv, its status when there is none.
function Session:_program(request, dir, env)
  local name, arguments = programs.recognise(request.argv)
  local program = self._parts.programs[name]
  if program and self:_is_in_path(env.PATH) then
    return function(process) return program(process, arguments) end
  end
  local file = name:find("/", 1, true) and memory_files.find(self._root, dir, name)
  return function(process)
    process:out("stderr", name .. (file and ": cannot be executed\n" or ": not found\n"))
    return file and 126 or 127
  end
end

function Session:_launch(request, interactive)
  local dir = self:_directory(request)
  local env = self:_environment(request)
  local body = self:_program(request, dir, env)
  local exec = self._parts.Exec:start(request, interactive, body, dir, env)
  exec.machine_root = self._root
  exec.name = programs.recognise(request.argv)
  return exec
end

function Session:_check_live()
  if not self._gone then return end
  errors.raise(errors.SandboxSessionNotFoundError("no live session has the id " .. self.id,
    { session_id = self.id }))
end

function Session:_result(exec)
  if exec.how == "timeout" then errors.raise(self._parts.timeout_error(exec)) end
  local text = { stdout = {}, stderr = {} }
  for _, item in ipairs(exec.items) do
    table.insert(text[item.stream], item.data)
  end
  return models.ExecResult { exit_code = exec.exit_code, stdout = table.concat(text.stdout),
    stderr = table.concat(text.stderr) }
end

function Session:exec(argv, options)
  local request = models.exec_request(argv, options, { stdin = true })
  self:_check_live()
  local exec = self:_launch(request, false)
  local ok, err = pcall(exec.wait_end, exec)
  if not ok then
    exec:stop("cancel")
    error(err, 0)
  end
  return self:_result(exec)
end

function Session:exec_start(argv, options)
  local request = models.exec_request(argv, options)
  self:_check_live()
  local handle = setmetatable({ exec = self:_launch(request, true), session = self,
    _parts = self._parts }, self._parts.Handle)
  self._handles[handle] = true
  return handle
end

-- Files.

-- A path below the workspace's own, relative; others are outside.
function Session:_inside(path)
  if path:sub(1, 1) ~= "/" then return path end
  local prefix = self.workspace_path .. "/"
  if path:sub(1, #prefix) == prefix then return path:sub(#prefix + 1) end
  raise("%s is outside of the workspace", path)
end

function Session:_put_file(path, data)
  local inner, options = self:_inside(path), { inside = self._dir, keep_link = true }
  local above = inner:match("^(.*)/[^/]*$")
  if above then
    local made, why = memory_files.make_dirs(self._root, self._dir, above, options)
    if not made then raise("cannot write %s: %s", errors.quote(path), why) end
  end
  local old, why, parent, name = memory_files.find(self._root, self._dir, inner, options)
  if old and old.kind == "dir" then why = "EISDIR" end
  if not parent or why and why ~= "ENOENT" then
    raise("cannot write %s: %s", errors.quote(path), why)
  end
  parent.children[name] = { kind = "file", data = data, mode = self:_mode_of(old) }
end

function Session._mode_of(_, old)
  return old and old.kind == "file" and old.mode or "rw-r--r--"
end

function Session:_get_file(path)
  local node, why = memory_files.find(self._root, self._dir, self:_inside(path),
    { inside = self._dir })
  if node and node.kind == "file" then return node.data end
  if why == "ENOENT" then
    errors.raise(errors.SandboxFileNotFoundError("no file at " .. errors.quote(path),
      { path = path }))
  end
  raise("cannot read %s: %s", errors.quote(path), why or "it is a " .. node.kind)
end

-- Sessions and workspaces.

function Sandbox:_check_spec(spec)
  if spec.isolation == "vm" then self:_reject("isolation vm") end
  if spec.cpu and spec.cpu > 64 then self:_reject("cpu above 64") end
  if spec.memory_mb and spec.memory_mb < 4 then self:_reject("memory_mb below 4") end
end

function Sandbox._place(_, durability, workspace_key, id)
  if durability == "ephemeral" then return "/workspaces/ephemeral/" .. id end
  return "/workspaces/persistent/" .. workspace_key
end

function Sandbox:_create_resources(spec, id)
  self:_check_spec(spec)
  local path = self:_place(spec.durability, spec.workspace_key, id)
  return self._parts.Session.new {
    _parts = self._parts, id = id, workspace_path = path, _root = self._root, _spec_env = spec.env,
    _dir = assert(memory_files.make_dirs(self._root, self._root, path)),
  }
end

function Sandbox:_remove_at(path)
  local node, _, parent, name = memory_files.find(self._root, self._root, path)
  if node then parent.children[name] = nil end
end

function Sandbox:_destroy_resources(row, remove_workspace)
  if remove_workspace then
    self:_remove_at(self:_place(row.durability, row.workspace_key, row.id))
  end
end

function Sandbox:_remove_workspace(workspace_key)
  self:_remove_at(self:_place("persistent", workspace_key))
end

local function timeout_error(exec)
  local err = errors.SandboxExecTimeoutError("stopped at its deadline", {
    timeout_seconds = exec.request.timeout_seconds,
    stdout_len = exec.received.stdout, stderr_len = exec.received.stderr,
  })
  if exec.held then err:add_note("a process outside the group held the output") end
  return err
end

local function add_methods(class, methods)
  for name, method in pairs(methods) do
    class[name] = method
  end
  return class
end

---A sandbox of this provider, to be used inside virtual_time.run.
---@param change? fun(parts: table) changes its classes: Sandbox, Session, Handle, Exec, Process,
---programs, timeout_error
---@return sbx.ManagedSandbox
function M.new(change)
  local parts = { programs = memory_programs.new(), timeout_error = timeout_error }
  parts.Exec, parts.Process = memory_exec.classes()
  parts.Handle = add_methods({}, Handle)
  parts.Handle.__index = parts.Handle
  parts.Session = add_methods(kit.ManagedSandboxSession.extend("spec.MemorySession"), Session)
  parts.Sandbox = add_methods(kit.ManagedSandbox.extend("memory"), Sandbox)
  if change then change(parts) end
  local fields = { _root = memory_files.new(), _parts = parts }
  local sandbox = kit.ManagedSandbox.init(parts.Sandbox, fields, {
    settings = { exec_default_timeout_seconds = 300, reap_interval_seconds = 300 },
    now = virtual_time.now,
  })
  sandbox:bind_policy(policy.SandboxPolicy { isolation = "none" })
  return sandbox
end

return M
