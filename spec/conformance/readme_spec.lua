-- SPDX-License-Identifier: MIT
-- proves: C1

local conformance = require "sbx.conformance"
local helper = require "spec.helper"

describe("providers/README.md", function()
  local page = helper.read_file(helper.root .. "/providers/README.md")

  it("shows code of the example only, as it stands there", function()
    local example = helper.read_file(helper.root .. "/examples/custom_provider.lua")
    local blocks = 0
    for block in page:gmatch("```lua\n(.-)```") do
      blocks = blocks + 1
      assert.is_truthy(example:find(block, 1, true), block)
    end
    assert.is_true(blocks >= 6)
  end)

  it("names every group of cases, and cases that there are", function()
    local names = {}
    for _, case in ipairs(conformance.cases()) do
      names[case.name] = true
      local group = case.name:match("^(%l+)%.")
      assert.is_truthy(page:find("`" .. group .. "`", 1, true), group)
    end
    assert.is_true(names[page:match("custom_provider.lua ([%l_]+%.[%l_]+)")])
  end)
end)
