-- SPDX-License-Identifier: MIT
-- proves: C1, O3, L1
-- `sbxlua conformance` as a program of its own: its TAP, its options and its exit codes.

local helper = require "spec.helper"
local uv = require "luv"

local quote = helper.shell_quote

describe("sbxlua conformance", function()
  local root, work

  before_each(function()
    root = helper.tmpdir()
    work = helper.tmpdir()
  end)

  local function line(words, settings)
    return ("env SANDBOX_LOCAL_ROOT=%s TAI_MCP_SANDBOX_ISOLATION=none LUA_PATH='./?.lua;;' %s %s "
      .. "conformance %s"):format(quote(root), settings or "", quote(helper.sbxlua()), words)
  end

  local function shell(text)
    local out, status = helper.run("{ " .. text .. "\n} 2>" .. quote(work .. "/stderr"))
    return out, helper.read_file(work .. "/stderr"), status
  end

  local function run(words, settings)
    return shell(line(words, settings))
  end

  local function left()
    local names, request = {}, uv.fs_scandir(root .. "/.sessions")
    while request do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      if name:sub(1, 1) ~= "." then names[#names + 1] = name end
    end
    return names
  end

  -- A module of a provider like local, with these lines run on its class.
  local function provider(code)
    helper.write_file(work .. "/probed.lua", [[
      local sandboxes = require "sbx.sandboxes"
      local register = sandboxes.register_sandbox
      local class
      sandboxes.register_sandbox = function(given) class = given end
      require "sbx.providers.local"
      sandboxes.register_sandbox = register
      ]] .. code .. [[
      register(class)
    ]])
    return "LUA_PATH=" .. quote(work .. "/?.lua;;")
  end

  it("prints TAP and ends with 0 when all pass", function()
    local out, err, status = run("local --case exec.status --case=files.empty")
    assert.same({ "TAP version 13\n1..2\nok 1 - exec.status\nok 2 - files.empty\n", "", 0 },
      { out, err, status })
    assert.same({}, left())
  end)

  it("takes its options before and after the provider, and the module's full name", function()
    local out, err, status = run("--case exec.status sbx.providers.local --case files.empty "
      .. "--image x --network egress")
    assert.same({ "TAP version 13\n1..2\nok 1 - exec.status\nok 2 - files.empty\n", "", 0 },
      { out, err, status })
  end)

  it("holds the provider to the refusals that it declares", function()
    local out, _, status = run("local --case policy.unhonoured_spec")
    assert.same({ "TAP version 13\n1..1\nok 1 - policy.unhonoured_spec\n", 0 }, { out, status })
    out, _, status = run("probed --case policy.unhonoured_spec", provider [[
      class.conformance = { reject_specs = { { spec = { ttl_seconds = 5 }, why = "a short ttl" } } }
    ]])
    assert.equal(1, status)
    assert.matches("not ok 1 %- policy.unhonoured_spec\n  %-%-%-\n  message: .*a short ttl", out)
  end)

  it("runs what the provider offers only", function()
    local out, err, status = run("probed --case lifecycle.reap_keeps_workspace", provider [[
      class.conformance = { durabilities = { "ephemeral" } }
    ]])
    assert.equal(0, status, err)
    assert.matches("ok 1 %- [%w_.]+ # SKIP", out)
  end)

  it("ends with 1 when a case fails, and goes on", function()
    local out, err, status = run("probed --case exec.status --case files.empty", provider [[
      local session = require "sbx.providers.local.session"
      function session:_get_file() return "wrong" end
    ]])
    assert.equal(1, status)
    assert.equal("", err)
    assert.matches("^TAP version 13\n1..2\nok 1 %- exec.status\nnot ok 2 %- files.empty\n", out)
    assert.same({}, left())
  end)

  it("is told once when the policy and the provider do not go together", function()
    local out, err, status = run("local --case exec.status", "TAI_MCP_SANDBOX_ISOLATION=container")
    assert.same({ "", 125 }, { out, status })
    assert.matches("^sbxlua: conformance: provider cannot honor: local: isolation [^\n]+\n$", err)
    out, err, status = run("local --network none")
    assert.same({ "", 125 }, { out, status })
    assert.matches('network "none"', err)
  end)

  it("fails with 125 and one line", function()
    for words, pattern in pairs {
      [""] = "no provider given", ["--case x"] = "no provider given",
      ["no.such.module"] = "no%.such%.module cannot be loaded",
      ["local extra"] = 'unexpected word "extra"', ["local --cas x"] = 'unknown option "%-%-cas"',
      ["--cas x local"] = 'unknown option "%-%-cas"', ["local --case"] = "%-%-case needs a value",
      ["local --network wide"] = "%-%-network must be one of none, internal, egress",
      ["local --case no.such"] = 'there is no case "no%.such"',
    } do
      local out, err, status = run(words)
      assert.same({ "", 125 }, { out, status }, words)
      assert.matches("^sbxlua: [^\n]+\n$", err)
      assert.matches(pattern, err)
    end
  end)

  it("ends with 141 when nobody reads its output, and leaves nothing", function()
    local out = shell("{ "
      .. line("local --case exec.status --case files.empty --case exec.timeout")
      .. "; echo $? >&2; } | head -1")
    assert.equal("TAP version 13\n", out)
    assert.equal("141\n", helper.read_file(work .. "/stderr"))
    assert.same({}, left())
  end)

  it("stops at a signal and cleans up", function()
    local out, err, status = run("local --case exec.timeout", "timeout --preserve-status 0.4")
    assert.same({ "", 143 }, { err, status })
    assert.matches("^TAP version 13\n", out)
    assert.same({}, left())
  end)

  it("prints its options, and stands in the lists", function()
    local out, err, status = run("--help")
    assert.same({ "", 0 }, { err, status })
    for _, word in ipairs { "MODULE", "--image IMAGE", "--case NAME", "--network TIER", "125" } do
      assert.is_truthy(out:find(word, 1, true), word)
    end
    assert.equal(out, (run("local --help")))
    assert.is_truthy(helper.run(quote(helper.sbxlua()) .. " --help"):find(
      "sbxlua conformance MODULE", 1, true))
  end)
end)
