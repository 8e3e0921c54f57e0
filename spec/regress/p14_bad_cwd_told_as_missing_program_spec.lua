-- SPDX-License-Identifier: MIT
-- proves: X3, E3

local support = require "spec.support.sandbox"

describe("P14: a cwd that cannot be used", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is an error that names it, not the program", function()
    for _, cwd in ipairs { "/no/such", "no/such", "/etc/hostname" } do
      local err = support.failure("SandboxError", session.exec, session, { "true" },
        { cwd = cwd, timeout_seconds = 30 })
      assert.is_truthy(err.message:find('cwd "' .. cwd .. '"', 1, true), err.message)
      assert.is_nil(err.message:find("true", 1, true))
    end
    support.failure("SandboxValidationError", session.exec, session, { "true" },
      { cwd = "", timeout_seconds = 30 })
  end)
end)
