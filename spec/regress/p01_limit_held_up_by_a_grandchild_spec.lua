-- SPDX-License-Identifier: MIT
-- proves: X8

local support = require "spec.support.sandbox"

describe("P01: a grandchild that holds the pipe", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("does not hold up the deadline, and goes too", function()
    local seconds, err = support.timed(support.failure, "SandboxExecTimeoutError", session.exec,
      session, { "sh", "-c", "echo $$ >pid; sleep 30 & echo hi; wait" }, { timeout_seconds = 1 })
    assert.is_true(seconds < 2.5, seconds .. " s")
    assert.equal(3, err.stdout_len)
    assert.same({}, support.group_members(support.read_pid(session, "pid")))
  end)
end)
