-- SPDX-License-Identifier: MIT
-- proves: F1

local support = require "spec.support.sandbox"
local uv = require "luv"

describe("S17: files of every awkward size", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("come back as they were, the empty one too", function()
    for _, size in ipairs { 0, 1, 511, 512, 513, 65535, 65536, 65537, 10485761 } do
      local bytes = uv.random(math.min(size, 4096))
      local data = size == 0 and "" or bytes:rep(math.ceil(size / #bytes)):sub(1, size)
      session:put_file("d/f", data)
      assert.is_true(session:get_file("d/f") == data, size .. " bytes")
      assert.equal(size, uv.fs_stat(session.workspace_path .. "/d/f").size)
    end
  end)
end)
