-- SPDX-License-Identifier: MIT
--
-- A provider in memory, for what the kit does alike for all. It records what it is asked and can be
-- told to fail or to take its time.

local errors = require "sbx.errors"
local kit = require "sbx.kit"
local policy = require "sbx.policy"
local sbx = require "sbx"

local M = {}

local Fake = kit.ManagedSandbox.extend("fake")
Fake.settings = require("sbx.settings").provider("SANDBOX_FAKE_")
local Session = kit.ManagedSandboxSession.extend("spec.FakeSession")

---@param options { now: function?, ledger: table?, policy: table?, settings: table? }
function Fake.new(options)
  return kit.ManagedSandbox.init(Fake, {
    created = {}, -- specs, in order
    destroyed = {}, -- ids, in order
    workspaces = {}, -- persistent, by key
    removed = {}, -- keys, in order
    fail_create = nil, fail_destroy = {}, -- what to raise
    pause_seconds = nil,
  }, options)
end

function Fake:_create_resources(spec, id)
  if self.pause_seconds then sbx.sleep(self.pause_seconds) end
  if self.fail_create then error(self.fail_create, 0) end
  self.created[#self.created + 1] = spec
  if spec.durability == "persistent" then self.workspaces[spec.workspace_key] = true end
  return Session.new { id = id, workspace_path = "/fake/" .. id, sandbox = self, files = {} }
end

function Fake:_destroy_resources(row, remove_workspace)
  if self.pause_seconds then sbx.sleep(self.pause_seconds) end
  if self.fail_destroy[row.id] then error(self.fail_destroy[row.id], 0) end
  self.destroyed[#self.destroyed + 1] = row.id
  if remove_workspace and row.durability == "persistent" then self:_remove(row.workspace_key) end
end

function Fake:_remove(key)
  self.removed[#self.removed + 1] = key
  self.workspaces[key] = nil
end

function Fake:_remove_workspace(key)
  if self.pause_seconds then sbx.sleep(self.pause_seconds) end
  self:_remove(key)
end

function Session:_start_exec(request)
  self.last_request = request
  return nil, "start", "EAGAIN", "as told"
end

function Session:_put_file(path, data) self.files[path] = data end

function Session:_get_file(path)
  if not self.files[path] then
    errors.raise(errors.SandboxFileNotFoundError("none", { path = path }))
  end
  return self.files[path]
end

M.class = Fake

---A sandbox with the policy bound.
function M.new(options)
  options = options or {}
  options.settings = options.settings
    or { exec_default_timeout_seconds = 30, reap_interval_seconds = 60 }
  local sandbox = Fake.new(options)
  if options.policy ~= false then
    sandbox:bind_policy(policy.SandboxPolicy(options.policy or {}))
  end
  return sandbox
end

---Fields of a spec that a default policy takes.
function M.spec(changes)
  local spec = { image = "i", workspace_key = "k", durability = "ephemeral", ttl_seconds = 100 }
  for name, value in pairs(changes or {}) do spec[name] = value end
  return spec
end

return M
