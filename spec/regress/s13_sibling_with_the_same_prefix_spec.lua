-- SPDX-License-Identifier: MIT
-- proves: F2, L7

local helper = require "spec.helper"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("S13: a sibling directory with the same prefix", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("is outside", function()
    local root = session.workspace_path
    local sibling = root .. "-evil"
    uv.fs_mkdir(sibling, 493)
    finally(function() helper.remove_tree(sibling) end)
    helper.write_file(sibling .. "/x", "evil")
    local name = root:match("[^/]+$")
    for _, path in ipairs { sibling .. "/x", root .. "/../" .. name .. "-evil/x",
      "../" .. name .. "-evil/x", root .. "-evil/../" .. name .. "-evil/x" } do
      support.failure("SandboxError", session.get_file, session, path)
      support.failure("SandboxError", session.put_file, session, path, "x")
    end
    support.failure("SandboxError", session.exec, session, { "true" },
      { cwd = "../" .. name .. "-evil", timeout_seconds = 30 })
    assert.equal("evil", helper.read_file(sibling .. "/x"))
  end)

  it("is outside of a root given with a slash at its end", function()
    local directory = helper.tmpdir()
    local slashed = support.local_sandbox { root = directory .. "/" }
    local other = slashed:create_session(support.spec())
    support.failure("SandboxError", other.get_file, other, directory .. "-evil/x")
    other:put_file(other.workspace_path .. "/f", "x")
    assert.equal("x", other:get_file("f"))
    other:destroy()
  end)

  it("cannot come of an empty root", function()
    support.failure("SandboxValidationError", require("sbx.settings").resolve,
      require("sbx.providers.local").settings, { explicit = { root = "" } })
  end)
end)
