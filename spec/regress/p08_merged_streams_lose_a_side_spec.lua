-- SPDX-License-Identifier: MIT
-- proves: X7

local support = require "spec.support.sandbox"

describe("P08: streams", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local function run(script)
    local r = session:exec({ "sh", "-c", script }, { timeout_seconds = 30 })
    return r.stdout, r.stderr
  end

  it("merged by the command keep their order", function()
    assert.same({ "a\nb\nc\n", "" }, { run("exec 2>&1; echo a; echo b >&2; echo c") })
    assert.same({ "", "a\nb\nc\n" }, { run("exec >&2; echo a; echo b >&2; echo c") })
  end)

  it("swapped by the command are swapped", function()
    assert.same({ "b\n", "a\n" }, { run("exec 3>&1 1>&2 2>&3 3>&-; echo a; echo b >&2") })
  end)

  it("of which one or both are closed give the other", function()
    assert.same({ "", "b\n" }, { run("exec >&-; echo b >&2") })
    assert.same({ "a\n", "" }, { run("exec 2>&-; echo a") })
    assert.same({ "", "" }, { run("exec >&- 2>&-") })
  end)
end)
