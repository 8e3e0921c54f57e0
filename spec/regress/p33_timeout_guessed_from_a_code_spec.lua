-- SPDX-License-Identifier: MIT
-- proves: X4, X8

local support = require "spec.support.sandbox"

describe("P33: a timeout", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is only what our deadline did, whatever the code and the text say", function()
    local function code(script)
      return session:exec({ "sh", "-c", script }, { timeout_seconds = 30 }).exit_code
    end
    assert.equal(124, code("echo 'timed out after 5s' >&2; exit 124"))
    assert.equal(137, code("exit 137"))
    assert.equal(137, code("kill -9 $$"))
    assert.equal(143, code("kill -TERM $$"))
    assert.equal(0, code("exec sh -c 'exit 256'"))
    support.failure("SandboxExecTimeoutError", session.exec, session, { "sleep", "9" },
      { timeout_seconds = 0.2 })
  end)
end)
