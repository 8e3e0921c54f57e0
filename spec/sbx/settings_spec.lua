-- SPDX-License-Identifier: MIT
-- proves: O1, A6

local errors = require "sbx.errors"
local settings = require "sbx.settings"

local function env_of(variables)
  return function(name) return variables[name] end
end

local function failure(schema, sources)
  local ok, err = pcall(settings.resolve, schema, sources)
  assert.is_false(ok)
  assert.is_true(errors.is(err, "SandboxValidationError"), tostring(err))
  return err
end

local function one(type_name, more)
  local definition = { name = "x", env = "SBX_X", type = type_name }
  for k, v in pairs(more or {}) do definition[k] = v end
  return settings.define { definition }
end

-- What a single setting makes of a text in the environment: the value, or the fault's message.
local function read(schema, text)
  local ok, result = pcall(settings.resolve, schema, { getenv = env_of { SBX_X = text } })
  if ok then return result.x end
  assert.equal(1, #result.faults)
  assert.equal("SBX_X", result.faults[1].path)
  return nil, result.faults[1].message
end

describe("precedence", function()
  local schema = one("integer", { default = 1 })

  it("is explicit > environment > manifest > default", function()
    local getenv = env_of { SBX_X = "3" }
    local cases = {
      { {}, 1, "default" },
      { { manifest = { x = 2 } }, 2, "manifest" },
      { { manifest = { x = 2 }, getenv = getenv }, 3, "environment" },
      { { manifest = { x = 2 }, getenv = getenv, explicit = { x = 4 } }, 4, "argument" },
      { { manifest = { x = 2 }, getenv = env_of { SBX_X = "" } }, 2, "manifest" },
    }
    for _, case in ipairs(cases) do
      local values, origins = settings.resolve(schema, case[1])
      assert.equal(case[2], values.x)
      assert.equal(case[3], origins.x)
    end
    assert.equal(1, settings.resolve(schema).x)
  end)

  it("lets false win over what is below it", function()
    local bool = one("boolean", { default = true })
    assert.is_false(settings.resolve(bool, { explicit = { x = false },
      getenv = env_of { SBX_X = "true" } }).x)
    assert.is_false(settings.resolve(bool, { manifest = { x = false } }).x)
    assert.is_false(settings.resolve(bool, { getenv = env_of { SBX_X = "0" },
      manifest = { x = true } }).x)
  end)

  it("does not check what is overridden", function()
    assert.equal(4, settings.resolve(schema, { explicit = { x = 4 },
      getenv = env_of { SBX_X = "bad" } }).x)
  end)

  it("leaves an unset setting without default absent", function()
    local values, origins = settings.resolve(one("string"), {})
    assert.same({}, values)
    assert.equal("default", origins.x)
  end)
end)

describe("types", function()
  it("boolean takes the words, in any case, and booleans", function()
    local schema = one("boolean")
    for _, text in ipairs { "true", "TRUE", "True", "1", "yes", "Yes" } do
      assert.is_true(read(schema, text))
    end
    for _, text in ipairs { "false", "FALSE", "0", "no", "NO" } do
      assert.is_false(read(schema, text))
    end
    for _, text in ipairs { "on", "off", "y", "2", " true", "truee", "nil" } do
      local _, fault = read(schema, text)
      assert.matches("must be one of true, false, 1, 0, yes, no", fault, 1, true)
    end
    assert.is_true(settings.resolve(schema, { explicit = { x = true } }).x)
    assert.equal("x", failure(schema, { explicit = { x = 1 } }).faults[1].path)
  end)

  it("enum takes what is allowed, exactly", function()
    local schema = one("enum", { allowed = { "a", "b" } })
    assert.equal("b", read(schema, "b"))
    for _, text in ipairs { "c", "A", "a ", "1" } do
      local _, fault = read(schema, text)
      assert.equal('must be one of a, b; got "' .. text .. '"', fault)
    end
    for shown, value in pairs { ["7"] = 7, ["a table"] = {} } do
      local err = failure(schema, { explicit = { x = value } })
      assert.equal("must be one of a, b; got " .. shown, err.faults[1].message)
    end
  end)

  it("number takes positive decimal numbers", function()
    local schema = one("number")
    local good = { ["1"] = 1, ["0.5"] = 0.5, ["007"] = 7, ["300.25"] = 300.25,
      ["9007199254740992"] = 2 ^ 53 }
    for text, value in pairs(good) do assert.equal(value, read(schema, text)) end
    for _, text in ipairs { "0", "0.0", "-1", "+1", "1e3", "0x10", "inf", "nan", "1.", ".5", " 1",
      "1 ", "1,5", "five" } do
      local _, fault = read(schema, text)
      assert.matches("must be a decimal number greater than 0", fault, 1, true)
    end
    for _, value in ipairs { 0, -1, math.huge, 0 / 0, true } do
      assert.equal("x", failure(schema, { explicit = { x = value } }).faults[1].path)
    end
    assert.equal(0.1, settings.resolve(schema, { explicit = { x = 0.1 } }).x)
  end)

  it("integer takes whole numbers up to 2^53 and never changes one", function()
    local schema = one("integer")
    assert.equal(1, read(schema, "1"))
    assert.equal(2 ^ 53, read(schema, "9007199254740992"))
    assert.equal(9007199254740991, read(schema, "9007199254740991"))
    for _, text in ipairs { "9007199254740993", "9007199254740994", "0", "-1", "1.5", "1.0", "1e3",
      "0x10", "x", "1" .. ("0"):rep(400) } do
      assert.matches("must be a whole number from 1 to 9007199254740992",
        select(2, read(schema, text)), 1, true)
    end
    for _, value in ipairs { 0, 1.5, -3, 2 ^ 53 + 2, math.huge, 0 / 0, false } do
      assert.equal("x", failure(schema, { explicit = { x = value } }).faults[1].path)
    end
    assert.equal(2 ^ 53, settings.resolve(schema, { manifest = { x = 2 ^ 53 } }).x)
  end)

  it("number refuses an integer whose digits it cannot keep", function()
    assert.is_nil((read(one("number"), "9007199254740993")))
    assert.equal(2 ^ 60, (read(one("number"), "1152921504606846976")))
  end)

  it("string and path take text, the path an absolute one", function()
    assert.equal(" any \255", read(one("string"), " any \255"))
    assert.equal("/var/lib/x", read(one("path"), "/var/lib/x"))
    assert.equal("must be an absolute path", select(2, read(one("path"), "var/lib")))
    for _, type_name in ipairs { "string", "path" } do
      for _, text in ipairs { "/a\0b", "\0/a" } do
        assert.equal("must not hold a NUL byte", select(2, read(one(type_name), text)))
      end
      for _, value in ipairs { "", 5, true } do
        assert.equal("x", failure(one(type_name), { explicit = { x = value } }).faults[1].path)
      end
    end
  end)

  it("does not show what a string or a path held", function()
    for _, type_name in ipairs { "string", "path" } do
      assert.is_nil(select(2, read(one(type_name), "t0ken\0")):find("t0ken", 1, true))
    end
  end)

  it("takes a check of its own after the type's", function()
    local function check(value) return value ~= "ok" and "must be ok" or nil end
    local schema = one("string", { check = check })
    assert.equal("ok", read(schema, "ok"))
    assert.equal("must be ok", select(2, read(schema, "ko")))
  end)
end)

describe("faults", function()
  it("come all at once, each with its variable, what is wrong and what is allowed", function()
    local err = failure(settings.platform, { getenv = env_of {
      TAI_MCP_SANDBOX_EGRESS = "host", TAI_MCP_SANDBOX_ISOLATION = "",
      TAI_MCP_SANDBOX_DURABLE = "maybe",
      SBX_LEDGER = "postgres",
    } })
    assert.equal("invalid settings: "
      .. 'TAI_MCP_SANDBOX_EGRESS: must be one of none, internal, egress; got "host"; '
      .. 'TAI_MCP_SANDBOX_DURABLE: must be one of true, false, 1, 0, yes, no; got "maybe"; '
      .. 'SBX_LEDGER: must be memory, sqlite or sqlite:PATH; got "postgres"', err.message)
  end)

  it("name the argument or the manifest's key where the value came from there", function()
    local err = failure(settings.platform, {
      explicit = { egress = "x" }, manifest = { policy = { isolation = "y" }, ledger = "z" },
      manifest_name = "site.lua",
    })
    local paths = {}
    for i, fault in ipairs(err.faults) do paths[i] = fault.path end
    assert.same({ "egress", "site.lua.policy.isolation", "site.lua.ledger" }, paths)
  end)

  it("name a required setting that nothing gives", function()
    local err = failure(one("string", { required = true }), {})
    assert.equal("SBX_X: is required", err.message:match("SBX_X.*"))
    assert.equal("v", settings.resolve(one("string", { required = true }),
      { explicit = { x = "v" } }).x)
  end)

  it("refuse names nobody knows", function()
    local function first(schema, sources) return failure(schema, sources).faults[1].path end
    assert.equal("egres", first(settings.platform, { explicit = { egres = "none" } }))
    assert.equal("a\\010b", first(settings.platform, { explicit = { ["a\nb"] = 1 } }))
    assert.equal("1", first(settings.platform, { explicit = { "none" } }))
    assert.equal("manifest.policy.egres", first(settings.platform,
      { manifest = { policy = { egres = "none" } } }))
    assert.equal("manifest.policy", first(settings.platform, { manifest = { policy = "none" } }))
    assert.equal("manifest.policy", first(settings.platform, { manifest = { policy = false } }))
    assert.equal("manifest.y", first(one("string"), { manifest = { y = 1 } }))
    assert.equal("manifest", first(one("string"), { manifest = "x" }))
    assert.equal("explicit", first(one("string"), { explicit = 5 }))
    assert.equal("egress", settings.resolve(settings.platform,
      { manifest = { presets = {}, policy = {} } }).egress)
  end)

  it("leave the given tables alone", function()
    local explicit, manifest = { x = "1" }, { x = 2 }
    settings.resolve(one("integer"), { explicit = explicit, manifest = manifest })
    assert.same({ x = "1" }, explicit)
    assert.same({ x = 2 }, manifest)
  end)
end)

describe("define", function()
  it("refuses a definition that is wrong in itself", function()
    local cases = {
      { { name = "x", type = "strin" }, "unknown type strin" },
      { { name = "x", type = "enum" }, "an enum needs allowed" },
      { { type = "string" }, "name must be a string" },
      { { name = "x", type = "string", defualt = 1 }, "unknown key defualt" },
      { { name = "x", type = "integer", default = 0 }, "default must be a whole number" },
    }
    for _, case in ipairs(cases) do
      local ok, err = pcall(settings.define, { case[1] })
      assert.is_false(ok)
      assert.matches(case[2], err, 1, true)
    end
    assert.is_false(pcall(settings.define, { { name = "x", type = "string" },
      { name = "x", type = "path" } }))
  end)

  it("copies its definitions", function()
    local definition = { name = "x", type = "string" }
    local schema = settings.define { definition }
    definition.type = "integer"
    assert.equal("text", settings.resolve(schema, { explicit = { x = "text" } }).x)
    assert.is_nil(definition.manifest)
  end)
end)

describe("platform", function()
  it("has the defaults of the operator's page", function()
    local values = settings.resolve(settings.platform, { getenv = env_of {} })
    assert.same({
      egress = "egress", isolation = "container", scrub_transcript = false, durable = true,
    }, values)
  end)

  it("reads every variable", function()
    local values = settings.resolve(settings.platform, { getenv = env_of {
      TAI_MCP_SANDBOX = "sbx.providers.local",
      TAI_MCP_SANDBOX_EGRESS = "none",
      TAI_MCP_SANDBOX_ISOLATION = "vm",
      TAI_MCP_SANDBOX_SCRUB_TRANSCRIPT = "yes",
      TAI_MCP_SANDBOX_DURABLE = "no",
      SBX_LEDGER = "sqlite:/x/l.db",
    } })
    assert.same({
      sandbox_module = "sbx.providers.local", egress = "none", isolation = "vm",
      scrub_transcript = true, durable = false, ledger = "sqlite:/x/l.db",
    }, values)
  end)

  it("reads the manifest", function()
    local policy = {
      egress = "internal", isolation = "none", scrub_transcript = true, durable = false,
    }
    local values = settings.resolve(settings.platform, {
      manifest = { sandbox_module = "m", policy = policy },
    })
    assert.same({
      sandbox_module = "m", egress = "internal", isolation = "none", scrub_transcript = true,
      durable = false,
    }, values)
  end)

  it("knows the ledgers", function()
    for _, text in ipairs { "memory", "sqlite", "sqlite:l.db", "sqlite:/a b" } do
      assert.equal(text, settings.resolve(settings.platform,
        { explicit = { ledger = text } }).ledger)
    end
    for _, text in ipairs { "Memory", "sqlite:", "memory:x", "/l.db", "" } do
      failure(settings.platform, { explicit = { ledger = text } })
    end
  end)
end)

describe("provider", function()
  it("has the common settings under its prefix", function()
    local schema = settings.provider("SANDBOX_LOCAL_")
    assert.same({
      default_ttl_seconds = 3600, reap_interval_seconds = 300, exec_default_timeout_seconds = 300,
    }, (settings.resolve(schema, {})))
    local values = settings.resolve(schema, { getenv = env_of {
      SANDBOX_LOCAL_DEFAULT_TTL_SECONDS = "60",
      SANDBOX_LOCAL_REAP_INTERVAL_SECONDS = "0.5",
      SANDBOX_LOCAL_EXEC_DEFAULT_TIMEOUT_SECONDS = "1.5",
    } })
    assert.same({
      default_ttl_seconds = 60, reap_interval_seconds = 0.5, exec_default_timeout_seconds = 1.5,
    }, values)
    assert.equal("SANDBOX_LOCAL_DEFAULT_TTL_SECONDS", failure(schema, { getenv = env_of {
      SANDBOX_LOCAL_DEFAULT_TTL_SECONDS = "1.5" } }).faults[1].path)
  end)

  it("adds the provider's own", function()
    local schema = settings.provider("SANDBOX_LOCAL_", {
      { name = "root", env = "SANDBOX_LOCAL_ROOT", type = "path",
        default = "/var/lib/tai-sandbox-local" },
    })
    assert.equal("/var/lib/tai-sandbox-local", settings.resolve(schema, {}).root)
    assert.equal("/w", settings.resolve(schema, { manifest = { root = "/w" } }).root)
    assert.is_false(pcall(settings.provider, "P_", { { name = "default_ttl_seconds",
      type = "integer" } }))
  end)
end)
