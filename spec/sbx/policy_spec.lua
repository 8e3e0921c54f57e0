-- SPDX-License-Identifier: MIT
-- proves: M4, P2, P3

local errors = require "sbx.errors"
local models = require "sbx.models"
local policy = require "sbx.policy"

local function spec_of(changes)
  local t = { image = "busybox:1", workspace_key = "demo", durability = "ephemeral",
    ttl_seconds = 300 }
  for k, v in pairs(changes or {}) do t[k] = v end
  return models.SandboxSessionSpec(t)
end

local function failure(class, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(errors.is(err, class), tostring(err))
  return err
end

local function refusal(policy_fields, spec_fields)
  local err = failure("SandboxSpecRejectedError", policy.enforce,
    policy.SandboxPolicy(policy_fields), spec_of(spec_fields))
  assert.equal(1, (err.message:find("policy refused: ", 1, true)))
  return err.message
end

local function says(text, ...)
  for _, part in ipairs { ... } do
    assert.is_truthy(text:find(part, 1, true), text .. " <- " .. part)
  end
end

describe("tiers", function()
  it("rank networks none < internal < egress", function()
    assert.is_true(policy.network_openness("none") < policy.network_openness("internal"))
    assert.is_true(policy.network_openness("internal") < policy.network_openness("egress"))
  end)

  it("rank isolations none < container < vm", function()
    assert.is_true(policy.isolation_strength("none") < policy.isolation_strength("container"))
    assert.is_true(policy.isolation_strength("container") < policy.isolation_strength("vm"))
  end)

  it("raise for what is none", function()
    for _, value in ipairs { "", "host", "vm", 1, true, {} } do
      local err = failure("SandboxValidationError", policy.network_openness, value)
      says(err.message, '"none", "internal", "egress"')
    end
    for _, value in ipairs { "", "host", "egress", 1, true, {} } do
      local err = failure("SandboxValidationError", policy.isolation_strength, value)
      says(err.message, '"none", "container", "vm"')
    end
    failure("SandboxValidationError", policy.network_openness, nil)
    failure("SandboxValidationError", policy.isolation_strength, nil)
  end)
end)

describe("SandboxPolicy", function()
  it("has the defaults of the settings", function()
    local expected = { egress = "egress", isolation = "container", scrub_transcript = false,
      durable = true }
    assert.same(expected, policy.SandboxPolicy())
    assert.same(expected, policy.SandboxPolicy {})
  end)

  it("takes every field and leaves the caller's table alone", function()
    local given = { egress = "none", isolation = "vm", scrub_transcript = true, durable = false }
    local made = policy.SandboxPolicy(given)
    assert.same(given, made)
    assert.is_nil(getmetatable(given))
    assert.equal("sbx.SandboxPolicy", getmetatable(made).__name)
    says(tostring(made), "egress=none", "isolation=vm", "scrub_transcript=true", "durable=false")
  end)

  it("lists every fault at once", function()
    local err = failure("SandboxValidationError", policy.SandboxPolicy,
      { egress = "host", isolation = 1, scrub_transcript = "no", durable = 0, egres = "none",
        [1] = true })
    local paths = {}
    for i, fault in ipairs(err.faults) do paths[i] = fault.path end
    assert.same({ "egress", "isolation", "scrub_transcript", "durable", "[1]", "egres" }, paths)
    assert.equal("", failure("SandboxValidationError", policy.SandboxPolicy, "none").faults[1].path)
    for _, path in ipairs(paths) do
      local fields = { [path == "[1]" and 1 or path] = 7 }
      err = failure("SandboxValidationError", policy.SandboxPolicy, fields)
      assert.equal(1, #err.faults)
      assert.equal(path, err.faults[1].path)
    end
  end)
end)

describe("enforce", function()
  it("lets a spec through that fits", function()
    local effective = policy.enforce(policy.SandboxPolicy(), spec_of {
      network = "egress", durability = "persistent", isolation = "vm", cpu = 2, memory_mb = 64,
      env = { TOKEN = "x" },
      labels = { team = "a", ["tai42.sandboxes"] = "b", ["x.tai42.sandbox"] = "c" },
    })
    assert.equal("egress", effective.network)
    assert.equal("persistent", effective.durability)
    assert.equal("vm", effective.isolation)
    assert.equal(2, effective.cpu)
    assert.equal(64, effective.memory_mb)
    assert.equal("x", effective.env.TOKEN:reveal())
    assert.same({ team = "a", ["tai42.sandboxes"] = "b", ["x.tai42.sandbox"] = "c" },
      effective.labels)
  end)

  it("gives an unset isolation the floor, in a new spec", function()
    for _, floor in ipairs { "none", "container", "vm" } do
      local bound = policy.SandboxPolicy { isolation = floor }
      local spec = spec_of { labels = { a = "1" } }
      local effective = policy.enforce(bound, spec)
      assert.equal(floor, effective.isolation)
      assert.is_nil(spec.isolation)
      assert.is_false(rawequal(effective, spec))
      assert.is_false(rawequal(effective.labels, spec.labels))
      assert.equal("sbx.SandboxSessionSpec", getmetatable(effective).__name)
    end
  end)

  it("refuses a network looser than the ceiling", function()
    says(refusal({ egress = "internal" }, { network = "egress" }),
      'network "egress"', '"internal"', "TAI_MCP_SANDBOX_EGRESS to egress",
      'ask for network "internal" or tighter')
    refusal({ egress = "none" }, { network = "internal" })
    assert.equal("none", policy.enforce(policy.SandboxPolicy { egress = "internal" },
      spec_of()).network)
  end)

  it("refuses an isolation below the floor", function()
    says(refusal({ isolation = "container" }, { isolation = "none" }),
      'isolation "none"', '"container"', "TAI_MCP_SANDBOX_ISOLATION to none",
      'ask for "container" or stronger')
    refusal({ isolation = "vm" }, { isolation = "container" })
  end)

  it("refuses persistent while durable is off", function()
    says(refusal({ durable = false }, { durability = "persistent" }),
      "persistent", "TAI_MCP_SANDBOX_DURABLE to true", 'ask for durability "ephemeral"')
    assert.equal("ephemeral", policy.enforce(policy.SandboxPolicy { durable = false },
      spec_of()).durability)
  end)

  it("refuses labels of the kit's namespace", function()
    local labels = { ["tai42.sandbox"] = "1", ["tai42.sandbox.owner"] = "x", team = "a" }
    says(refusal(nil, { labels = labels }),
      '"tai42.sandbox", "tai42.sandbox.owner"', "namespace tai42.sandbox")
    refusal(nil, { labels = { ["tai42.sandbox."] = "x" } })
  end)

  it("lists every violation in one text", function()
    says(refusal({ egress = "none", isolation = "vm", durable = false },
      { network = "egress", isolation = "none", durability = "persistent",
        labels = { ["tai42.sandbox"] = "1" } }),
      "TAI_MCP_SANDBOX_EGRESS", "TAI_MCP_SANDBOX_ISOLATION", "TAI_MCP_SANDBOX_DURABLE",
      "tai42.sandbox")
  end)

  it("takes no policy for a fault of the program", function()
    for _, value in ipairs { false, {}, "egress" } do
      local ok, err = pcall(policy.enforce, value or nil, spec_of())
      assert.is_false(ok)
      assert.equal("string", type(err))
      says(err, "no policy bound")
    end
  end)

  it("validates again what was tampered with", function()
    local spec = spec_of()
    spec.network = "host"
    failure("SandboxValidationError", policy.enforce, policy.SandboxPolicy(), spec)
    failure("SandboxValidationError", policy.enforce, policy.SandboxPolicy(), {})
    local bound = policy.SandboxPolicy()
    bound.egress = "host"
    failure("SandboxValidationError", policy.enforce, bound, spec_of())
  end)

  it("property: never gives a spec that is looser than the policy", function()
    local seed = 20240607
    local function pick(list)
      seed = (seed * 1103515245 + 12345) % 2147483648
      return list[math.floor(seed / 65536) % #list + 1]
    end
    local NONE = {}
    local passed, refused = 0, 0
    for round = 1, 5000 do
      local bound = policy.SandboxPolicy {
        egress = pick(models.NETWORKS), isolation = pick(models.ISOLATIONS),
        durable = pick { true, false },
      }
      local isolation = pick { NONE, "none", "container", "vm" }
      if isolation == NONE then isolation = nil end
      local label = pick { "team", "x.tai42.sandbox", "tai42.sandbox", "tai42.sandbox.session" }
      local spec = spec_of {
        network = pick(models.NETWORKS), isolation = isolation,
        durability = pick(models.DURABILITIES),
        labels = { [label] = "1" },
      }
      local ok, effective = pcall(policy.enforce, bound, spec)
      local fits = policy.network_openness(spec.network) <= policy.network_openness(bound.egress)
        and policy.isolation_strength(isolation or bound.isolation)
          >= policy.isolation_strength(bound.isolation)
        and (bound.durable or spec.durability == "ephemeral")
        and label:sub(1, 13) ~= "tai42.sandbox"
      assert.equal(fits, ok, "round " .. round)
      if ok then
        passed = passed + 1
        assert.is_true(policy.network_openness(effective.network)
          <= policy.network_openness(bound.egress))
        assert.is_true(policy.isolation_strength(effective.isolation)
          >= policy.isolation_strength(bound.isolation))
        assert.equal(spec.network, effective.network)
        assert.equal(isolation or bound.isolation, effective.isolation)
        assert.equal(spec.durability, effective.durability)
      else
        refused = refused + 1
        assert.is_true(errors.is(effective, "SandboxSpecRejectedError"))
      end
    end
    assert.is_true(passed > 200 and refused > 200, passed .. "/" .. refused)
  end)
end)
