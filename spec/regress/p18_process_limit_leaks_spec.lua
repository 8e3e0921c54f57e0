-- SPDX-License-Identifier: MIT
-- proves: X5

local support = require "spec.support.sandbox"

describe("P18: a limit of descriptors that is reached", function()
  it("is an error of its own, leaks nothing, and is over when one has ended", function()
    support.assert_lua("true\ttrue\ttrue\t0\n", [[
      local s = new_session()
      local handles, err = {}, nil
      repeat
        local ok, got = pcall(s.exec_start, s, { "sleep", "60" }, { timeout_seconds = 60 })
        if ok then handles[#handles + 1] = got else err = got end
      until not ok
      local open = count("fd")
      for _ = 1, 100 do pcall(s.exec_start, s, { "sleep", "60" }, { timeout_seconds = 60 }) end
      local same = open == count("fd")
      handles[1]:kill()
      local r = s:exec({ "true" }, { timeout_seconds = 30 })
      print(errors.is(err, "SandboxError"), err.message:find("open files", 1, true) ~= nil, same,
        r.exit_code)
      s:destroy()
    ]], { before = "ulimit -n 64;" })
  end)
end)
