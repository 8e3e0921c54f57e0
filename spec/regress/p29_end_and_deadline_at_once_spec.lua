-- SPDX-License-Identifier: MIT
-- proves: X8, X14

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("P29: a command that ends right at its deadline", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("has exactly one outcome, never another error #slow", function()
    sbx.run(function()
      local ended, late, tasks = 0, 0, {}
      for i = 1, 20 do
        tasks[i] = sbx.spawn(function()
          for _ = 1, 15 do
            local ok, r = pcall(session.exec, session, { "sleep", "0.1" },
              { timeout_seconds = 0.102 })
            if ok then
              assert.equal(0, r.exit_code)
              ended = ended + 1
            else
              assert.equal("SandboxExecTimeoutError", r.class_name)
              late = late + 1
            end
          end
        end)
      end
      sbx.gather(tasks)
      assert.equal(300, ended + late)
    end)
  end)

  it("may be killed right then without an error", function()
    for i = 1, 40 do
      local handle = session:exec_start(support.child("sleep", 0.02, "exit", 5),
        { timeout_seconds = 30 })
      uv.sleep(15 + i % 10)
      handle:kill()
      local code = support.collect(handle).exit_code
      assert.is_true(code == 5 or code == 137, "exit code " .. code)
    end
  end)
end)
