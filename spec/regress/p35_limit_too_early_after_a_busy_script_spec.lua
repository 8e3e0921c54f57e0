-- SPDX-License-Identifier: MIT
-- proves: X8, X13

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("P35: a deadline set after the script was busy", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local function busy(seconds)
    local until_ns = uv.hrtime() + seconds * 1e9
    while uv.hrtime() < until_ns do end
  end

  local function run()
    return session:exec({ "sleep", "0.3" }, { timeout_seconds = 1.5 }).exit_code
  end

  it("is not early", function()
    busy(1.6)
    assert.equal(0, run())
    sbx.run(function()
      busy(1.6)
      assert.equal(0, run())
      assert.equal(0, sbx.timeout(1.5, run))
    end)
    local code
    local timer = uv.new_timer()
    timer:start(1, 0, function()
      timer:close()
      busy(1.6)
      code = run()
    end)
    uv.run()
    assert.equal(0, code)
  end)
end)
