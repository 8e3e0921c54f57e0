-- SPDX-License-Identifier: MIT
-- The leak checks of the helper fail the tests that leak, and no others.

local helper = require "spec.helper"
local uv = require "luv"

local function run_leak(name, environment)
  local settle = "SBX_SETTLE_SECONDS=" .. (name:find("stays") and "2" or "0.1")
  local words = { settle }
  for _, word in ipairs(environment or {}) do
    words[#words + 1] = word
  end
  return helper.run_spec("spec/fixtures/leaks/leaks.lua", { "--filter=^leaks " .. name }, words)
end

describe("helper", function()
  describe("leak check", function()
    local function finds(name, expected)
      it("finds " .. name, function()
        local output, status, summary = run_leak(name .. "$")
        assert.not_equal(0, status)
        assert.same({ passed = 0, failed = 1, skipped = 0 }, summary, output)
        assert.matches("leaks.lua:%d+: the test 'leaks " .. name .. "' leaked:\n  ", output)
        assert.matches(expected, output)
      end)
    end

    finds("a descriptor", "descriptor %d+ %-> /dev/null")
    finds("a child", "child %d+ %(sleep%)\n")
    finds("a zombie", "child %d+ %(true%) %(a zombie%)")
    finds("a thread", "thread %d+")
    finds("a handle", "handle uv_timer_t")
    finds("the directory", "working directory /\n")
    finds("a temporary file", "temporary file .*/forgotten")

    it("counts a test that fails and leaks as failed once for each", function()
      local output, status, summary = run_leak("a failure$")
      assert.not_equal(0, status)
      assert.same({ passed = 0, failed = 2, skipped = 0 }, summary, output)
    end)

    it("finds what a setup leaves behind, once, after the file", function()
      local output, status, summary = helper.run_spec("spec/fixtures/leaks/setup_leak.lua", nil,
        { "SBX_SETTLE_SECONDS=0.1" })
      assert.not_equal(0, status)
      assert.same({ passed = 2, failed = 1, skipped = 0 }, summary, output)
      assert.matches("the file .*setup_leak.lua leaked:\n  descriptor", output)
    end)

    for _, name in ipairs { "nothing$", "nothing that stays$", "in a hook repaired$" } do
      it("passes " .. name:sub(1, -2), function()
        local output, status, summary = run_leak(name)
        assert.same({ passed = 1, failed = 0, skipped = 0 }, summary, output)
        assert.equal(0, status)
      end)
    end

    it("lets a leaking test not fail the next one", function()
      local output, _, summary = run_leak("a [dz]")
      assert.same({ passed = 0, failed = 2, skipped = 0 }, summary, output)
    end)
  end)

  describe("result", function()
    it("is missing when a test ends the process", function()
      local _, _, summary = run_leak("ends the process$")
      assert.is_nil(summary)
    end)

    it("counts what is skipped", function()
      local output, status, summary = run_leak("skips")
      assert.same({ passed = 0, failed = 0, skipped = 3 }, summary, output)
      assert.equal(0, status)
      assert.matches("moon does not work here: no rocket", output)
      assert.matches("sun does not work here: too hot", output)
    end)

    it("counts a skipped test as failed where all must work", function()
      local output, _, summary = run_leak("skips", { "SBX_MUST_WORK=local" })
      assert.same({ passed = 0, failed = 1, skipped = 2 }, summary, output)
      assert.matches("skipped though SBX_MUST_WORK is set: leaks skips without a reason", output)
    end)

    it("counts a listed prerequisite as failed", function()
      local output, status, summary = run_leak("skips a missing", { "SBX_MUST_WORK=local, moon" })
      assert.not_equal(0, status)
      assert.equal(1, summary.failed, output)
      assert.matches("SBX_MUST_WORK lists it", output)
    end)
  end)

  describe("run", function()
    it("gives the output and the exit status", function()
      local output, status = helper.run("printf 'a\\nb'; exit 3")
      assert.equal("a\nb", output)
      assert.equal(3, status)
      output, status = helper.run("kill -9 $$")
      assert.equal("", output)
      assert.is_nil(status)
    end)
  end)

  describe("wait_until", function()
    it("serves the loop, gives the value, and gives up", function()
      local fired
      local timer = uv.new_timer()
      timer:start(10, 0, function()
        fired = "fired"
        timer:close()
      end)
      assert.equal("fired", helper.wait_until(function()
        return fired
      end, 5))
      assert.is_false(helper.wait_until(function() end, 0.02))
    end)
  end)
end)
