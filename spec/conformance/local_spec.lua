-- SPDX-License-Identifier: MIT
-- proves: C1, C3, L1

local conformance = require "sbx.conformance"
local helper = require "spec.helper"
local policy = require "sbx.policy"
require "spec.support.sandbox" -- warms up what lives as long as the process

local function make_sandbox()
  local class = require "sbx.providers.local"
  local sandbox = class.new {
    settings = {
      root = helper.tmpdir(),
      base_path = "/usr/local/bin:/usr/bin:/bin",
      exec_default_timeout_seconds = 300,
      reap_interval_seconds = 300,
    },
  }
  sandbox:bind_policy(policy.SandboxPolicy { isolation = "none" })
  return sandbox
end

describe("provider local #slow", function()
  conformance.busted(describe, it, make_sandbox, {
    image = "host",
    timing_scale = tonumber(os.getenv("SBX_TIMING_SCALE")) or 0.6,
    reject_specs = {
      { spec = { isolation = "container" }, why = "isolation container" },
      { spec = { isolation = "vm" }, why = "isolation vm" },
      { spec = { network = "none" }, why = "network none" },
      { spec = { network = "internal" }, why = "network internal" },
      { spec = { cpu = 1 }, why = "a cap on cpu" },
      { spec = { memory_mb = 64 }, why = "a cap on memory" },
    },
  })
end)
