-- SPDX-License-Identifier: MIT
-- proves: A5

local support = require "spec.support.sandbox"

describe("L10: binary content", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("keeps its length and its bytes through stdin, both streams and files", function()
    local all = {}
    for byte = 0, 255 do all[byte + 1] = string.char(byte) end
    local data = "a\0b" .. table.concat(all) .. "\0\0"
    local r = session:exec({ "tee", "/dev/stderr" }, { stdin = data, timeout_seconds = 30 })
    assert.equal(data, r.stdout)
    assert.equal(data, r.stderr)
    session:put_file("f", data)
    assert.equal(data, session:get_file("f"))
    assert.equal(data, session:exec({ "cat", "f" }, { timeout_seconds = 30 }).stdout)
    local handle = session:exec_start({ "cat" }, { timeout_seconds = 30 })
    handle:write_stdin(data)
    handle:write_stdin("\0")
    handle:close_stdin()
    assert.equal(data .. "\0", support.collect(handle).stdout)
    handle:kill()
  end)
end)
