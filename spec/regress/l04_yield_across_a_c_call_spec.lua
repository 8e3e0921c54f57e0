-- SPDX-License-Identifier: MIT
-- proves: A1

local sbx = require "sbx"
local support = require "spec.support.sandbox"

describe("L04: a call made where nothing can yield", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("blocks and works, and leaves no process", function()
    sbx.run(function()
      local function run() return session:exec({ "true" }, { timeout_seconds = 30 }).exit_code end
      assert.equal("0", (("x"):gsub("x", run)))
      local list = { 3, 1, 2 }
      table.sort(list, function(a, b) return run() == 0 and a < b end)
      assert.same({ 1, 2, 3 }, list)
      assert.equal(0, setmetatable({}, { __index = run }).x)
      assert.equal(0, coroutine.wrap(run)())
      local shown = setmetatable({}, { __tostring = function() return tostring(run()) end })
      assert.equal("0", tostring(shown))
      local ok, err = pcall(string.gsub, "x", "x", function()
        session:exec({ "sleep", "9" }, { timeout_seconds = 0.1 })
      end)
      assert.is_false(ok)
      assert.equal("SandboxExecTimeoutError", err.class_name)
    end)
  end)
end)
