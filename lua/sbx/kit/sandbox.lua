-- SPDX-License-Identifier: MIT
--
-- What every provider's sandbox does alike: the create chokepoint with its policy, the ledger, TTL,
-- reap and teardown (SPEC P1-P5, P9).
--
-- A provider's class extends this one and implements
--   _create_resources(spec, session_id) -> session    its own partial work undone when it raises
--   _destroy_resources(row, remove_workspace)         idempotent
--   _remove_workspace(workspace_key)                  of no live session
--   _list_resources() -> list      what there is, with id, owner, durability, workspace_key
--   _attach_resources(row) -> session                 one that another process has made
-- The order is what makes a failure safe: the row is there before the resources are, and goes after
-- they have gone. A teardown is claimed in the ledger, so two processes never do it twice, and
-- shielded from cancels, so it is never left half done.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local events = require "sbx.events"
local ledger_memory = require "sbx.kit.ledger_memory"
local loop = require "sbx.loop"
local models = require "sbx.models"
local owner = require "_sbx.owner"
local policy = require "sbx.policy"
local recovery = require "sbx.kit.recovery"
local task = require "sbx.task"
local waits = require "sbx.waits"

---@class sbx.ManagedSandbox
---@field exec_default_timeout_seconds number
---@field reap_interval_seconds number
---@field _policy sbx.SandboxPolicy|nil
---@field _ledger sbx.Ledger
---@field _owner string identity of this process, for what it makes and claims
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

local function this_process()
  local text, name, why = owner.self()
  if text then return text end
  errors.raise(errors.SandboxError(
    ("cannot tell this process's identity: %s (%s)"):format(why, name)))
end

---For a provider's constructor: the kit's part of a new sandbox.
---@param class table
---@param fields table the provider's own fields
---@param options { settings: table, now: (fun(): number)?, ledger: sbx.Ledger?, owner: string? }
---@return sbx.ManagedSandbox
function Sandbox.init(class, fields, options)
  fields.exec_default_timeout_seconds = options.settings.exec_default_timeout_seconds
  fields.reap_interval_seconds = options.settings.reap_interval_seconds
  fields._now = options.now or loop.now
  fields._ledger = options.ledger or ledger_memory.new()
  fields._owner = options.owner or this_process()
  fields._sessions = {}
  fields._ending = {}
  fields._removing = {}
  return setmetatable(fields, class)
end

function Sandbox:__tostring()
  return ("Sandbox(%s)"):format(self.provider_name)
end

-- What a provider need not have: resources that outlive their process, sessions that others can
-- attach to, and a lock that keeps two processes from recovering at once.

function Sandbox:_list_resources() -- luacheck: ignore self
  return {}
end

function Sandbox:_exclusively(fn) -- luacheck: ignore self
  fn()
end

function Sandbox:_attach_resources(row)
  errors.raise(errors.SandboxError(("session %s can only be used by the process that made it: "
    .. "provider %s has no way to attach to it"):format(row.id, self.provider_name)))
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

local function kit_labels(spec, id, owner_text)
  local labels = {}
  for key, value in pairs(spec.labels) do
    labels[key] = value
  end
  labels[policy.LABEL_NAMESPACE] = "1"
  labels[policy.LABEL_NAMESPACE .. ".workspace"] = spec.workspace_key
  labels[policy.LABEL_NAMESPACE .. ".durability"] = spec.durability
  labels[policy.LABEL_NAMESPACE .. ".session"] = id
  labels[policy.LABEL_NAMESPACE .. ".owner"] = owner_text
  return labels
end

-- The spec a provider gets: the effective one, with the kit's labels (SPEC P3).
local function provider_spec(spec, id, owner_text)
  local out = {}
  for key, value in pairs(spec) do
    out[key] = value
  end
  out.labels = kit_labels(spec, id, owner_text)
  return out
end

local function not_found(id)
  errors.raise(errors.SandboxSessionNotFoundError(
    ("no live session has the id %s"):format(errors.quote(tostring(id))), { session_id = id }))
end

local CREATE_FLAGS = { detached = true }
local DESTROY_FLAGS = { remove_workspace = true }

-- Who a new session belongs to: this process, or, when it is to outlive it, the ledger.
local function owner_of(self, options)
  if not models.flags("create_session", options, CREATE_FLAGS).detached then return self._owner end
  if not self._ledger.shared then
    errors.raise(errors.SandboxError("a detached session outlives this program, which the ledger "
      .. "in memory does not: set SBX_LEDGER=sqlite"))
  end
  return recovery.ledger_owner(self._ledger)
end

local function new_row(self, spec, id, owner_text)
  local now = self._now()
  return {
    id = id,
    provider = self.provider_name,
    image = spec.image,
    workspace_key = spec.workspace_key,
    durability = spec.durability,
    created_at = now,
    expires_at = now + spec.ttl_seconds,
    ttl_seconds = spec.ttl_seconds,
    labels = spec.labels,
    has_env = next(spec.env) ~= nil,
    state = "creating",
    owner = owner_text,
    claimed_by = self._owner, -- until it is live: a maker that dies before is found by it
  }
end

-- Makes what the row stands for; a failure, or a row that somebody took away, leaves nothing.
local function make(self, spec, row)
  local session = self:_create_resources(provider_spec(spec, row.id, row.owner), row.id)
  session._sandbox = self
  self._sessions[row.id] = session
  local ok, recorded = pcall(self._ledger.update, self._ledger, row.id, "creating",
    { state = "live", workspace_path = session.workspace_path, claimed_by = false })
  if ok and recorded then
    self:_tell("session.created", row)
    return session
  end
  task.shield(self._destroy_resources, self, row, row.durability == "ephemeral")
  self._sessions[row.id] = nil
  if not ok then error(recorded, 0) end
  errors.raise(errors.SandboxError(("session %s was removed while it was made"):format(row.id)))
end

function Sandbox:_tell(name, row)
  events.emit(name, { session_id = row.id, provider = self.provider_name,
    workspace_key = row.workspace_key, durability = row.durability })
end

---Creates a session, or rejects the spec (SPEC P2, P3, M1, M2).
---@param spec table the fields of a SandboxSessionSpec
---@param options? { detached: boolean? } detached: the session outlives this program; others get it
---through a shared ledger
---@return sbx.ManagedSandboxSession
---Raises SandboxValidationError, SandboxSpecRejectedError, SandboxError.
function Sandbox:create_session(spec, options)
  task.check_usable()
  local effective = policy.enforce(self._policy, models.SandboxSessionSpec(spec))
  local row = new_row(self, effective, new_id(), owner_of(self, options))
  -- A workspace that is on its way out is not adopted.
  while effective.durability == "persistent" and self._removing[effective.workspace_key] do
    self._removing[effective.workspace_key]:wait()
  end
  assert(self._ledger:insert(row), "a session id was given out twice")
  local ok, session = pcall(function()
    if row.durability == "persistent" then recovery.wait_for_removal(self, row.workspace_key) end
    return make(self, effective, row)
  end)
  if ok then return session end
  self._ledger:delete(row.id)
  error(session, 0)
end

-- Whether a session this process knows is still there; with a shared ledger, others may end it.
function Sandbox:_is_live(id)
  if not self._ledger.shared then return true end
  local row = self._ledger:get(id)
  return row ~= nil and row.state == "live"
end

---A live session, of this process or, through a shared ledger, of another (SPEC P5, P9).
---@param session_id string
---@return sbx.ManagedSandboxSession
---Raises SandboxSessionNotFoundError, SandboxError.
function Sandbox:get_session(session_id)
  local session = self._sessions[session_id]
  if session then
    session:_check_live()
    return session
  end
  local row = self._ledger.shared and self._ledger:get(session_id)
  if not row or row.state ~= "live" or row.provider ~= self.provider_name then
    not_found(session_id)
  end
  session = self:_attach_resources(row)
  session._sandbox = self
  self._sessions[session_id] = session
  return session
end

-- Lets go of a session that another process has ended, as its end here would have.
function Sandbox:_let_go(session)
  session._gone = true
  self._sessions[session.id] = nil
  local ok, err = pcall(task.shield, session._stop_handles, session)
  session:_close()
  if not ok then error(err, 0) end
end

---@return sbx.SandboxSessionInfo[] of every live session, oldest first
function Sandbox:list_sessions()
  local infos = {}
  for _, row in ipairs(self._ledger:list()) do
    if row.state == "live" and row.provider == self.provider_name then
      infos[#infos + 1] = models.SandboxSessionInfo(row)
    end
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
    if row.id ~= id and row.provider == self.provider_name and row.durability == "persistent"
      and row.workspace_key == workspace_key and row.state ~= "removing" then
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

-- Runs fn while a persistent workspace is marked as being removed, for this process and for those
-- that share the ledger. The mark comes before the last look for holders, as a maker's row comes
-- before its look for marks: one of the two always sees the other.
local function remove_marked(self, workspace_key, id, fn)
  while self._removing[workspace_key] do self._removing[workspace_key]:wait() end
  local latch = waits.latch()
  self._removing[workspace_key] = latch
  local ok, err = pcall(task.shield, function()
    recovery.mark_removal(self, workspace_key)
    local done, why = pcall(function()
      check_unheld(self, workspace_key, id)
      fn()
    end)
    recovery.unmark_removal(self, workspace_key)
    if not done then error(why, 0) end
  end)
  self._removing[workspace_key] = nil
  latch:open()
  if not ok then error(err, 0) end
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
  self:_tell("session.destroyed", row)
end

-- Claims a session and tears it down, whatever its state. True when this call did it.
function Sandbox:_end_session(row, remove_workspace)
  if not self._ledger:claim(row.id, self._owner, row) then return false end
  local latch = waits.latch()
  self._ending[row.id] = latch
  local state = row.state -- what it stays when the teardown does not begin
  local function end_it()
    state = "destroying"
    tear_down(self, row, remove_workspace)
  end
  local ok, err
  if remove_workspace and row.durability == "persistent" then
    ok, err = pcall(remove_marked, self, row.workspace_key, row.id, end_it)
  else
    ok, err = pcall(task.shield, end_it)
  end
  if not ok then self._ledger:release(row.id, state) end
  self._ending[row.id] = nil
  latch:open()
  if not ok then error(err, 0) end
  return true
end

---Tears a session down. Idempotent; a persistent workspace stays unless asked (SPEC P4).
---@param session_id string
---@param options? { remove_workspace: boolean? }
---Raises SandboxError when something of it would not go; the session then stays in the ledger.
function Sandbox:destroy_session(session_id, options)
  models.session_id(session_id)
  local flags = models.flags("destroy_session", options, DESTROY_FLAGS)
  local remove_workspace = flags.remove_workspace == true
  while true do
    if self._ending[session_id] then
      self._ending[session_id]:wait()
      return
    end
    local row = self._ledger:get(session_id)
    if not row or row.state == "removing" then return end
    if row.provider ~= self.provider_name then
      errors.raise(errors.SandboxError(("session %s is one of provider %s, and this is provider %s")
        :format(session_id, row.provider, self.provider_name)))
    end
    if row.durability == "ephemeral" then
      remove_workspace = true
    elseif remove_workspace then
      check_unheld(self, row.workspace_key, session_id)
    end
    if recovery.is_claimed_elsewhere(self, row) then
      recovery.wait_for_change(self, row)
    elseif self:_end_session(row, remove_workspace) then
      return
    end
  end
end

---Removes a persistent workspace that no live session holds (SPEC P4).
---@param workspace_key string
---Raises SandboxError when a session holds it or it would not go.
function Sandbox:remove_workspace(workspace_key)
  models.workspace_key(workspace_key)
  check_unheld(self, workspace_key, nil)
  remove_marked(self, workspace_key, nil, function() self:_remove_workspace(workspace_key) end)
end

---Ends what processes that are gone have left: sessions, and resources without one. A live
---process's sessions are never touched (SPEC P6). Called when the provider is registered.
---@return { id: string, durability: string, workspace_key: string }[] what was recovered
---@return { id: string, error: any }[] failures
function Sandbox:recover()
  return recovery.run(self)
end

-- One that this process is ending already is waited for and not counted again.
function Sandbox:_reap_one(row)
  if self._ending[row.id] then
    self._ending[row.id]:wait()
    return false
  end
  return self:_end_session(row, row.durability == "ephemeral")
end

-- Our part of the sessions that other processes have ended.
local function let_go_of_ended(self, failures)
  local ended = {}
  for id, session in pairs(self._sessions) do
    if not session._gone and not self:_is_live(id) then ended[#ended + 1] = session end
  end
  for _, session in ipairs(ended) do
    local ok, err = pcall(self._let_go, self, session)
    if not ok then failures[#failures + 1] = { id = session.id, error = err } end
  end
end

---Destroys every expired session; persistent workspaces stay. One that fails to go does not stop
---the others and stays in the ledger (SPEC P4).
---@return string[] ids of the destroyed
---@return { id: string, error: any }[] failures
function Sandbox:reap()
  local ids, failures = {}, {}
  local now = self._now()
  for _, row in ipairs(self._ledger:list()) do
    if row.expires_at <= now and recovery.is_reapable(self, row) then
      local ok, ended = pcall(self._reap_one, self, row)
      local err = ended
      if ok then
        if ended then
          ids[#ids + 1] = row.id
          self:_tell("session.reaped", row)
        end
      elseif errors.is(err, "Cancelled") then
        error(err, 0)
      else
        failures[#failures + 1] = { id = row.id, error = err }
      end
    end
  end
  let_go_of_ended(self, failures)
  return ids, failures
end

return Sandbox
