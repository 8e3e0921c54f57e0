-- SPDX-License-Identifier: MIT
-- proves: A2, A3

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("L05: a completion that comes with its timeout", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("resumes each wait exactly once, with its own result #slow", function()
    sbx.run(function()
      local count, tasks = 0, {}
      for n = 1, 40 do
        tasks[n] = sbx.spawn(function()
          for i = 1, 50 do
            local mine = n * 100 + i
            local ok, r = pcall(sbx.timeout, 0.02, function()
              sbx.sleep(0.02)
              return mine
            end)
            assert.is_true(ok and r == mine or not ok and r.class_name == "TimeoutError")
            local before = uv.hrtime()
            sbx.sleep(0.01)
            assert.is_true(uv.hrtime() - before > 8e6, "a sleep was cut short")
            count = count + 1
          end
        end)
      end
      sbx.gather(tasks)
      assert.equal(2000, count)
    end)
  end)

  it("loses nothing when a kill races with the read that waits", function()
    sbx.run(function()
      for i = 1, 60 do
        local handle = session:exec_start(support.child("spew", 10, "sleep", 0.01),
          { timeout_seconds = 30 })
        local reader = sbx.spawn(support.collect, handle)
        sbx.sleep(i / 4000)
        handle:kill()
        local got = reader:await()
        assert.equal(1, got.exits)
        assert.is_true(got.exit_code == 0 or got.exit_code == 137)
      end
    end)
  end)
end)
