-- SPDX-License-Identifier: MIT
--
-- Doubles that break what a provider owes about sessions, workspaces and refusals (see
-- spec.support.doubles).

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local models = require "sbx.models"
local task = require "sbx.task"
local tools = require "spec.support.doubles.tools"

local double, wrap, raise = tools.double, tools.wrap, tools.raise

local function copy(map)
  local out = {}
  for key, value in pairs(map) do
    out[key] = value
  end
  return out
end

-- Changes what info() and list_sessions() give.
local function change_info(parts, fn)
  wrap(parts.Sandbox, "_info", function(original, self, id)
    local info = copy(original(self, id))
    fn(info)
    return info
  end)
end

-- Lifecycle.

double("lifecycle.get_session", "get_session knows no session", function(parts)
  function parts.Sandbox.get_session(_, id)
    errors.raise(errors.SandboxSessionNotFoundError("not known", { session_id = id }))
  end
end)

double("lifecycle.unknown_session", "an unknown id is a plain error", function(parts)
  wrap(parts.Sandbox, "get_session", function(original, self, id)
    if id == "no-such-session" then raise("no such session") end
    return original(self, id)
  end)
end)

double("lifecycle.list_sessions", "the list ends after one", function(parts)
  wrap(parts.Sandbox, "list_sessions", function(original, self)
    return { original(self)[1] }
  end)
end)

double("lifecycle.list_sessions", "a session is listed twice", function(parts)
  wrap(parts.Sandbox, "list_sessions", function(original, self)
    local infos = original(self)
    infos[#infos + 1] = infos[1]
    return infos
  end)
end)

double("lifecycle.info", "info() has another image", function(parts)
  change_info(parts, function(info) info.image = "other" end)
end)

double("lifecycle.info", "info() tells milliseconds", function(parts)
  change_info(parts, function(info) info.created_at = info.created_at * 1000 end)
end)

double("lifecycle.workspace_path", "a command starts elsewhere", function(parts)
  local program = parts.programs.write_here
  function parts.programs.write_here(process, arguments)
    process.dir = process.dir.parent
    return program(process, arguments)
  end
end)

double("lifecycle.workspace_path", "info() has another path", function(parts)
  change_info(parts, function(info) info.workspace_path = "/workspace" end)
end)

double("lifecycle.labels", "the kit's labels are shown", function(parts)
  change_info(parts, function(info) info.labels["tai42.sandbox"] = "1" end)
end)

double("lifecycle.labels", "a label is lost", function(parts)
  change_info(parts, function(info) info.labels.team = nil end)
end)

double("lifecycle.defaults", "no reap_interval_seconds", function(parts)
  wrap(parts.Sandbox, "bind_policy", function(original, self, bound)
    self.reap_interval_seconds = nil
    return original(self, bound)
  end)
end)

double("lifecycle.invalid_spec", "an unknown field is ignored", function(parts)
  wrap(parts.Sandbox, "create_session", function(original, self, spec)
    spec = copy(spec)
    spec.colour = nil
    return original(self, spec)
  end)
end)

double("lifecycle.cancelled_create", "a cancelled create leaves its session", function(parts)
  wrap(parts.Sandbox, "create_session", function(original, self, spec)
    local session = original(self, spec)
    task.sleep(0.2)
    return session
  end)
end)

double("lifecycle.destroyed_session", "info() still answers", function(parts)
  function parts.Session:info()
    return models.SandboxSessionInfo { id = self.id, labels = {} }
  end
  wrap(parts.Session, "info", function(stale, self)
    if self._gone then return stale(self) end
    return self._sandbox:_info(self.id)
  end)
end)

double("lifecycle.destroyed_session", "a command in it is a plain error", function(parts)
  wrap(parts.Session, "exec", function(original, self, ...)
    if self._gone then raise("the session is closed") end
    return original(self, ...)
  end)
end)

double("lifecycle.destroy_again", "the second destroy() raises", function(parts)
  wrap(parts.Session, "destroy", function(original, self, options)
    if self._gone then raise("it is destroyed already") end
    return original(self, options)
  end)
end)

double("lifecycle.destroy_ends_output", "the handles are forgotten", function(parts)
  function parts.Session._stop_handles() end
end)

double("lifecycle.touch", "touch() does nothing", function(parts)
  function parts.Sandbox._touch() end
end)

double("lifecycle.touch", "touch() moves only what is shown", function(parts)
  wrap(parts.Sandbox, "_touch", function(_, self, id)
    self.shown = self.shown or {}
    self.shown[id] = self._ledger:get(id).ttl_seconds + self._now()
  end)
  wrap(parts.Sandbox, "_info", function(original, self, id)
    local info = copy(original(self, id))
    info.expires_at = self.shown and self.shown[id] or info.expires_at
    return info
  end)
end)

double("lifecycle.reap", "the ids are not returned", function(parts)
  wrap(parts.Sandbox, "reap", function(original, self)
    original(self)
    return {}, {}
  end)
end)

double("lifecycle.reap", "an expired session is told, and stays", function(parts)
  function parts.Sandbox:reap()
    local ids = {}
    for _, row in ipairs(self._ledger:list()) do
      if row.expires_at <= self._now() then
        ids[#ids + 1] = row.id
        if row.durability == "persistent" then self:destroy_session(row.id) end
      end
    end
    return ids, {}
  end
end)

double("lifecycle.reap", "only the first that expired goes", function(parts)
  function parts.Sandbox:reap()
    for _, row in ipairs(self._ledger:list()) do
      if row.expires_at <= self._now() then
        self:destroy_session(row.id)
        return { row.id }, {}
      end
    end
    return {}, {}
  end
end)

double("lifecycle.reap_keeps_workspace", "the reap removes persistent workspaces", function(parts)
  wrap(parts.Sandbox, "reap", function(original, self)
    wrap(self, "_destroy_resources", function(destroy, sandbox, row)
      destroy(sandbox, row, true)
    end)
    local ids, failures = original(self)
    self._destroy_resources = nil
    return ids, failures
  end)
end)

double("lifecycle.destroy_keeps_workspace", "destroy() removes a persistent workspace",
  function(parts)
    wrap(parts.Session, "destroy", function(original, self, options)
      local row = self._sandbox._ledger:get(self.id)
      original(self, options)
      if row and row.durability == "persistent" then
        self._sandbox:_destroy_resources(row, true)
      end
    end)
  end)

double("lifecycle.held_workspace", "a held workspace is removed", function(parts)
  function parts.Sandbox:remove_workspace(workspace_key)
    self:_remove_workspace(workspace_key)
  end
end)

double("lifecycle.held_workspace", "the session whose removal is refused is gone", function(parts)
  wrap(parts.Session, "destroy", function(original, self, options)
    local ok, err = pcall(original, self, options)
    if not ok then
      original(self)
      error(err, 0)
    end
  end)
end)

double("lifecycle.remove_workspace", "remove_workspace is not looked at", function(parts)
  wrap(parts.Session, "destroy", function(original, self, options)
    if options and #self._sandbox:list_sessions() > 1 then return original(self, options) end
    return original(self)
  end)
end)

double("lifecycle.ephemeral_workspace", "ephemeral sessions of a key share a workspace",
  function(parts)
    function parts.Sandbox._place(_, durability, workspace_key)
      return "/workspaces/" .. durability .. "/" .. workspace_key
    end
  end)

double("lifecycle.ephemeral_workspace", "an ephemeral workspace stays", function(parts)
  wrap(parts.Sandbox, "_place", function(original, self, durability, workspace_key, id)
    if durability == "persistent" then return original(self, durability, workspace_key, id) end
    self.places = self.places or {}
    local mine = self.places[id]
    if not mine then
      -- The place of a session of the same key that is gone is used again.
      local kind = "/workspaces/" .. durability .. "/" .. workspace_key
      for other, place in pairs(self.places) do
        if place == kind and not self._ledger:get(other) then mine = kind end
      end
      mine = mine or (self.used and self.used[kind] and kind .. id or kind)
      self.used = self.used or {}
      self.used[kind] = true
      self.places[id] = mine
    end
    return mine
  end)
  function parts.Sandbox:_destroy_resources(row, remove_workspace)
    if row.durability == "persistent" and remove_workspace then
      self:_remove_at(self:_place(row.durability, row.workspace_key, row.id))
    end
  end
end)

double("lifecycle.nothing_is_left", "some destroyed sessions stay in the list", function(parts)
  local ghosts = {}
  wrap(parts.Sandbox, "destroy_session", function(original, self, id, options)
    local row = self._ledger:get(id)
    if row and row.durability == "persistent" then ghosts[#ghosts + 1] = self:_info(id) end
    return original(self, id, options)
  end)
  wrap(parts.Sandbox, "list_sessions", function(original, self)
    local infos = original(self)
    for _, info in ipairs(ghosts) do
      infos[#infos + 1] = info
    end
    return infos
  end)
end)

-- Policy.

-- Loosens the policy for one violation, and goes on with a tamer spec.
local function downgrade(parts, field, value)
  wrap(parts.Sandbox, "create_session", function(original, self, spec)
    local ok, result = pcall(original, self, spec)
    if ok or not errors.is(result, "SandboxSpecRejectedError")
      or not result.message:find(field, 1, true) then
      if ok then return result end
      error(result, 0)
    end
    spec = copy(spec)
    spec[field] = value
    return original(self, spec)
  end)
end

double("policy.network_ceiling", "a network above the ceiling is made tighter", function(parts)
  downgrade(parts, "network", "none")
end)

double("policy.isolation_floor", "an isolation below the floor is given", function(parts)
  wrap(parts.Sandbox, "create_session", function(original, self, spec)
    local bound = self._policy
    if bound.isolation == "vm" then
      self:bind_policy(require("sbx.policy").SandboxPolicy { isolation = "none" })
    end
    local ok, result = pcall(original, self, spec)
    self._policy = bound
    if not ok then error(result, 0) end
    return result
  end)
end)

double("policy.durable_off", "persistent becomes ephemeral", function(parts)
  downgrade(parts, "durability", "ephemeral")
end)

double("policy.reserved_labels", "reserved labels are dropped", function(parts)
  downgrade(parts, "labels", {})
end)

double("policy.unhonoured_spec", "a cap is not enforced", function(parts)
  function parts.Sandbox:_check_spec(spec)
    if spec.isolation == "vm" then self:_reject("isolation vm") end
    if spec.cpu and spec.cpu > 64 then self:_reject("cpu above 64") end
  end
end)

double("policy.unhonoured_spec", "the refusal does not say whose it is", function(parts)
  function parts.Sandbox._reject(_, text)
    errors.raise(errors.SandboxSpecRejectedError(text))
  end
end)
