-- SPDX-License-Identifier: MIT
-- proves: X16

local support = require "spec.support.sandbox"
local uv = require "luv"

describe("P26: members that ignore TERM", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local command = { "sh", "-c", "echo $$ >pid; (trap '' TERM; sleep 60; sleep 60) & exec sleep 60" }

  it("are gone after a deadline, and after a kill", function()
    local seconds = support.timed(support.failure, "SandboxExecTimeoutError", session.exec, session,
      command, { timeout_seconds = 0.6 })
    assert.is_true(seconds < 2, seconds .. " s")
    assert.same({}, support.group_members(support.read_pid(session, "pid")))
    local handle = session:exec_start(command, { timeout_seconds = 60 })
    uv.sleep(150)
    local pid = support.read_pid(session, "pid")
    handle:kill()
    assert.same({}, support.group_members(pid))
  end)
end)
