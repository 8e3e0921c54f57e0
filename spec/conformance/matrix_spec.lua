-- SPDX-License-Identifier: MIT
-- proves: C1, C2

local matrix = require "spec.conformance.matrix"

describe("the conformance suite #slow", function()
  it("certifies the memory provider", function()
    assert.same({}, matrix.run())
  end)

  it("has a double for every case", function()
    assert.same({}, matrix.uncovered())
  end)

  for _, double in ipairs(matrix.doubles()) do
    it(("catches with %s alone: %s"):format(double.case, double.name), function()
      assert.is_nil(matrix.judge(double))
    end)
  end
end)
