-- SPDX-License-Identifier: MIT
-- proves: A2, X17

local support = require "spec.support.sandbox"

describe("L02: a thousand runs of which nothing is kept", function()
  it("all come back, and so does the memory #slow", function()
    support.assert_lua("1000\ttrue\ttrue\ttrue\n", [[
      local s = new_session()
      local ended = 0
      local function round(n)
        sbx.run(function()
          for _ = 1, n do
            sbx.spawn(function()
              s:exec({ "true" }, { timeout_seconds = 60 })
              ended = ended + 1
            end)
          end
          for _ = 1, 10 do
            collectgarbage()
            sbx.sleep(0.005)
          end
        end)
        collectgarbage()
        collectgarbage()
      end
      round(100)
      ended = 0
      local open, kib = count("fd"), collectgarbage("count")
      for _ = 1, 10 do round(100) end
      local grown = collectgarbage("count") - kib
      print(ended, open == count("fd"), zombies() == 0, grown < 300 or grown)
      s:destroy()
    ]])
  end)
end)
