-- SPDX-License-Identifier: MIT
-- proves: X5, F1

local support = require "spec.support.sandbox"

describe("P17: what is long", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("runs up to the system's bound, and is a clear error beyond", function()
    local options = { timeout_seconds = 30 }
    assert.equal(0, session:exec({ "true", ("a"):rep(131071) }, options).exit_code)
    local err = support.failure("SandboxError", session.exec, session,
      { "true", ("a"):rep(131072) }, options)
    assert.matches("too long", err.message)
    err = support.failure("SandboxError", session.exec, session, { "true" },
      { timeout_seconds = 30, env = { BIG = ("x"):rep(200 * 1024) } })
    assert.matches("too long", err.message)
  end)

  it("does not go through arguments when it is a file", function()
    for _, size in ipairs { 96 * 1024, 200 * 1024, 5 * 1024 * 1024 } do
      local data = support.pattern(size)
      session:put_file("f", data)
      assert.is_true(session:get_file("f") == data)
    end
  end)
end)
