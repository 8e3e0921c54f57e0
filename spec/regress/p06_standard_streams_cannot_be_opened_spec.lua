-- SPDX-License-Identifier: MIT
-- proves: X2

local support = require "spec.support.sandbox"

describe("P06: /dev/stdin, /dev/stdout, /dev/stderr", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  it("can be opened by the command", function()
    local function run(argv, stdin)
      local r = session:exec(argv, { stdin = stdin, timeout_seconds = 30 })
      assert.equal(0, r.exit_code, r.stderr)
      return r
    end
    assert.equal("hi", run({ "cat", "/dev/stdin" }, "hi").stdout)
    assert.equal("", run({ "cat", "/dev/stdin" }).stdout)
    assert.equal("x\n", run({ "sh", "-c", "echo x >/dev/stderr" }).stderr)
    assert.equal("y\n", run({ "sh", "-c", "echo y >/dev/stdout" }).stdout)
    local r = run({ "tee", "/dev/stderr" }, "both")
    assert.equal("both", r.stdout)
    assert.equal("both", r.stderr)
  end)
end)
