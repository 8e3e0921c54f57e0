-- SPDX-License-Identifier: MIT
-- proves: X2

local support = require "spec.support.sandbox"

describe("P22: a program that ignores SIGPIPE and SIGINT", function()
  it("does not pass that on to its commands", function()
    support.assert_lua("141 0\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n", [[
      local s = new_session()
      io.write(s:exec({ "bash", "-c", "yes | head -1 >/dev/null; echo ${PIPESTATUS[@]}" },
        { timeout_seconds = 30 }).stdout)
      io.write(s:exec({ child, "print-signals" }, { timeout_seconds = 30 }).stdout)
      s:destroy()
    ]], { before = "trap '' PIPE INT;" })
  end)
end)
