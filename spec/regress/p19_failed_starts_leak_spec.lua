-- SPDX-License-Identifier: MIT
-- proves: X4, X17

local support = require "spec.support.sandbox"

describe("P19: thousands of failed starts", function()
  it("leave no descriptor and no zombie #slow", function()
    support.assert_lua("true\ttrue\n", [[
      local s = new_session()
      local options = { timeout_seconds = 30 }
      s:exec({ "true" }, options)
      local open = count("fd")
      for i = 1, 3000 do
        assert(s:exec({ "/no/such" }, options).exit_code == 127)
        if i % 3 == 0 then assert(s:exec({ "true" }, options).exit_code == 0) end
        if i % 3 == 1 then assert(s:exec({ "/etc/passwd" }, options).exit_code == 126) end
        local bad = { cwd = "x", timeout_seconds = 30 }
        if i % 3 == 2 then assert(not pcall(s.exec, s, { "true" }, bad)) end
      end
      print(open == count("fd"), zombies() == 0)
      s:destroy()
    ]])
  end)
end)
