-- SPDX-License-Identifier: MIT
--
-- Provider `local`: runs commands on the host, in a directory, with no isolation (SPEC L).
--
-- `require "sbx.providers.local"` registers it. What it cannot give (any isolation, a network
-- tighter than egress, caps) it refuses. A workspace is a directory below the settings' root:
-- `<root>/.ephemeral/<session id>` or, persistent, `<root>/<workspace_key>`; a key cannot start
-- with a dot, so the two never meet.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local settings = require "sbx.settings"
local sandboxes = require "sbx.sandboxes"
local ManagedSandbox = require("sbx.kit").ManagedSandbox
local Session = require "sbx.providers.local.session"
local workspaces = require "sbx.providers.local.workspaces"

---@class sbx.LocalSandbox : sbx.ManagedSandbox
---@field _workspaces sbx.LocalWorkspaces
---@field _base_path string PATH of the commands
local LocalSandbox = ManagedSandbox.extend("local")

LocalSandbox.settings = settings.provider("SANDBOX_LOCAL_", {
  { name = "root", env = "SANDBOX_LOCAL_ROOT", type = "path",
    description = "directory of the workspaces" },
  { name = "base_path", env = "SANDBOX_LOCAL_BASE_PATH", type = "string",
    default = "/usr/local/bin:/usr/bin:/bin", description = "PATH of the commands" },
})

---What the conformance suite has to know of it: a config's fields.
LocalSandbox.conformance = {
  image = "host",
  reject_specs = {
    { spec = { isolation = "container" }, why = "isolation container" },
    { spec = { isolation = "vm" }, why = "isolation vm" },
    { spec = { network = "none" }, why = "network none" },
    { spec = { network = "internal" }, why = "network internal" },
    { spec = { cpu = 1 }, why = "a cap on cpu" },
    { spec = { memory_mb = 64 }, why = "a cap on memory" },
  },
}

---@param options table `settings`; optional: `getenv`, and those of ManagedSandbox.init
---@return sbx.LocalSandbox
function LocalSandbox.new(options)
  return ManagedSandbox.init(LocalSandbox, {
    _workspaces = workspaces.new(options.settings.root, options.getenv or os.getenv),
    _base_path = options.settings.base_path,
  }, options)
end

local function check_spec(self, spec)
  if spec.isolation ~= "none" then
    self:_reject(("isolation %q: it runs commands on the host, isolation \"none\". Either allow "
      .. "that (TAI_MCP_SANDBOX_ISOLATION=none, or isolation = \"none\" in sandboxes.configure), "
      .. "or select a provider that isolates (TAI_MCP_SANDBOX=sbx.providers.docker)")
      :format(spec.isolation))
  end
  if spec.network ~= "egress" then
    self:_reject(("network %q: a command on the host has the host's network. Ask for "
      .. "network = \"egress\", or select a provider that isolates "
      .. "(TAI_MCP_SANDBOX=sbx.providers.docker)"):format(spec.network))
  end
  for _, cap in ipairs { "cpu", "memory_mb" } do
    if spec[cap] ~= nil then
      self:_reject(("%s: it cannot enforce a cap. Leave %s unset, or select a provider that can "
        .. "(TAI_MCP_SANDBOX=sbx.providers.docker)"):format(cap, cap))
    end
  end
end

local function new_session(self, id, root, spec_env)
  return Session.new {
    id = id,
    workspace_path = root:path(),
    _root = root,
    _base_env = { PATH = self._base_path, HOME = root:path() },
    _spec_env = spec_env,
  }
end

function LocalSandbox:_create_resources(spec, session_id)
  check_spec(self, spec)
  local owner = spec.labels["tai42.sandbox.owner"]
  if owner ~= self._owner and next(spec.env) ~= nil then
    self:_reject("env of a detached session: it is kept in the memory of the program that makes "
      .. "the session, and nowhere else. Give env with each exec")
  end
  local root = self._workspaces:create(spec, session_id, owner)
  return new_session(self, session_id, root, spec.env)
end

function LocalSandbox:_attach_resources(row)
  if row.has_env then
    errors.raise(errors.SandboxError(("session %s has an env, which only the program that made it "
      .. "knows: it can be used there alone"):format(row.id)))
  end
  return new_session(self, row.id, self._workspaces:open(row.workspace_path), {})
end

function LocalSandbox:_destroy_resources(what, remove_workspace)
  local session = self._sessions[what.id]
  if session then session:_close() end
  self._workspaces:remove(what, remove_workspace)
end

function LocalSandbox:_remove_workspace(workspace_key)
  self._workspaces:remove({ durability = "persistent", workspace_key = workspace_key }, true)
end

function LocalSandbox:_list_resources()
  return self._workspaces:list()
end

function LocalSandbox:_exclusively(fn)
  self._workspaces:exclusively(fn)
end

sandboxes.register_sandbox(LocalSandbox)

return LocalSandbox
