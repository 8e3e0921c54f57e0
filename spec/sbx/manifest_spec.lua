-- SPDX-License-Identifier: MIT
-- proves: O2, O1, R2
-- The manifest's two forms, what neither may do, and each layer of the settings' order with real
-- environment variables.

local helper = require "spec.helper"
local manifest = require "sbx.manifest"
local support = require "spec.support.sandbox"

local failure = support.failure

describe("a manifest", function()
  local directory

  before_each(function() directory = helper.tmpdir() end)

  local function load(text, name)
    local path = directory .. "/" .. (name or "site.lua")
    helper.write_file(path, text)
    return manifest.load(path), path
  end

  local function refuses(text, word, name)
    local path = directory .. "/" .. (name or "site.lua")
    helper.write_file(path, text)
    local err = failure("SandboxValidationError", manifest.load, path)
    assert.is_truthy(err.message:find(path, 1, true), err.message)
    assert.is_truthy(err.message:find(word, 1, true), err.message .. " <- " .. word)
    assert.equal(path, err.faults[1].path)
    return err
  end

  local WHOLE = {
    sandbox_module = "sbx.providers.local", ledger = "sqlite:/x/l.db",
    policy = { egress = "internal", isolation = "none", scrub_transcript = true, durable = false },
    provider = { root = "/w", default_ttl_seconds = 9007199254740992, reap_interval_seconds = 0.5 },
    presets = { tool = { base = "sandbox_exec", tags = { "a", "b" } } },
  }

  it("is a Lua table", function()
    assert.same(WHOLE, (load([[
      -- a comment
      local isolation = "none"
      return {
        sandbox_module = "sbx.providers.local", ledger = "sqlite:/x/l.db",
        policy = { egress = "internal", isolation = isolation, scrub_transcript = not false,
          durable = 1 > 2 },
        provider = { root = "/" .. "w", default_ttl_seconds = 2 ^ 53,
          reap_interval_seconds = 1 / 2 },
        presets = { tool = { base = "sandbox_exec", tags = { "a", "b" } } },
      }
    ]])))
    assert.same({}, (load("return {}")))
    assert.same({}, (load("#!/usr/bin/env sbxlua\nreturn {}")))
  end)

  it("is the same as JSON", function()
    assert.same(WHOLE, (load([[{
      "sandbox_module": "sbx.providers.local", "ledger": "sqlite:/x/l.db",
      "policy": { "egress": "internal", "isolation": "none", "scrub_transcript": true,
        "durable": false },
      "provider": { "root": "/w", "default_ttl_seconds": 9007199254740992,
        "reap_interval_seconds": 0.5 },
      "presets": { "tool": { "base": "sandbox_exec", "tags": ["a", "b"] } }
    }]], "site.json")))
    assert.same({}, (load("{}", "site.json")))
  end)

  it("in Lua has no globals", function()
    for _, name in ipairs { "os", "io", "require", "print", "string", "debug", "load", "loadstring",
      "getmetatable", "setmetatable", "pcall", "setfenv", "jit", "package", "ffi", "arg", "_G",
      "coroutine", "rawset", "newproxy", "collectgarbage" } do
      refuses("return { ledger = type(" .. name .. ") }", "attempt to call global 'type'")
      assert.same({}, (load("return { ledger = " .. name .. " }")))
      refuses("return " .. name .. ".x", "attempt to index global")
    end
    assert.same({}, (load("return { ledger = ... }")))
    load("x = 5 return { }")
    assert.is_nil(rawget(_G, "x"))
    assert.same({}, (load("return { ledger = x }")))
  end)

  it("in Lua has no methods of strings, and they are there again afterwards", function()
    for _, call in ipairs { "('x'):rep(1e9)", "('x'):gsub('x', 'y')", "('').format('%d', 1)",
      "('x'):dump()", "(('a'):rep(30)):find(('a?'):rep(30) .. ('a'):rep(30))" } do
      refuses("return { ledger = " .. call .. " }", "attempt to index a string")
      assert.equal("xx", ("x"):rep(2))
    end
  end)

  it("in Lua is bounded in its work", function()
    local took = support.timed(function()
      refuses("while true do end", "too much work")
      refuses("local function f() return f() end return f()", "too much work")
      refuses("for i = 1, 1e12 do end return {}", "too much work")
      refuses("local function f() while true do end end f() return {}", "too much work")
      refuses("local t = {} for i = 1, 1e9 do t = { t } end return {}", "too much work")
      refuses("::again:: goto again", "too much work")
      refuses("local function f() f() end f()", "stack overflow")
      refuses("local function f() f() end return f()", "stack overflow")
    end)
    assert.is_true(took < 10, "it took " .. took)
    assert.same({}, (load("local n = 0 for i = 1, 1e5 do n = n + i end return {}")))
  end)

  it("in Lua is text", function()
    refuses(string.dump(loadstring("return {}")), "compiled Lua")
    refuses("\27LJ", "compiled Lua")
    refuses("return {", "is no Lua")
    refuses("return { a = }", "site.lua:1")
    refuses("error('x')", "attempt to call global 'error'")
  end)

  it("is a table of names, each with its kind of value", function()
    for _, value in ipairs { "nil", "1", "'x'", "true", "{ 1, 2 }", "function() end" } do
      refuses("return " .. value, "must be a table of names")
    end
    refuses("", "must be a table of names")
    for _, text in ipairs { "[]", "[{}]", "1", "null", '"x"', "true" } do
      refuses(text, "must be a table of names", "site.json")
    end
    refuses("return { sandbox_modul = 'x' }", 'unknown name, "sandbox_modul"')
    refuses("return { policy = {}, zzz = 1, aaa = 1 }", 'unknown name, "aaa"')
    refuses("return { [2] = 1, policy = {} }", 'unknown name, "2"')
    refuses("return { [1] = 1, policy = {} }", "must be a table of names")
    refuses("return { ['a\\nb'] = 1 }", 'unknown name, "a\\010b"')
    refuses('{"$schema":"x"}', 'unknown name, "$schema"', "site.json")
    refuses("return { sandbox_module = 5 }", "sandbox_module must be a string, got a number")
    refuses("return { policy = 'none' }", "policy must be a table, got a string")
    refuses("return { provider = { 1 } }", "provider must be a table of names")
    refuses('{"policy":[]}', "policy must be a table of names", "site.json")
    refuses('{"policy":null}', "policy must be a table of names", "site.json")
    refuses('{"ledger":null}', "ledger must be a string", "site.json")
  end)

  it("as JSON is refused with the place of the fault", function()
    refuses('{"policy":{}', "byte 13", "site.json")
    refuses('{"ledger":"memory","ledger":"sqlite"}', "twice", "site.json")
    refuses("return {}", "JSON", "site.json")
  end)

  it("that cannot be read says why", function()
    for path, why in pairs {
      [directory .. "/none.lua"] = "No such file", [directory] = "directory",
    } do
      local err = failure("SandboxValidationError", manifest.load, path)
      assert.is_truthy(err.message:find(why, 1, true), err.message)
      assert.is_truthy(err.message:find(path, 1, true), err.message)
    end
    refuses(("-"):rep(4 * 1024 * 1024 + 1), "longer than 4194304 bytes")
  end)

  it("shows no value in its faults", function()
    for _, text in ipairs { "return { ledger = { 'canary' } }", "return 'canary'",
      "return { policy = 'canary' }" } do
      helper.write_file(directory .. "/x.lua", text)
      local err = failure("SandboxValidationError", manifest.load, directory .. "/x.lua")
      assert.is_nil(tostring(err):find("canary", 1, true))
    end
  end)
end)

describe("the order of settings", function()
  local FIELDS = {
    { print = "sandboxes.sandbox_policy().egress", configure = "egress = 'none'",
      env = "TAI_MCP_SANDBOX_EGRESS=internal", manifest = "policy = { egress = 'egress' }",
      values = { "none", "internal", "egress", "egress" } },
    { print = "sandboxes.sandbox_policy().isolation", configure = "isolation = 'none'",
      env = "TAI_MCP_SANDBOX_ISOLATION=vm", manifest = "policy = { isolation = 'none' }",
      values = { "none", "vm", "none", "container" } },
    { print = "sandboxes.sandbox_policy().durable", configure = "durable = true",
      env = "TAI_MCP_SANDBOX_DURABLE=no", manifest = "policy = { durable = false }",
      values = { "true", "false", "false", "true" } },
    { print = "sandboxes.sandbox_policy().scrub_transcript", configure = "scrub_transcript = false",
      env = "TAI_MCP_SANDBOX_SCRUB_TRANSCRIPT=1", manifest = "policy = { scrub_transcript = true }",
      values = { "false", "true", "true", "false" } },
    { print = "sandbox().exec_default_timeout_seconds",
      configure = "provider = { exec_default_timeout_seconds = 1 }",
      env = "SANDBOX_LOCAL_EXEC_DEFAULT_TIMEOUT_SECONDS=2",
      manifest = "provider = { exec_default_timeout_seconds = 3 }",
      values = { "1", "2", "3", "300" } },
    { print = "sandbox().reap_interval_seconds",
      configure = "provider = { reap_interval_seconds = 1 }",
      env = "SANDBOX_LOCAL_REAP_INTERVAL_SECONDS=2",
      manifest = "provider = { reap_interval_seconds = 3 }", values = { "1", "2", "3", "300" } },
    { print = "sandbox()._ledger.shared", configure = "ledger = 'memory'",
      env = "SBX_LEDGER=sqlite:DIRECTORY/env.db", manifest = "ledger = 'sqlite:DIRECTORY/m.db'",
      values = { "nil", "true", "true", "nil" } },
    { print = "sandboxes.require_sandbox().provider_name", bare = true,
      configure = "sandbox_module = 'sbx.providers.local'", env = "TAI_MCP_SANDBOX=no.such.env",
      manifest = "sandbox_module = 'no.such.manifest'",
      values = { "local", "SandboxUnavailableError no.such.env",
        "SandboxUnavailableError no.such.manifest", "SandboxUnavailableError no" } },
  }

  -- What a program prints with these layers there.
  local function printed(field, layers)
    local directory = helper.tmpdir()
    helper.write_file(directory .. "/site.lua", "return { "
      .. (layers.manifest and field.manifest or "") .. " }")
    local text = (([[
      local sbx = require "sbx"
      local sandboxes = sbx.sandboxes
      sandboxes.configure { manifest = "DIRECTORY/site.lua", CONFIGURE }
      local function sandbox()
        require "sbx.providers.local"
        return sandboxes.require_sandbox()
      end
      local ok, value = pcall(function() return PRINT end)
      print(ok and tostring(value)
        or value.class_name .. " " .. value.message:match("provider ([^ ]+) ")
        or value.class_name .. " " .. value.message:match("^(%S+)"))
    ]]):gsub("PRINT", field.print)
      :gsub("CONFIGURE", layers.configure and field.configure or ""):gsub("DIRECTORY", directory))
    helper.write_file(directory .. "/site.lua",
      (helper.read_file(directory .. "/site.lua"):gsub("DIRECTORY", directory)))
    local stdout, status, stderr = support.run_lua(text, { bare = true,
      prefix = "env -i PATH=/usr/bin:/bin SANDBOX_LOCAL_ROOT=" .. directory .. "/root "
        .. (layers.env and field.env:gsub("DIRECTORY", directory) or "") })
    assert.equal(0, status, stderr)
    return (stdout:gsub("\n$", ""))
  end

  for _, field in ipairs(FIELDS) do
    it("is argument, environment, manifest, default: " .. field.print, function()
      assert.equal(field.values[1],
        printed(field, { configure = true, env = true, manifest = true }))
      assert.equal(field.values[2], printed(field, { env = true, manifest = true }))
      assert.equal(field.values[3], printed(field, { manifest = true }))
      if not field.bare then assert.equal(field.values[4], printed(field, {})) end
      assert.equal(field.values[1], printed(field, { configure = true, manifest = true }))
    end)
  end
end)
