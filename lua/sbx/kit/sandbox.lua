-- SPDX-License-Identifier: MIT
--
-- What every provider's sandbox does alike: the create chokepoint with its policy, the ledger, TTL,
-- reap and teardown (SPEC P1-P4, P9).
--
-- A provider's class extends this one and implements
--   _create_resources(spec, session_id) -> session    its own partial work undone when it raises
--   _destroy_resources(row, remove_workspace)         idempotent
--   _remove_workspace(workspace_key)                  of no live session
-- The order is what makes a failure safe: the row is there before the resources are, and goes after
-- they have gone. A teardown is shielded from cancels, so it is never left half done.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local ledger_memory = require "sbx.kit.ledger_memory"
local loop = require "sbx.loop"
local models = require "sbx.models"
local policy = require "sbx.policy"
local task = require "sbx.task"
local waits = require "sbx.waits"

---@class sbx.ManagedSandbox
---@field exec_default_timeout_seconds number
---@field reap_interval_seconds number
---@field _policy sbx.SandboxPolicy|nil
---@field _ledger sbx.Ledger
---@field _sessions table<string, sbx.ManagedSandboxSession>
---@field _ending table<string, sbx.Latch> sessions whose teardown is under way
---@field _removing table<string, sbx.Latch> keys whose persistent workspace is being removed
local Sandbox = {}
Sandbox.__index = Sandbox
Sandbox.__name = "sbx.Sandbox"

---Makes a provider's sandbox class.
---@param name string the provider's name, as shown to people
---@return table class
function Sandbox.extend(name)
  local class = { __name = "sbx." .. name, provider_name = name }
  class.__index = class
  class.__tostring = Sandbox.__tostring
  return setmetatable(class, { __index = Sandbox })
end

---For a provider's constructor: the kit's part of a new sandbox.
---@param class table
---@param fields table the provider's own fields
---@param options { settings: table, now: (fun(): number)?, ledger: sbx.Ledger? }
---@return sbx.ManagedSandbox
function Sandbox.init(class, fields, options)
  fields.exec_default_timeout_seconds = options.settings.exec_default_timeout_seconds
  fields.reap_interval_seconds = options.settings.reap_interval_seconds
  fields._now = options.now or loop.now
  fields._ledger = options.ledger or ledger_memory.new()
  fields._sessions = {}
  fields._ending = {}
  fields._removing = {}
  return setmetatable(fields, class)
end

function Sandbox:__tostring()
  return ("Sandbox(%s)"):format(self.provider_name)
end

---Binds the operator's policy; sessions are created under it (SPEC P2).
---@param bound sbx.SandboxPolicy
function Sandbox:bind_policy(bound)
  self._policy = bound
end

---For a provider: raises the refusal of a spec it cannot honour (SPEC P2).
---@param text string what is asked, what is given, and the ways out
function Sandbox:_reject(text)
  errors.raise(errors.SandboxSpecRejectedError(
    ("provider cannot honor: %s: %s"):format(self.provider_name, text)))
end

local function new_id()
  return "sbx-" .. loop.random(10):gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end)
end

local function kit_labels(spec, id)
  local labels = {}
  for key, value in pairs(spec.labels) do
    labels[key] = value
  end
  labels[policy.LABEL_NAMESPACE] = "1"
  labels[policy.LABEL_NAMESPACE .. ".workspace"] = spec.workspace_key
  labels[policy.LABEL_NAMESPACE .. ".durability"] = spec.durability
  labels[policy.LABEL_NAMESPACE .. ".session"] = id
  return labels
end

-- The spec a provider gets: the effective one, with the kit's labels (SPEC P3).
local function provider_spec(spec, id)
  local out = {}
  for key, value in pairs(spec) do
    out[key] = value
  end
  out.labels = kit_labels(spec, id)
  return out
end

---Creates a session, or rejects the spec (SPEC P2, P3, M1, M2).
---@param spec table the fields of a SandboxSessionSpec
---@return sbx.ManagedSandboxSession
---Raises SandboxValidationError, SandboxSpecRejectedError, SandboxError.
function Sandbox:create_session(spec)
  local effective = policy.enforce(self._policy, models.SandboxSessionSpec(spec))
  -- A workspace that is on its way out is not adopted.
  while effective.durability == "persistent" and self._removing[effective.workspace_key] do
    self._removing[effective.workspace_key]:wait()
  end
  local id = new_id()
  local now = self._now()
  self._ledger:insert {
    id = id,
    image = effective.image,
    workspace_key = effective.workspace_key,
    durability = effective.durability,
    created_at = now,
    expires_at = now + effective.ttl_seconds,
    ttl_seconds = effective.ttl_seconds,
    labels = effective.labels,
    state = "creating",
  }
  local ok, session = pcall(self._create_resources, self, provider_spec(effective, id), id)
  if not ok then
    self._ledger:delete(id)
    error(session, 0)
  end
  session._sandbox = self
  self._sessions[id] = session
  self._ledger:update(id, "creating", { state = "live", workspace_path = session.workspace_path })
  return session
end

local function not_found(id)
  errors.raise(errors.SandboxSessionNotFoundError(
    ("no live session has the id %s"):format(errors.quote(tostring(id))), { session_id = id }))
end

---@param session_id string
---@return sbx.ManagedSandboxSession
---Raises SandboxSessionNotFoundError.
function Sandbox:get_session(session_id)
  local session = self._sessions[session_id]
  if not session or session._gone then not_found(session_id) end
  return session
end

---@return sbx.SandboxSessionInfo[] of every live session, oldest first
function Sandbox:list_sessions()
  local infos = {}
  for _, row in ipairs(self._ledger:list()) do
    if row.state == "live" then infos[#infos + 1] = models.SandboxSessionInfo(row) end
  end
  return infos
end

function Sandbox:_info(id)
  local row = self._ledger:get(id)
  if not row then not_found(id) end
  return models.SandboxSessionInfo(row)
end

function Sandbox:_touch(id)
  local row = self._ledger:get(id)
  local expires_at = row and self._now() + row.ttl_seconds
  if not row or not self._ledger:update(id, "live", { expires_at = expires_at }) then
    not_found(id)
  end
end

-- Whether another session than `id` holds the persistent workspace.
local function held_by_other(self, workspace_key, id)
  for _, row in ipairs(self._ledger:list()) do
    if row.id ~= id and row.durability == "persistent" and row.workspace_key == workspace_key then
      return row
    end
  end
  return nil
end

local function check_unheld(self, workspace_key, id)
  local other = held_by_other(self, workspace_key, id)
  if other then
    errors.raise(errors.SandboxError(
      ("workspace %s is not removed: session %s holds it"):format(workspace_key, other.id)))
  end
end

-- Runs fn while a persistent workspace is marked as being removed; returns as pcall.
local function marked_as_removing(self, workspace_key, fn, ...)
  local latch = waits.latch()
  self._removing[workspace_key] = latch
  local ok, err = pcall(task.shield, fn, ...)
  if self._removing[workspace_key] == latch then self._removing[workspace_key] = nil end
  latch:open()
  return ok, err
end

local function tear_down(self, row, remove_workspace)
  local session = self._sessions[row.id]
  if session then
    session._gone = true
    session:_stop_handles()
  end
  self:_destroy_resources(row, remove_workspace)
  self._sessions[row.id] = nil
  self._ledger:delete(row.id)
end

---Tears a session down. Idempotent; a persistent workspace stays unless asked (SPEC P4).
---@param session_id string
---@param options? { remove_workspace: boolean? }
---Raises SandboxError when something of it would not go; the session then stays in the ledger.
function Sandbox:destroy_session(session_id, options)
  local remove_workspace = options ~= nil and options.remove_workspace == true
  if self._ending[session_id] then
    self._ending[session_id]:wait()
    return
  end
  local row = self._ledger:get(session_id)
  if not row then return end
  if row.durability == "ephemeral" then
    remove_workspace = true
  elseif remove_workspace then
    check_unheld(self, row.workspace_key, session_id)
  end
  if not self._ledger:update(session_id, row.state, { state = "destroying" }) then return end
  local latch = waits.latch()
  self._ending[session_id] = latch
  local ok, err
  if remove_workspace and row.durability == "persistent" then
    ok, err = marked_as_removing(self, row.workspace_key, tear_down, self, row, true)
  else
    ok, err = pcall(task.shield, tear_down, self, row, remove_workspace)
  end
  self._ending[session_id] = nil
  latch:open()
  if not ok then error(err, 0) end
end

---Removes a persistent workspace that no live session holds (SPEC P4).
---@param workspace_key string
---Raises SandboxError when a session holds it or it would not go.
function Sandbox:remove_workspace(workspace_key)
  models.workspace_key(workspace_key)
  check_unheld(self, workspace_key, nil)
  local ok, err = marked_as_removing(self, workspace_key, self._remove_workspace, self,
    workspace_key)
  if not ok then error(err, 0) end
end

---Destroys every expired session; persistent workspaces stay. One that fails to go does not stop
---the others and stays in the ledger (SPEC P4).
---@return string[] ids of the destroyed
---@return { id: string, error: any }[] failures
function Sandbox:reap()
  local ids, failures = {}, {}
  local now = self._now()
  for _, row in ipairs(self._ledger:list()) do
    if row.expires_at <= now and row.state ~= "creating" then
      local ok, err = pcall(self.destroy_session, self, row.id)
      if ok then
        ids[#ids + 1] = row.id
      elseif errors.is(err, "Cancelled") then
        error(err, 0)
      else
        failures[#failures + 1] = { id = row.id, error = err }
      end
    end
  end
  return ids, failures
end

return Sandbox
