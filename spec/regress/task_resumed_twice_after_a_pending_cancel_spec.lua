-- SPDX-License-Identifier: MIT
-- proves: A3
-- A cancel that came while the task was ready ended its next wait at once; the task went on, and
-- was resumed a second time from the queue, in whatever wait it was by then.

local sbx = require "sbx"
local task = require "sbx.task"
local waits = require "sbx.waits"
require "spec.support.sandbox" -- brings up what the loop keeps

describe("a cancel that is delivered at the beginning of a wait", function()
  it("resumes the task once", function()
    local steps = {}
    sbx.run(function()
      local begin = waits.latch()
      local victim = sbx.spawn(function()
        begin:wait()
        -- The cancel is pending by now: this wait ends at once, that of the clean-up does not.
        local ok, err = pcall(sbx.sleep, 10)
        steps[#steps + 1] = ok and "slept" or err.class_name
        task.shield(function()
          sbx.sleep(0.05)
          steps[#steps + 1] = "cleaned up"
        end)
        steps[#steps + 1] = "ended"
      end)
      sbx.sleep(0)
      begin:open()
      local before = require("sbx.loop").monotonic()
      victim:cancel()
      steps[#steps + 1] = require("sbx.loop").monotonic() - before >= 0.05 and "waited" or "hurried"
    end)
    assert.same({ "Cancelled", "cleaned up", "ended", "waited" }, steps)
  end)
end)
