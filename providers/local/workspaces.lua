-- SPDX-License-Identifier: MIT
--
-- The directories of provider `local`: where they are, how they are made and removed (SPEC L2, L7).
--
--   <root>/<workspace_key>           a persistent workspace
--   <root>/.ephemeral/<session id>   an ephemeral one
--   <root>/.sessions/<session id>    a sidecar: what recovery needs to know of a session, as JSON
--
-- A sidecar is there before the workspace and goes after it, so a crash leaves no directory that
-- nobody knows of. The root is chosen when first needed: the setting's, else the system's, else,
-- for a user who cannot write there, one below the user's state directory. Whether a root can be
-- used is found out by using it.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local files = require "_sbx.files"
local json = require "sbx.json"
local log = require "sbx.log"
local task = require "sbx.task"

local M = {}

local SYSTEM_ROOT = "/var/lib/tai-sandbox-local"
local EPHEMERAL = ".ephemeral"
local SESSIONS = ".sessions"
local RECOVERY_LOCK = ".recovery.lock"
local UNFINISHED = "^%.sbx%-put%-" -- what the runtime calls a file that is being written
local SIDECAR_TRIES = 5
local LOCK_LOOK_AGAIN_SECONDS = 0.02
local DIR_MODE = tonumber("700", 8)
local NOT_OURS = { EACCES = true, EPERM = true, EROFS = true }

---@class sbx.LocalWorkspaces
local Workspaces = {}
Workspaces.__index = Workspaces

---@param root string|nil absolute path; nil: the default
---@param getenv fun(name: string): string|nil
---@return sbx.LocalWorkspaces
function M.new(root, getenv)
  return setmetatable({ _setting = root, _getenv = getenv }, Workspaces)
end

local function candidates(self)
  if self._setting then return { self._setting } end
  local list = { SYSTEM_ROOT }
  local state = self._getenv("XDG_STATE_HOME")
  local home = self._getenv("HOME")
  if not (state and state:sub(1, 1) == "/") then
    state = home and home:sub(1, 1) == "/" and home .. "/.local/state" or nil
  end
  if state then list[2] = state .. "/sbxlua/local" end
  return list
end

local function await(op, name, text)
  if op then return task.await(op) end
  return nil, name, text
end

local function path_error(doing, path, name, text)
  return errors.SandboxError(("cannot %s %s: %s (%s)"):format(doing, errors.quote(path, 200), text,
    name))
end

local function open_root(path)
  local root, name, text = files.open_root(path)
  if not root then
    errors.raise(errors.SandboxError(("cannot open the directory %s: %s (%s)"):format(
      errors.quote(path), text, name)))
  end
  return root
end

-- nil when there is no such directory or, if lenient, when it is not ours.
local function open_if_there(path, lenient)
  local root, name, text = files.open_root(path)
  if root or name == "ENOENT" or (lenient and NOT_OURS[name]) then return root end
  errors.raise(path_error("open the directory", path, name, text))
end

local function remove_entry(parent_path, entry, lenient)
  local parent = open_if_there(parent_path, lenient)
  if not parent then return end
  local ok, name, text = await(files.remove_tree(parent, entry))
  parent:close()
  if not ok then errors.raise(path_error("remove", parent_path .. "/" .. entry, name, text)) end
end

local function make_dirs(path)
  local ok, name, text = await(files.make_dirs(path, DIR_MODE))
  if not ok then errors.raise(path_error("make the directory", path, name, text)) end
end

-- Writes a session's sidecar below a root; true, or nil, errno name, text. A recovery may take it
-- for one that a dead process has not finished; then it is written again.
local function put_sidecar(root_path, session_id, text)
  local ok, name, why = await(files.make_dirs(root_path .. "/" .. SESSIONS, DIR_MODE))
  if not ok then return nil, name, why end
  local root = open_root(root_path)
  for _ = 1, SIDECAR_TRIES do
    ok, name, why = await(files.put(root, SESSIONS .. "/" .. session_id, text))
    if ok or name ~= "ENOENT" then break end
  end
  root:close()
  return ok, name, why
end

-- Writes the sidecar in the first root that takes it, which is the root from then on.
local function record(self, session_id, text)
  local list = self._root and { self._root } or candidates(self)
  for i, root in ipairs(list) do
    local ok, name, why = put_sidecar(root, session_id, text)
    if ok then
      self._root = root
      return
    end
    if i == #list or not NOT_OURS[name] then
      errors.raise(errors.SandboxError(("cannot use %s for workspaces: %s (%s); "
        .. "SANDBOX_LOCAL_ROOT names another directory"):format(errors.quote(root, 200), why,
          name)))
    end
  end
end

local function place(root, durability, workspace_key, session_id)
  if durability == "ephemeral" then return root .. "/" .. EPHEMERAL, session_id end
  return root, workspace_key
end

local function remove_in(root, what, with_workspace, lenient)
  if with_workspace then
    local parent, entry = place(root, what.durability, what.workspace_key, what.id)
    remove_entry(parent, entry, lenient)
  end
  if what.id then remove_entry(root .. "/" .. SESSIONS, what.id, lenient) end
end

---Makes an ephemeral workspace, or makes or adopts a persistent one. When it raises or is cancelled
---nothing new is left.
---@param spec table the provider's spec
---@param session_id string
---@param owner string whose the session is
---@return userdata root an open root of the runtime
---Raises SandboxError.
function Workspaces:create(spec, session_id, owner)
  local sidecar = json.encode {
    version = 1, id = session_id, owner = owner, durability = spec.durability,
    workspace_key = spec.workspace_key,
  }
  local ok, root = pcall(function()
    task.shield(record, self, session_id, sidecar)
    local parent, entry = place(self._root, spec.durability, spec.workspace_key, session_id)
    make_dirs(parent .. "/" .. entry)
    return open_root(parent .. "/" .. entry)
  end)
  if ok then return root end
  if self._root then
    local removed, err = pcall(task.shield, remove_in, self._root,
      { id = session_id, durability = spec.durability, workspace_key = spec.workspace_key },
      spec.durability == "ephemeral")
    if not removed and errors.is(root, "Error") then root:add_note(tostring(err)) end
  end
  error(root, 0)
end

---Opens the workspace of a session that another process made.
---@param path string
---@return userdata root
---Raises SandboxError.
function Workspaces.open(_, path)
  return open_root(path)
end

-- The root below which a recorded workspace is: another process may have had another one.
local function recorded_root(what)
  local parent = what.workspace_path and what.workspace_path:match("^(/.*)/[^/]+$")
  if parent and what.durability == "ephemeral" then parent = parent:match("^(.*)/[^/]+$") end
  return parent
end

---Forgets a session, and removes its workspace when asked. What is not there is fine.
---@param what { id: string|nil, durability: string, workspace_key: string, root: string|nil,
---workspace_path: string|nil }
---@param with_workspace boolean
---Raises SandboxError.
function Workspaces:remove(what, with_workspace)
  local known = what.root or recorded_root(what) or self._root
  for _, root in ipairs(known and { known } or candidates(self)) do
    remove_in(root, what, with_workspace, not known)
  end
end

local function read_sidecar(sessions, root_path, name)
  local op = files.get(sessions, name)
  local ok, errno, text = await(op)
  if not ok then
    if errno ~= "ENOENT" then
      log.warning(path_error("read the sidecar", root_path .. "/" .. SESSIONS .. "/" .. name, errno,
        text).message)
    end
    return nil
  end
  local decoded, sidecar = pcall(json.decode, files.data(op))
  if decoded and type(sidecar) == "table" and sidecar.version == 1 and sidecar.id == name
    and (sidecar.durability == "ephemeral" or sidecar.durability == "persistent")
    and type(sidecar.workspace_key) == "string" and type(sidecar.owner) == "string" then
    sidecar.root = root_path
    return sidecar
  end
  log.warning(("provider local: %s is no sidecar of this version, left as it is"):format(
    errors.quote(root_path .. "/" .. SESSIONS .. "/" .. name, 200)))
  return nil
end

---What the sidecars tell of: each with id, owner, durability, workspace_key and root. Those that
---were never finished are removed.
---@return table[]
function Workspaces:list()
  local found = {}
  for _, root_path in ipairs(candidates(self)) do
    local sessions = open_if_there(root_path .. "/" .. SESSIONS, true)
    local op = sessions and files.list(sessions, ".")
    if op and await(op) then
      for name in files.data(op):gmatch("%Z+") do
        if name:find(UNFINISHED) then
          await(files.remove_tree(sessions, name))
        elseif name:sub(1, 1) ~= "." then
          found[#found + 1] = read_sidecar(sessions, root_path, name)
        end
      end
    end
    if sessions then sessions:close() end
  end
  return found
end

---Runs fn while no other process recovers in the same roots.
---@param fn function
function Workspaces:exclusively(fn)
  local locks = {}
  local ok, err = pcall(function()
    for _, root_path in ipairs(candidates(self)) do
      local sessions = open_if_there(root_path .. "/" .. SESSIONS, true)
      while sessions do
        local lock, name, text = files.try_lock(sessions, RECOVERY_LOCK)
        if lock then
          locks[#locks + 1] = lock
          break
        end
        if NOT_OURS[name] then break end
        if name ~= "EAGAIN" then
          errors.raise(path_error("lock the directory", root_path .. "/" .. SESSIONS, name, text))
        end
        task.sleep(LOCK_LOOK_AGAIN_SECONDS)
      end
      if sessions then sessions:close() end
    end
    fn()
  end)
  for _, lock in ipairs(locks) do
    lock:close()
  end
  if not ok then error(err, 0) end
end

return M
