-- SPDX-License-Identifier: MIT
-- proves: X8, X18

local support = require "spec.support.sandbox"

describe("P02: a background child that holds the pipe", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local command = { "sh", "-c", "sleep 10 & exit 3" }

  it("is waited for up to the deadline, which then stops it", function()
    local seconds, err = support.timed(support.failure, "SandboxExecTimeoutError", session.exec,
      session, command, { timeout_seconds = 0.7 })
    assert.is_true(seconds < 2, seconds .. " s")
    assert.same({}, err.notes)
  end)

  it("is not waited for with wait = exit, and runs on", function()
    local seconds, r = support.timed(session.exec, session,
      { "sh", "-c", "sleep 1.2 & echo $! >pid; exit 3" }, { timeout_seconds = 20, wait = "exit" })
    assert.equal(3, r.exit_code)
    assert.is_true(seconds < 1, seconds .. " s")
    local pid = support.read_pid(session, "pid")
    assert.is_true(support.is_alive(pid))
    support.assert_gone(pid, 5)
  end)
end)
