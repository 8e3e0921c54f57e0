-- SPDX-License-Identifier: MIT
-- proves: X8, X13

local support = require "spec.support.sandbox"

describe("P36: the limit that is given", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is the one that is kept, by both calls", function()
    for _, limit in ipairs { 0.3, 1.2 } do
      local seconds, err = support.timed(support.failure, "SandboxExecTimeoutError", session.exec,
        session, { "sleep", "9" }, { timeout_seconds = limit })
      assert.equal(limit, err.timeout_seconds)
      assert.is_true(seconds >= limit and seconds < limit + 1, seconds .. " s")
      local handle = session:exec_start({ "sleep", "9" }, { timeout_seconds = limit })
      seconds, err = support.timed(support.failure, "SandboxExecTimeoutError", support.collect,
        handle)
      assert.equal(limit, err.timeout_seconds)
      assert.is_true(seconds >= limit - 0.1 and seconds < limit + 1, seconds .. " s")
      handle:kill()
    end
  end)

  it("has no hidden cap: the longest still runs", function()
    for _, limit in ipairs { 31, 3600, 2 ^ 31 / 1000, 2 ^ 32 / 1000 + 1, 2 ^ 31, 1e15 } do
      local r = session:exec({ "sleep", "0.1" }, { timeout_seconds = limit })
      assert.equal(0, r.exit_code)
    end
  end)
end)
