-- SPDX-License-Identifier: MIT
-- proves: X8, X16

local support = require "spec.support.sandbox"

describe("P27: a command that stops itself", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is killed at its deadline all the same, and only it was stopped", function()
    for _, script in ipairs { "kill -STOP 0; sleep 60", "kill -STOP $$; sleep 60" } do
      local seconds = support.timed(support.failure, "SandboxExecTimeoutError", session.exec,
        session, { "sh", "-c", script }, { timeout_seconds = 0.5 })
      assert.is_true(seconds < 2, seconds .. " s")
    end
    assert.equal(0, session:exec({ "true" }, { timeout_seconds = 30 }).exit_code)
  end)
end)
