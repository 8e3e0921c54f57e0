-- SPDX-License-Identifier: MIT
--
-- The slot that holds the deployment's one provider, and the door every consumer takes to it
-- (SPEC P5-P9, O1, O2).
--
-- A provider module registers its class when it is loaded; which module that is, the settings say.
-- The slot is also where the operator's policy is bound, the ledger chosen, the dead's sessions
-- recovered and the reap loop started, so no sandbox can be had without any of them.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local log = require "sbx.log"
local policy = require "sbx.policy"
local settings = require "sbx.settings"
local task = require "sbx.task"

local M = {}

local configured = {} -- what configure() was given
local manifest        -- what the manifest named there says
local platform        -- resolved settings of the platform, once read
local slot            -- { class, sandbox }

local function platform_settings()
  if not platform then
    local explicit = {}
    for name, value in pairs(configured) do
      if name ~= "provider" and name ~= "manifest" then explicit[name] = value end
    end
    platform = settings.resolve(settings.platform,
      { explicit = explicit, getenv = os.getenv, manifest = manifest })
  end
  return platform
end

local function load_manifest(path)
  if path == nil then return nil end
  if type(path) ~= "string" then
    errors.raise(errors.validation_error("settings", {
      { path = "manifest", message = "must be a path, got a " .. type(path) },
    }))
  end
  return require("sbx.manifest").load(path)
end

---Sets settings explicitly, before a provider is loaded. They outweigh the environment, and that a
---manifest (SPEC O1).
---@param values table names of the platform's settings (sandbox_module, egress, isolation,
---scrub_transcript, durable, ledger); `provider`, a table of the provider's own; `manifest`, the
---path of a manifest
---Raises SandboxValidationError for a bad value, SandboxError when a provider is loaded already.
function M.configure(values)
  if slot then
    errors.raise(errors.SandboxError("sandboxes.configure: a provider is registered already; "
      .. "settings are made before the first require_sandbox()"))
  end
  local before, manifest_before = configured, manifest
  local ok, err = pcall(function()
    configured, platform = {}, nil
    for name, value in pairs(values) do
      configured[name] = value
    end
    manifest = load_manifest(configured.manifest)
    platform_settings()
  end)
  if not ok then
    configured, manifest, platform = before, manifest_before, nil
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

local function state_home()
  local state = os.getenv("XDG_STATE_HOME")
  if state and state:sub(1, 1) == "/" then return state end
  local home = os.getenv("HOME")
  if home and home:sub(1, 1) == "/" then return home .. "/.local/state" end
  errors.raise(errors.SandboxError("there is no place for the ledger: neither XDG_STATE_HOME nor "
    .. "HOME names an absolute directory; SBX_LEDGER=sqlite:PATH names a file"))
end

-- nil: each sandbox has one of its own, in memory.
local function open_ledger(setting)
  if setting == nil or setting == "memory" then return nil end
  local path = setting:match("^sqlite:(.+)$") or state_home() .. "/sbxlua/ledger.db"
  return require("sbx.kit.ledger_sqlite").new(path)
end

-- One round of the reap loop; a round that fails is told, and the next one still comes.
local function reap_round(sandbox)
  local ok, ids, failures = pcall(sandbox.reap, sandbox)
  if not ok then
    if errors.is(ids, "Cancelled") then error(ids, 0) end
    log.warning("reaping expired sessions failed: " .. tostring(ids))
    return
  end
  for _, failure in ipairs(failures) do
    log.warning(("expired session %s could not be destroyed: %s"):format(failure.id,
      tostring(failure.error)))
  end
end

-- SPEC P8.
local function start_reap_loop(sandbox)
  task.in_background(function()
    while true do
      task.sleep(sandbox.reap_interval_seconds, true)
      reap_round(sandbox)
    end
  end)
end

---Fills the slot: makes the sandbox, binds the policy, recovers what dead processes have left, and
---starts the reap loop. The same class again is fine (SPEC P6-P8).
---@param class table a provider's class: `settings`, a schema, and `new(options)`
---Raises SandboxError for a second provider, SandboxValidationError for a bad setting.
function M.register_sandbox(class)
  if slot then
    if slot.class == class then return end
    errors.raise(errors.SandboxError(
      ("cannot register provider %s: the slot holds %s"):format(class.provider_name,
        slot.class.provider_name)))
  end
  local values = settings.resolve(class.settings, {
    explicit = configured.provider or {}, getenv = os.getenv,
    manifest = manifest and manifest.provider, manifest_name = "provider",
  })
  local sandbox = class.new { settings = values, ledger = open_ledger(platform_settings().ledger) }
  sandbox:bind_policy(M.sandbox_policy())
  sandbox:recover()
  slot = { class = class, sandbox = sandbox }
  start_reap_loop(sandbox)
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
