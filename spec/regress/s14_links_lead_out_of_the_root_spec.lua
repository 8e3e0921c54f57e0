-- SPDX-License-Identifier: MIT
-- proves: F2

local helper = require "spec.helper"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("S14: links that lead out of the root", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("are refused, their targets there or not, and when swapped in #slow", function()
    local out = helper.tmpdir()
    helper.write_file(out .. "/hostname", "outside")
    local root = session.workspace_path
    uv.fs_symlink(out, root .. "/l")
    uv.fs_symlink(out .. "/new", root .. "/d")
    uv.fs_symlink("l", root .. "/l2")
    for _, path in ipairs { "l/hostname", "l2/hostname", "d", "d/x", "l/none" } do
      support.failure("SandboxError", session.get_file, session, path)
    end
    for _, path in ipairs { "l/x", "l2/x", "d/x", "l2/../../x" } do
      support.failure("SandboxError", session.put_file, session, path, "x")
    end
    session:put_file("inside/f", "ok")
    uv.fs_symlink("inside", root .. "/in")
    assert.equal("ok", session:get_file("in/f"))
    local swapper = session:exec_start({ "sh", "-c", "mkdir real; while :; do "
      .. "ln -s real swap; rm swap; ln -s " .. out .. " swap; rm swap; done" },
      { timeout_seconds = 60 })
    local until_ns = uv.hrtime() + 1e9
    repeat
      pcall(session.put_file, session, "swap/x", "x")
      local ok, data = pcall(session.get_file, session, "swap/hostname")
      assert.is_false(ok and data == "outside")
    until uv.hrtime() > until_ns
    swapper:kill()
    assert.is_nil(uv.fs_stat(out .. "/x"))
    assert.is_nil(uv.fs_stat(out .. "/new"))
  end)
end)
