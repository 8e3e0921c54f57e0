-- SPDX-License-Identifier: MIT
-- proves: A4

local support = require "spec.support.sandbox"

describe("L06: sbx loaded in a coroutine that is collected", function()
  it("works on: timers, runs, handles", function()
    support.assert_lua("0\nx\nok\n", [[
      local sbx, session
      local root = os.tmpname()
      os.remove(root)
      coroutine.wrap(function()
        sbx = require "sbx"
        sbx.sandboxes.configure { sandbox_module = "sbx.providers.local", isolation = "none",
          provider = { root = root } }
        session = sbx.sandboxes.require_sandbox():create_session { image = "x", workspace_key = "k",
          durability = "ephemeral", network = "egress", ttl_seconds = 60 }
        sbx.spawn(sbx.sleep, 0)
      end)()
      for _ = 1, 20 do collectgarbage() end
      sbx.run(function()
        print(session:exec({ "true" }, { timeout_seconds = 30 }).exit_code)
        for _ = 1, 20 do collectgarbage() end
        local handle = session:exec_start({ "cat" }, { timeout_seconds = 30 })
        handle:write_stdin("x")
        handle:close_stdin()
        for item in handle:output() do if item.data then print(item.data) end end
        handle:kill()
        sbx.sleep(0.01)
        session:destroy()
        print "ok"
      end)
      os.execute("rm -rf " .. root)
    ]], { bare = true })
  end)
end)
