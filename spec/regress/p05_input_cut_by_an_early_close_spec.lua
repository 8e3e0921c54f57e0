-- SPDX-License-Identifier: MIT
-- proves: X6, X11

local support = require "spec.support.sandbox"

describe("P05: input to a command that is slow to read", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local data = ("x"):rep(1024 * 1024)

  it("arrives whole", function()
    local r = session:exec({ "sh", "-c", "sleep 0.5; wc -c" },
      { stdin = data, timeout_seconds = 30 })
    assert.equal(1048576, tonumber(r.stdout))
  end)

  it("arrives whole when the stdin is closed right after the write", function()
    local handle = session:exec_start({ "sh", "-c", "sleep 0.5; wc -c" }, { timeout_seconds = 30 })
    handle:write_stdin(data)
    handle:close_stdin()
    assert.equal(1048576, tonumber(support.collect(handle).stdout))
    handle:kill()
  end)
end)
