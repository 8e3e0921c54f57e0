-- SPDX-License-Identifier: MIT
--
-- The directories of provider `local`: where they are, how they are made and removed (SPEC L2, L7).
--
-- The root is chosen when first needed: the setting's, else the system's, else, for a user who
-- cannot write there, one below the user's state directory. Whether a root can be used is found out
-- by making a directory in it, which is what it is for.

local errors = require "sbx.errors"
local files = require "_sbx.files"
local loop = require "sbx.loop"
local task = require "sbx.task"

local M = {}

local SYSTEM_ROOT = "/var/lib/tai-sandbox-local"
local EPHEMERAL = ".ephemeral"
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

local function open_root(path)
  local root, name, text = files.open_root(path)
  if not root then
    errors.raise(errors.SandboxError(("cannot open the directory %s: %s (%s)"):format(
      errors.quote(path), text, name)))
  end
  return root
end

local function remove_entry(parent_path, entry)
  local parent = open_root(parent_path)
  local ok, name, text = await(files.remove_tree(parent, entry))
  parent:close()
  if not ok then
    errors.raise(errors.SandboxError(("cannot remove the workspace %s: %s (%s)"):format(
      errors.quote(parent_path .. "/" .. entry), text, name)))
  end
end

-- true, or nil, errno name, text.
local function probe(root)
  local entry = (".probe-" .. loop.random(6)):gsub("[%z\1-\31/\127-\255]", function(byte)
    return ("%02x"):format(byte:byte())
  end)
  local ephemeral = root .. "/" .. EPHEMERAL
  local ok, name, text = await(files.make_dirs(ephemeral .. "/" .. entry, DIR_MODE))
  if ok then remove_entry(ephemeral, entry) end
  return ok, name, text
end

-- The root's path, found once.
local function root_path(self)
  if self._root then return self._root end
  local list = candidates(self)
  for i, root in ipairs(list) do
    local ok, name, text = task.shield(probe, root) -- a cancel must not leave its directory
    if ok then
      self._root = root
      return root
    end
    if i == #list or not NOT_OURS[name] then
      errors.raise(errors.SandboxError(("cannot use %s for workspaces: %s (%s); "
        .. "SANDBOX_LOCAL_ROOT names another directory"):format(errors.quote(root), text, name)))
    end
  end
end

local function place(self, durability, workspace_key, session_id)
  if durability == "ephemeral" then return root_path(self) .. "/" .. EPHEMERAL, session_id end
  return root_path(self), workspace_key
end

---Makes an ephemeral workspace, or makes or adopts a persistent one. When it raises or is cancelled
---a new ephemeral directory is gone again.
---@return userdata root an open root of the runtime
---Raises SandboxError.
function Workspaces:create(durability, workspace_key, session_id)
  local parent, entry = place(self, durability, workspace_key, session_id)
  local ok, root = pcall(function()
    local made, name, text = await(files.make_dirs(parent .. "/" .. entry, DIR_MODE))
    if not made then
      errors.raise(errors.SandboxError(("cannot make the workspace %s: %s (%s)"):format(
        errors.quote(parent .. "/" .. entry), text, name)))
    end
    return open_root(parent .. "/" .. entry)
  end)
  if ok then return root end
  if durability == "ephemeral" then
    local removed, err = pcall(task.shield, remove_entry, parent, entry)
    if not removed and errors.is(root, "Error") then root:add_note(tostring(err)) end
  end
  error(root, 0)
end

---Removes a workspace with all that is in it. One that is not there is fine.
---Raises SandboxError.
function Workspaces:remove(durability, workspace_key, session_id)
  remove_entry(place(self, durability, workspace_key, session_id))
end

return M
