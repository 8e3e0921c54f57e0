-- SPDX-License-Identifier: MIT
-- proves: X4

local helper = require "spec.helper"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("P15: an executable script without #!", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is not run by some shell: 126, by path and by PATH", function()
    local path = session.workspace_path .. "/script"
    helper.write_file(path, "echo hi $1\n")
    uv.fs_chmod(path, tonumber("755", 8))
    for _, name in ipairs { "./script", "script", path } do
      local r = session:exec({ name, "x" },
        { timeout_seconds = 30, env = { PATH = session.workspace_path } })
      assert.equal(126, r.exit_code)
      assert.equal("", r.stdout)
      assert.matches("Exec format error", r.stderr)
    end
    assert.equal("hi x\n",
      session:exec({ "sh", "script", "x" }, { timeout_seconds = 30 }).stdout)
  end)
end)
