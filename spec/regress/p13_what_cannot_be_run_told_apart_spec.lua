-- SPDX-License-Identifier: MIT
-- proves: X4

local helper = require "spec.helper"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("P13: what cannot be run", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("ends with 127 or 126 and one line of ours, never of the program's making", function()
    local path = session.workspace_path
    helper.write_file(path .. "/plain", "x")
    uv.fs_chmod(path .. "/plain", tonumber("644", 8))
    helper.write_file(path .. "/script", "#!/no/such/interpreter\n")
    uv.fs_chmod(path .. "/script", tonumber("755", 8))
    uv.fs_symlink("/no/such/target", path .. "/broken")
    for name, code in pairs { ["/no/such"] = 127, nope = 127, ["/tmp"] = 126, ["./plain"] = 126,
      ["./broken"] = 127, ["./script"] = 126 } do
      local r = session:exec({ name }, { timeout_seconds = 30 })
      assert.equal(code, r.exit_code, name)
      assert.matches("^sbxlua: [^\n]+\n$", r.stderr)
      assert.is_truthy(r.stderr:find(name, 1, true))
    end
    local r = session:exec({ "sh", "-c", "nope" }, { timeout_seconds = 30 })
    assert.equal(127, r.exit_code)
    assert.is_nil(r.stderr:find("sbxlua", 1, true))
  end)
end)
