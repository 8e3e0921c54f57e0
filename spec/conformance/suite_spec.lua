-- SPDX-License-Identifier: MIT
-- proves: C1

local conformance = require "sbx.conformance"
local errors = require "sbx.errors"
local memory_provider = require "spec.support.memory_provider"
local sbx = require "sbx"
local waits = require "sbx.waits"
local virtual_time = require "spec.support.virtual_time"

local function config(changes)
  local out = {}
  for key, value in pairs(memory_provider.config) do
    out[key] = value
  end
  for key, value in pairs(changes or {}) do
    out[key] = value
  end
  return out
end

-- In virtual time, against a memory provider that may be changed.
local function with_provider(change, fn)
  return virtual_time.run(function()
    return fn(memory_provider.new(change))
  end)
end

local function no_exec(parts)
  function parts.Session.exec()
    errors.raise(errors.SandboxError("no commands here"))
  end
end

describe("conformance.cases", function()
  it("lists every case with its promise and IDs", function()
    local cases = conformance.cases()
    assert.is_true(#cases > 100)
    local seen = {}
    for _, case in ipairs(cases) do
      assert.is_nil(seen[case.name], case.name)
      seen[case.name] = true
      assert.is_truthy(case.name:find("^%l+%.[%l_]+$"), case.name)
      assert.is_truthy(case.ids:find("^%u%d+"), case.name)
      assert.is_true(#case.promise > 20, case.name)
    end
  end)
end)

describe("conformance.run", function()
  it("gives case, promise and message of a failure", function()
    local failures = with_provider(no_exec, function(sandbox)
      return conformance.run(sandbox, config { only = { "exec.status", "files.empty" } })
    end)
    assert.equal(1, #failures)
    assert.equal("exec.status", failures[1].case)
    assert.equal("the result's exit_code is the command's own (X4)", failures[1].promise)
    assert.is_truthy(failures[1].message:find("no commands here", 1, true))
  end)

  it("works inside a task", function()
    local failures = with_provider(nil, function(sandbox)
      return sbx.run(function()
        return conformance.run(sandbox, config { only = { "exec.status" } })
      end)
    end)
    assert.same({}, failures)
  end)

  it("is cancelled with the task that runs it", function()
    with_provider(nil, function(sandbox)
      sbx.run(function()
        local running = sbx.spawn(conformance.run, sandbox, config { only = { "exec.timeout" } })
        sbx.sleep(0.2)
        running:cancel()
        assert.equal("cancelled", running:status())
        assert.same({}, sandbox:list_sessions())
      end)
    end)
  end)

  it("reports a case that hangs, and goes on with the next", function()
    local failures = with_provider(function(parts)
      function parts.Session._get_file()
        waits.latch():wait()
      end
    end, function(sandbox)
      return conformance.run(sandbox, config { only = { "files.empty", "exec.status" } })
    end)
    assert.equal(1, #failures)
    assert.equal("files.empty", failures[1].case)
    assert.is_truthy(failures[1].message:find("did not end within", 1, true))
  end)

  it("destroys what a case leaves", function()
    with_provider(no_exec, function(sandbox)
      conformance.run(sandbox, config { only = { "exec.status" } })
      assert.same({}, sandbox:list_sessions())
    end)
  end)

  it("puts the sandbox's own policy back", function()
    with_provider(nil, function(sandbox)
      local own = sandbox._policy
      conformance.run(sandbox, config { only = { "policy.network_ceiling", "policy.durable_off" } })
      assert.equal(own, sandbox._policy)
    end)
  end)

  it("leaves out the cases of a durability that is not offered", function()
    local failures = with_provider(function(parts)
      function parts.Sandbox:_check_spec(spec)
        if spec.durability == "persistent" then self:_reject("durability persistent") end
      end
    end, function(sandbox)
      return conformance.run(sandbox, config {
        durabilities = { "ephemeral" },
        reject_specs = { { spec = { durability = "persistent" }, why = "durability persistent" } },
      })
    end)
    assert.same({}, failures)
  end)

  it("refuses a bad config, every fault at once, before anything runs", function()
    local ok, err = pcall(conformance.run, {}, {
      colour = 1, network = "wide", timing_scale = 0, only = { "exec.nothing" }, durabilities = {},
      reject_specs = { {} },
    })
    assert.is_false(ok)
    assert.is_true(errors.is(err, "SandboxValidationError"))
    local paths = {}
    for i, fault in ipairs(err.faults) do
      paths[i] = fault.path
    end
    assert.same({ "colour", "durabilities", "network", "only", "reject_specs", "timing_scale" },
      paths)
  end)
end)

describe("conformance.tap", function()
  it("prints TAP 13 with diagnostics and returns the number of failures", function()
    local text = {}
    local count = with_provider(no_exec, function(sandbox)
      return conformance.tap(sandbox, config {
        only = { "exec.status", "files.empty", "policy.unhonoured_spec" }, reject_specs = {},
      }, function(piece) text[#text + 1] = piece end)
    end)
    assert.equal(1, count)
    text = table.concat(text)
    assert.equal(table.concat({
      "TAP version 13",
      "1..3",
      "ok 1 - policy.unhonoured_spec # SKIP the config names no spec that is refused",
      "not ok 2 - exec.status",
      "  ---",
      '  message: "it raised SandboxError: no commands here"',
      '  promise: "the result\'s exit_code is the command\'s own (X4)"',
      "  ...",
      "ok 3 - files.empty",
      "",
    }, "\n"), text)
  end)
end)

describe("conformance.busted", function()
  it("registers one test for each case that applies", function()
    local names, tests = {}, {}
    conformance.busted(function(_, body) body() end, function(name, test)
      names[#names + 1], tests[#tests + 1] = name, test
    end, function() return memory_provider.new(no_exec) end, config {
      only = { "exec.status", "files.empty", "policy.unhonoured_spec" }, reject_specs = {},
    })
    assert.same({ "exec.status (X4)", "files.empty (F1)" }, names)
    local ok, message = virtual_time.run(pcall, tests[1])
    assert.is_false(ok)
    assert.is_truthy(message:find("no commands here", 1, true))
    assert.is_true(virtual_time.run(pcall, tests[2]))
  end)
end)
