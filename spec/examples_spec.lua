-- SPDX-License-Identifier: MIT
-- proves: A1, A2, L2
-- Every example runs as a newcomer would run it.

local helper = require "spec.helper"

local function run(example, environment)
  return helper.run(("env SANDBOX_LOCAL_ROOT=%s %s %s examples/%s 2>&1"):format(
    helper.tmpdir(), environment or "", helper.sbxlua(), example))
end

describe("examples/", function()
  it("quickstart.lua counts this source tree and leaves nothing", function()
    local output, status = run("quickstart.lua")
    assert.same(0, status, output)
    assert.truthy(output:find("Lua%s+%d+%s+%d+"), output)
    assert.truthy(output:find("deadline   stopped after 0.5 s", 1, true), output)
    assert.truthy(output:find("workspace directory: gone", 1, true), output)
  end)

  it("custom_provider.lua passes the conformance suite #slow", function()
    local output, status = run("custom_provider.lua", "SBX_TIMING_SCALE=0.4")
    assert.same(0, status, output)
  end)
end)
