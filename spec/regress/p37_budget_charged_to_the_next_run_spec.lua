-- SPDX-License-Identifier: MIT
-- proves: X8

local support = require "spec.support.sandbox"

describe("P37: runs after one that hit its limit", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("have the full limit", function()
    support.failure("SandboxExecTimeoutError", session.exec, session,
      support.child("spew", 100, "sleep", 9), { timeout_seconds = 0.8 })
    for _ = 1, 3 do
      local r = session:exec(support.child("spew", 10, "sleep", 0.4), { timeout_seconds = 0.8 + 2 })
      assert.equal(0, r.exit_code)
      assert.equal(10, #r.stdout)
    end
    local err = support.failure("SandboxExecTimeoutError", session.exec, session,
      support.child("spew", 7, "sleep", 9), { timeout_seconds = 0.5 })
    assert.equal(7, err.stdout_len)
  end)
end)
