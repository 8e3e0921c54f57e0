-- SPDX-License-Identifier: MIT
-- proves: X7

local sbx = require "sbx"
local support = require "spec.support.sandbox"

describe("P03: output under load", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is whole every time #slow", function()
    local load = session:exec_start({ "sh", "-c",
      "for i in 1 2 3 4; do while :; do :; done & done; wait" }, { timeout_seconds = 60 })
    sbx.run(function()
      local tasks = {}
      for i = 1, 4 do
        tasks[i] = sbx.spawn(function()
          for _ = 1, 15 do
            local r = session:exec({ "sh", "-c", "head -c 3000000 /dev/zero; echo x >&2; exit 5" },
              { timeout_seconds = 60 })
            assert.equal(3000000, #r.stdout)
            assert.equal("x\n", r.stderr)
            assert.equal(5, r.exit_code)
          end
        end)
      end
      sbx.gather(tasks)
    end)
    load:kill()
  end)
end)
