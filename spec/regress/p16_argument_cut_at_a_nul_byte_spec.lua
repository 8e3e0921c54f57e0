-- SPDX-License-Identifier: MIT
-- proves: X1

local support = require "spec.support.sandbox"
local uv = require "luv"

describe("P16: a NUL byte", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is refused wherever it stands, before anything runs", function()
    local function refused(fn, ...)
      support.failure("SandboxValidationError", session[fn], session, ...)
    end
    for _, fn in ipairs { "exec", "exec_start" } do
      refused(fn, { "printf", "[%s]", "a\0b" }, { timeout_seconds = 5 })
      refused(fn, { "tr\0ue" }, { timeout_seconds = 5 })
      refused(fn, { "touch", "ran" }, { timeout_seconds = 5, env = { X = "a\0b" } })
      refused(fn, { "touch", "ran" }, { timeout_seconds = 5, env = { ["X\0Y"] = "1" } })
      refused(fn, { "touch", "ran" }, { timeout_seconds = 5, cwd = "/tmp\0/x" })
    end
    refused("put_file", "a\0b", "x")
    refused("get_file", "a\0b")
    assert.is_nil(uv.fs_stat(session.workspace_path .. "/ran"))
    assert.is_nil(uv.fs_stat(session.workspace_path .. "/a"))
  end)
end)
