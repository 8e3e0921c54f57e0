-- SPDX-License-Identifier: MIT
-- proves: X7, X10

local support = require "spec.support.sandbox"

describe("P11: one line of 50 MiB", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local command = { "sh", "-c", "head -c 52428800 /dev/zero | tr '\\0' a; echo; echo after" }

  it("is whole, in linear time, and what follows is read #slow", function()
    local seconds, r = support.timed(session.exec, session, command, { timeout_seconds = 60 })
    assert.equal(52428800 + 7, #r.stdout)
    assert.equal("a\nafter\n", r.stdout:sub(-8))
    assert.is_true(seconds < 10, seconds .. " s")
    local handle = session:exec_start(command, { timeout_seconds = 60 })
    local got
    seconds, got = support.timed(support.collect, handle)
    assert.is_true(got.stdout == r.stdout)
    assert.is_true(seconds < 10, seconds .. " s")
    handle:kill()
  end)
end)
