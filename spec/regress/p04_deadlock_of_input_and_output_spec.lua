-- SPDX-License-Identifier: MIT
-- proves: X6, X8

local support = require "spec.support.sandbox"

describe("P04: output that comes before the input is read", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local data = ("x"):rep(4 * 1024 * 1024)

  it("does not deadlock, on either stream", function()
    for _, redirect in ipairs { "", " >&2" } do
      local r = session:exec({ "sh", "-c", "(head -c 1048576 /dev/zero; cat)" .. redirect },
        { stdin = data, timeout_seconds = 30 })
      assert.equal(0, r.exit_code)
      assert.equal(5 * 1024 * 1024, #r.stdout + #r.stderr)
    end
  end)

  it("is under the deadline while input is written, too", function()
    local seconds = support.timed(support.failure, "SandboxExecTimeoutError", session.exec, session,
      support.child("head", 10, "sleep", 60), { stdin = data, timeout_seconds = 0.5 })
    assert.is_true(seconds < 2, seconds .. " s")
  end)
end)
