-- SPDX-License-Identifier: MIT
--
-- The slot that holds the deployment's one provider, and the door every consumer takes to it
-- (SPEC P7, P9, O1).
--
-- A provider module registers its class when it is loaded; which module that is, the settings say.
-- The slot is also where the operator's policy is bound, so no sandbox can be had without one.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local policy = require "sbx.policy"
local settings = require "sbx.settings"

local M = {}

local configured = {} -- what configure() was given
local platform        -- resolved settings of the platform, once read
local slot            -- { class, sandbox }

local function platform_settings()
  if not platform then
    local explicit = {}
    for name, value in pairs(configured) do
      if name ~= "provider" then explicit[name] = value end
    end
    platform = settings.resolve(settings.platform, { explicit = explicit, getenv = os.getenv })
  end
  return platform
end

---Sets settings explicitly, before a provider is loaded. They outweigh the environment (SPEC O1).
---@param values table names of the platform's settings (sandbox_module, egress, isolation,
---scrub_transcript, durable), and `provider`, a table of the provider's own
---Raises SandboxValidationError for a bad value, SandboxError when a provider is loaded already.
function M.configure(values)
  if slot then
    errors.raise(errors.SandboxError("sandboxes.configure: a provider is registered already; "
      .. "settings are made before the first require_sandbox()"))
  end
  local before = configured
  configured, platform = {}, nil
  for name, value in pairs(values) do
    configured[name] = value
  end
  local ok, err = pcall(platform_settings)
  if not ok then
    configured, platform = before, nil
    error(err, 0)
  end
end

---The operator's policy, with or without a provider (SPEC P7).
---@return sbx.SandboxPolicy
---Raises SandboxValidationError for a bad setting.
function M.sandbox_policy()
  local values = platform_settings()
  return policy.SandboxPolicy {
    egress = values.egress,
    isolation = values.isolation,
    scrub_transcript = values.scrub_transcript,
    durable = values.durable,
  }
end

---Fills the slot. The same class again is fine (SPEC P7).
---@param class table a provider's class: `settings`, a schema, and `new(options)`
---Raises SandboxError for a second provider, SandboxValidationError for a bad setting.
function M.register_sandbox(class)
  if slot then
    if slot.class == class then return end
    errors.raise(errors.SandboxError(
      ("cannot register provider %s: the slot holds %s"):format(class.provider_name,
        slot.class.provider_name)))
  end
  local values = settings.resolve(class.settings,
    { explicit = configured.provider or {}, getenv = os.getenv })
  local sandbox = class.new { settings = values }
  sandbox:bind_policy(M.sandbox_policy())
  slot = { class = class, sandbox = sandbox }
end

local function unavailable(text)
  errors.raise(errors.SandboxUnavailableError(text .. ": set TAI_MCP_SANDBOX, or sandbox_module in "
    .. "the manifest or in sandboxes.configure, to a provider's module "
    .. "(sbx.providers.local, sbx.providers.docker)"))
end

---The one door to the sandbox. The first call loads the provider's module (SPEC P7).
---@return sbx.ManagedSandbox
---Raises SandboxUnavailableError when there is none, SandboxValidationError for a bad setting.
function M.require_sandbox()
  if slot then return slot.sandbox end
  local module = platform_settings().sandbox_module
  if not module then unavailable("no sandbox provider is registered") end
  local ok, err = pcall(require, module)
  if not ok then
    if errors.is(err, "Error") then error(err, 0) end
    unavailable(("the sandbox provider %s cannot be loaded: %s"):format(module, tostring(err)))
  end
  if not slot then unavailable(("the module %s registered no sandbox provider"):format(module)) end
  return slot.sandbox
end

return M
