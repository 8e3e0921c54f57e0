-- SPDX-License-Identifier: MIT
-- proves: A6, M1, X1

local support = require "spec.support.sandbox"

describe("L12: numbers of 2^31 and more", function()
  it("are kept, or refused, never taken for something else", function()
    local sandbox = support.local_sandbox { now = function() return 1000 end }
    for _, ttl in ipairs { 2 ^ 31 - 1, 2 ^ 31, 2 ^ 32, 3e9, 2 ^ 53 } do
      local session = sandbox:create_session(support.spec { ttl_seconds = ttl })
      assert.equal(1000 + ttl, session:info().expires_at)
      assert.same({}, (sandbox:reap()))
      session:destroy()
    end
    for _, ttl in ipairs { 2 ^ 53 + 2, 1e300, -2 ^ 31, 0 } do
      support.failure("SandboxValidationError", sandbox.create_session, sandbox,
        support.spec { ttl_seconds = ttl })
    end
  end)

  it("are no early deadline", function()
    local session = support.session()
    finally(support.cleanup)
    for _, seconds in ipairs { 2 ^ 31, 2 ^ 32, 3e9, 2 ^ 53, 1e18, 1e19, 1e20 } do
      local handle = session:exec_start({ "sleep", "0.1" }, { timeout_seconds = seconds })
      assert.equal(0, support.collect(handle).exit_code)
      handle:kill()
    end
  end)
end)
