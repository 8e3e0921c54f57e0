-- SPDX-License-Identifier: MIT
--
-- Sessions and processes: whose a session is, whether that owner still lives, and what to do with
-- what the dead have left (SPEC P5, P6).
--
-- An owner is a process's identity, or, for a session that outlives its maker, the shared ledger
-- itself. A claim (a session being made or ended, a workspace being removed) names the process at
-- work, so a claim of a dead process is anybody's. Where it cannot be told whether an owner lives,
-- it does.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local log = require "sbx.log"
local owner = require "_sbx.owner"
local task = require "sbx.task"

local M = {}

local LEDGER_PREFIX = "ledger:"
local LOOK_AGAIN_SECONDS = 0.02
local WAIT_SECONDS = 60
local REMOVAL_PREFIX = "removing:"

---The owner of sessions that outlive their maker.
---@param ledger sbx.Ledger a shared one
---@return string
function M.ledger_owner(ledger)
  return LEDGER_PREFIX .. ledger:identity()
end

---Whether another living process is making or ending the session.
function M.is_claimed_elsewhere(self, row)
  return row.claimed_by ~= nil and row.claimed_by ~= self._owner and owner.may_live(row.claimed_by)
end

---Whether reap may take an expired row: it is this provider's, and nobody is at work on it.
function M.is_reapable(self, row)
  return row.provider == self.provider_name and row.state ~= "creating" and row.state ~= "removing"
    and not M.is_claimed_elsewhere(self, row)
end

-- Looks again until done() says so.
local function wait_until(done, what)
  local looks = math.ceil(WAIT_SECONDS / LOOK_AGAIN_SECONDS)
  while not done() do
    looks = looks - 1
    if looks == 0 then
      errors.raise(errors.SandboxError(("another process has %s for more than %d s"):format(what,
        WAIT_SECONDS)))
    end
    task.sleep(LOOK_AGAIN_SECONDS)
  end
end

---Waits until the process that holds the claim is done with it, or dead.
function M.wait_for_change(self, row)
  wait_until(function()
    local now = self._ledger:get(row.id)
    return not now or now.state ~= row.state or now.claimed_by ~= row.claimed_by
      or not M.is_claimed_elsewhere(self, now)
  end, "been at work on session " .. row.id)
end

-- Removals of persistent workspaces are rows of their own.

local function removal_id(self, workspace_key)
  return REMOVAL_PREFIX .. self.provider_name .. ":" .. workspace_key
end

local function living_removal(self, workspace_key)
  local row = self._ledger:get(removal_id(self, workspace_key))
  if not row then return nil end
  if owner.may_live(row.owner) then return row end
  self._ledger:delete(row.id, row)
  return nil
end

function M.mark_removal(self, workspace_key)
  local now = self._now()
  local mark = {
    id = removal_id(self, workspace_key), provider = self.provider_name, image = "",
    workspace_key = workspace_key, durability = "persistent", created_at = now, expires_at = now,
    ttl_seconds = 1, labels = {}, has_env = false, state = "removing", owner = self._owner,
    claimed_by = self._owner, -- tells this mark from a dead process's under the same id
  }
  wait_until(function()
    return not living_removal(self, workspace_key) and self._ledger:insert(mark)
  end, "been removing workspace " .. workspace_key)
end

function M.unmark_removal(self, workspace_key)
  self._ledger:delete(removal_id(self, workspace_key))
end

---For a maker whose row is in the ledger: waits until nobody removes the workspace.
function M.wait_for_removal(self, workspace_key)
  wait_until(function() return not living_removal(self, workspace_key) end,
    "been removing workspace " .. workspace_key)
end

-- Recovery.

-- Whether a row was left by the dead: its maker or ender, or the process it belongs to.
local function is_left(self, row)
  if row.provider ~= self.provider_name then return false end
  if row.claimed_by and not owner.may_live(row.claimed_by) then return true end
  if M.is_claimed_elsewhere(self, row) then return false end
  return row.owner:sub(1, #LEDGER_PREFIX) ~= LEDGER_PREFIX and not owner.may_live(row.owner)
end

-- Whether a resource without a row in our ledger was left: by a dead process, or by our own ledger,
-- which has forgotten it.
local function is_unrecorded(self, resource)
  local whose = resource.owner
  if type(whose) ~= "string" then return false end
  if whose:sub(1, #LEDGER_PREFIX) == LEDGER_PREFIX then
    return self._ledger.shared and whose == M.ledger_owner(self._ledger)
  end
  return not owner.may_live(whose)
end

local function note(recovered, self, what)
  recovered[#recovered + 1] = {
    id = what.id, durability = what.durability, workspace_key = what.workspace_key,
  }
  self:_tell("session.recovered", what)
  log.info(("provider %s: recovered session %s (%s, workspace %s), left by a process that is gone")
    :format(self.provider_name, what.id, what.durability, what.workspace_key))
end

local function try(failures, self, what, fn)
  local ok, err = pcall(fn)
  if ok then return end
  if errors.is(err, "Cancelled") then error(err, 0) end
  failures[#failures + 1] = { id = what.id, error = err }
  log.warning(("provider %s: session %s could not be recovered: %s"):format(self.provider_name,
    what.id, tostring(err)))
end

local function recover_rows(self, recovered, failures)
  for _, row in ipairs(self._ledger:list()) do
    if row.state == "removing" then
      if not owner.may_live(row.owner) then self._ledger:delete(row.id, row) end
    elseif is_left(self, row) then
      try(failures, self, row, function()
        if self:_end_session(row, row.durability == "ephemeral") then note(recovered, self, row) end
      end)
    end
  end
end

-- What is still there when it is known to have no row: a teardown by another process takes the
-- resource away before the row, so that one it has just ended is not found here.
local function unrecorded_resources(self)
  local without_row, any = {}, false
  for _, resource in ipairs(self:_list_resources()) do
    if not self._ledger:get(resource.id) and is_unrecorded(self, resource) then
      without_row[resource.id], any = true, true
    end
  end
  local list = {}
  for _, resource in ipairs(any and self:_list_resources() or {}) do
    if without_row[resource.id] then list[#list + 1] = resource end
  end
  return list
end

local function recover_resources(self, recovered, failures)
  for _, resource in ipairs(unrecorded_resources(self)) do
    try(failures, self, resource, function()
      task.shield(self._destroy_resources, self, resource, resource.durability == "ephemeral")
      note(recovered, self, resource)
    end)
  end
end

---See Sandbox:recover.
function M.run(self)
  local recovered, failures = {}, {}
  recover_rows(self, recovered, failures)
  self:_exclusively(function() recover_resources(self, recovered, failures) end)
  return recovered, failures
end

return M
