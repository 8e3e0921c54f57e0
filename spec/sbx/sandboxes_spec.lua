-- SPDX-License-Identifier: MIT
-- proves: P5, P6, P7, P9, O1, O2
-- The slot, each case in a program of its own: what is registered stays for the process.

local helper = require "spec.helper"
local support = require "spec.support.sandbox"
local uv = require "luv"

-- Runs code in a program that knows `sandboxes`, `errors`, fake(name) -> a provider's class that
-- registers nothing by itself, and show(fn, ...), which prints an error's class and text.
local function runs(expected, code, environment)
  support.assert_lua(expected, [[
    local sbx = require "sbx"
    local errors, sandboxes = sbx.errors, sbx.sandboxes
    local kit, settings = require "sbx.kit", require "sbx.settings"
    local function fake(name)
      local class = kit.ManagedSandbox.extend(name)
      class.settings = settings.provider("SANDBOX_FAKE_", {
        { name = "color", env = "SANDBOX_FAKE_COLOR", type = "string", default = "red" } })
      function class.new(options)
        return kit.ManagedSandbox.init(class, { color = options.settings.color }, options)
      end
      return class
    end
    local function show(fn, ...)
      local ok, err = pcall(fn, ...)
      print(ok and "no error" or err.class_name or err, ok or tostring(err.message))
    end
  ]] .. code, { bare = true, prefix = "env -i PATH=/usr/bin:/bin " .. (environment or "") })
end

local function says(patterns, code, environment)
  local stdout, status, stderr = support.run_lua([[
    local sbx = require "sbx"
    local errors, sandboxes = sbx.errors, sbx.sandboxes
    local ok, err = pcall(function() ]] .. code .. [[ end)
    assert(not ok, "no error")
    print(errors.is(err, "Error") and err.class_name or "foreign", tostring(err))
  ]], { bare = true, prefix = "env -i PATH=/usr/bin:/bin " .. (environment or "") })
  assert.equal(0, status, stderr)
  for _, pattern in ipairs(patterns) do
    assert.is_truthy(stdout:find(pattern, 1, true), stdout .. " <- " .. pattern)
  end
end

describe("sbx.sandboxes", function()
  describe("without a provider", function()
    it("raises SandboxUnavailableError that names the ways to one", function()
      says({ "SandboxUnavailableError", "TAI_MCP_SANDBOX", "sandbox_module" },
        "sandboxes.require_sandbox()")
      says({ "SandboxUnavailableError", "no.such.module", "TAI_MCP_SANDBOX" },
        "sandboxes.require_sandbox()", "TAI_MCP_SANDBOX=no.such.module")
      says({ "SandboxUnavailableError", "sbx.models", "registered no" },
        "sandboxes.require_sandbox()", "TAI_MCP_SANDBOX=sbx.models")
    end)

    it("answers the policy and loads no provider", function()
      runs("egress\tcontainer\tfalse\ttrue\nnil\tnil\n", [[
        local p = sandboxes.sandbox_policy()
        print(p.egress, p.isolation, p.scrub_transcript, p.durable)
        print(package.loaded["sbx.providers.local"], package.loaded["_sbx.exec"])
      ]])
    end)

    it("keeps an error of the module's own", function()
      says({ "SandboxValidationError", "SANDBOX_LOCAL_ROOT" }, "sandboxes.require_sandbox()",
        "TAI_MCP_SANDBOX=sbx.providers.local SANDBOX_LOCAL_ROOT=relative")
    end)
  end)

  describe("policy", function()
    it("comes from the environment", function()
      runs("none\tvm\ttrue\tfalse\n", [[
        local p = sandboxes.sandbox_policy()
        print(p.egress, p.isolation, p.scrub_transcript, p.durable)
      ]], "TAI_MCP_SANDBOX_EGRESS=none TAI_MCP_SANDBOX_ISOLATION=vm "
        .. "TAI_MCP_SANDBOX_SCRUB_TRANSCRIPT=yes TAI_MCP_SANDBOX_DURABLE=0")
    end)

    it("comes from configure before the environment", function()
      runs("internal\tvm\n", [[
        sandboxes.configure { egress = "internal" }
        local p = sandboxes.sandbox_policy()
        print(p.egress, p.isolation)
      ]], "TAI_MCP_SANDBOX_EGRESS=none TAI_MCP_SANDBOX_ISOLATION=vm")
    end)

    it("stops with a bad value, its variable and what is allowed", function()
      says({ "SandboxValidationError", "TAI_MCP_SANDBOX_EGRESS", "open", "internal" },
        "sandboxes.sandbox_policy()", "TAI_MCP_SANDBOX_EGRESS=open")
      says({ "SandboxValidationError", "TAI_MCP_SANDBOX_EGRESS" },
        "sandboxes.require_sandbox()",
        "TAI_MCP_SANDBOX=sbx.providers.local TAI_MCP_SANDBOX_EGRESS=open")
    end)

    it("is bound to the provider that is registered", function()
      runs("vm\n", [[
        sandboxes.register_sandbox(fake("one"))
        print(sandboxes.require_sandbox()._policy.isolation)
      ]], "TAI_MCP_SANDBOX_ISOLATION=vm")
    end)
  end)

  describe("slot", function()
    it("is filled by the module the settings select, once", function()
      runs("local\ttrue\n", [[
        local one = sandboxes.require_sandbox()
        print(one.provider_name, one == sandboxes.require_sandbox())
      ]], "TAI_MCP_SANDBOX=sbx.providers.local")
      runs("local\n", [[
        sandboxes.configure { sandbox_module = "sbx.providers.local" }
        print(sandboxes.require_sandbox().provider_name)
      ]])
    end)

    it("holds one provider: the same again is fine, a different one raises", function()
      runs("one\nSandboxError\tcannot register provider two: the slot holds one\ntrue\n", [[
        local class = fake("one")
        sandboxes.register_sandbox(class)
        local sandbox = sandboxes.require_sandbox()
        sandboxes.register_sandbox(class)
        print(sandboxes.require_sandbox().provider_name)
        show(sandboxes.register_sandbox, fake("two"))
        print(sandboxes.require_sandbox() == sandbox)
      ]])
    end)

    it("stays empty when the provider's settings are bad, and can be filled then", function()
      runs("SandboxValidationError\tinvalid settings: "
        .. "SANDBOX_FAKE_DEFAULT_TTL_SECONDS: must be a whole number from 1 to 9007199254740992; "
        .. "got \"soon\"\none\n", [[
        local uv = require "luv"
        show(sandboxes.register_sandbox, fake("one"))
        uv.os_unsetenv("SANDBOX_FAKE_DEFAULT_TTL_SECONDS")
        sandboxes.register_sandbox(fake("one"))
        print(sandboxes.require_sandbox().provider_name)
      ]], "SANDBOX_FAKE_DEFAULT_TTL_SECONDS=soon")
    end)

    it("gives the provider its settings: explicit, then environment, then default", function()
      runs("blue\t7\t300\n", [[
        sandboxes.configure { provider = { exec_default_timeout_seconds = 7 } }
        sandboxes.register_sandbox(fake("one"))
        local s = sandboxes.require_sandbox()
        print(s.color, s.exec_default_timeout_seconds, s.reap_interval_seconds)
      ]], "SANDBOX_FAKE_COLOR=blue SANDBOX_FAKE_EXEC_DEFAULT_TIMEOUT_SECONDS=9")
    end)
  end)

  describe("configure", function()
    it("comes before the provider, not after", function()
      says({ "SandboxError", "registered already" }, [[
        sandboxes.require_sandbox()
        sandboxes.configure { egress = "none" }
      ]], "TAI_MCP_SANDBOX=sbx.providers.local")
    end)

    it("refuses what it does not know or cannot use, and keeps what was", function()
      runs("SandboxValidationError\nSandboxValidationError\nnone\n", [[
        sandboxes.configure { egress = "none" }
        for _, bad in ipairs { { egres = "none" }, { isolation = "strong" } } do
          local ok, err = pcall(sandboxes.configure, bad)
          print(not ok and err.class_name)
        end
        print(sandboxes.sandbox_policy().egress)
      ]])
    end)

    it("does not keep the caller's table", function()
      runs("internal\n", [[
        local values = { egress = "internal" }
        sandboxes.configure(values)
        values.egress = "none"
        print(sandboxes.sandbox_policy().egress)
      ]])
    end)
  end)

  describe("manifest", function()
    local path

    before_each(function() path = helper.tmpdir() .. "/site.lua" end)

    it("selects the provider, its settings and the policy", function()
      helper.write_file(path, [[return { sandbox_module = "sbx.providers.local",
        policy = { isolation = "none" }, provider = { reap_interval_seconds = 7 } }]])
      runs("local\t7\tnone\n", ([[
        sandboxes.configure { manifest = %q }
        local s = sandboxes.require_sandbox()
        print(s.provider_name, s.reap_interval_seconds, s._policy.isolation)
      ]]):format(path))
    end)

    it("is read again by each configure, and forgotten by one that names none", function()
      helper.write_file(path, "return { policy = { egress = 'none' } }")
      runs("none\ninternal\negress\n", ([[
        sandboxes.configure { manifest = %q }
        print(sandboxes.sandbox_policy().egress)
        local file = io.open(%q, "w")
        file:write("return { policy = { egress = 'internal' } }")
        file:close()
        sandboxes.configure { manifest = %q }
        print(sandboxes.sandbox_policy().egress)
        sandboxes.configure {}
        print(sandboxes.sandbox_policy().egress)
      ]]):format(path, path, path))
    end)

    it("that is bad changes nothing", function()
      helper.write_file(path, "return { policy = { egress = 'wide' } }")
      runs("SandboxValidationError\ttrue\nSandboxValidationError\ttrue\n"
        .. "SandboxValidationError\ttrue\nnone\n", ([[
        sandboxes.configure { egress = "none" }
        local function try(values, word)
          local ok, err = pcall(sandboxes.configure, values)
          print(err.class_name, err.message:find(word, 1, true) ~= nil)
        end
        try({ manifest = %q }, "manifest.policy.egress")
        try({ manifest = %q }, "No such file")
        try({ manifest = {} }, "manifest: must be a path")
        print(sandboxes.sandbox_policy().egress)
      ]]):format(path, path .. ".none"))
    end)

    it("has names of the provider's checked when that is registered", function()
      helper.write_file(path, "return { provider = { colour = 'red' } }")
      runs("SandboxValidationError\tinvalid settings: provider.colour: unknown setting\n", ([[
        sandboxes.configure { manifest = %q }
        show(sandboxes.register_sandbox, fake("one"))
      ]]):format(path))
    end)
  end)

  describe("ledger", function()
    local state

    before_each(function() state = helper.tmpdir() end)

    local SHOW = [[
      sandboxes.register_sandbox(fake("one"))
      local ledger = sandboxes.require_sandbox()._ledger
      print(ledger.shared and ledger._path or "memory")
    ]]

    it("is in memory unless told, and loads nothing of SQLite then", function()
      for _, setting in ipairs { "", "SBX_LEDGER=memory", "SBX_LEDGER=" } do
        runs("memory\nnil\n", SHOW .. "print(package.loaded['_sbx.sqlite'])", setting)
      end
    end)

    it("is below the state directory, or where it is told to be", function()
      runs(state .. "/sbxlua/ledger.db\n", SHOW, "SBX_LEDGER=sqlite XDG_STATE_HOME=" .. state)
      runs(state .. "/.local/state/sbxlua/ledger.db\n", SHOW, "SBX_LEDGER=sqlite HOME=" .. state)
      runs(state .. "/.local/state/sbxlua/ledger.db\n", SHOW,
        "SBX_LEDGER=sqlite XDG_STATE_HOME=relative HOME=" .. state)
      runs(state .. "/a b/l.db\n", SHOW, "'SBX_LEDGER=sqlite:" .. state .. "/a b/l.db'")
      runs(state .. "/c.db\n", ("sandboxes.configure { ledger = 'sqlite:%s/c.db' }"):format(state)
        .. SHOW, "SBX_LEDGER=memory")
      for _, name in ipairs { "/sbxlua", "/.local/state/sbxlua", "/a b" } do
        assert.equal(tonumber("700", 8), uv.fs_stat(state .. name).mode % 4096)
      end
      assert.equal(tonumber("600", 8), uv.fs_stat(state .. "/sbxlua/ledger.db").mode % 4096)
    end)

    it("without a place or with a bad name stops the start, and can be corrected", function()
      says({ "SandboxError", "XDG_STATE_HOME", "SBX_LEDGER=sqlite:PATH" },
        "sandboxes.require_sandbox()", "SBX_LEDGER=sqlite TAI_MCP_SANDBOX=sbx.providers.local")
      says({ "SandboxValidationError", "SBX_LEDGER", "memory, sqlite or sqlite:PATH" },
        "sandboxes.require_sandbox()", "SBX_LEDGER=redis TAI_MCP_SANDBOX=sbx.providers.local")
      says({ "SandboxError", "must be absolute" }, "sandboxes.require_sandbox()",
        "SBX_LEDGER=sqlite:l.db TAI_MCP_SANDBOX=sbx.providers.local")
      runs("SandboxError\nmemory\n", [[
        local class = fake("one")
        local ok, err = pcall(sandboxes.register_sandbox, class)
        print(err.class_name)
        sandboxes.configure { ledger = "memory" }
        sandboxes.register_sandbox(class)
        print(sandboxes.require_sandbox()._ledger.shared and "shared" or "memory")
      ]], "SBX_LEDGER=sqlite:/proc/no/l.db")
    end)

    it("that is damaged stops the start and stays as it is", function()
      helper.write_file(state .. "/l.db", ("no database "):rep(100))
      says({ "SandboxError", state .. "/l.db", "left as it is" }, "sandboxes.require_sandbox()",
        "TAI_MCP_SANDBOX=sbx.providers.local SBX_LEDGER=sqlite:" .. state .. "/l.db")
      assert.equal(("no database "):rep(100), helper.read_file(state .. "/l.db"))
    end)
  end)

  describe("recovery", function()
    it("is a part of the registration, which fails with it and can be tried again", function()
      runs("SandboxError\tcannot look\nSandboxUnavailableError\nfine\n", [[
        local class = fake("one")
        function class:_list_resources() errors.raise(errors.SandboxError("cannot look")) end
        show(sandboxes.register_sandbox, class)
        local ok, err = pcall(sandboxes.require_sandbox)
        print(err.class_name)
        class._list_resources = nil
        sandboxes.register_sandbox(class)
        print(sandboxes.require_sandbox() and "fine")
      ]])
    end)
  end)

  it("runs the whole way through the front door", function()
    runs("3\thi\terr\n", [[
      local root = os.tmpname()
      os.remove(root)
      sandboxes.configure { sandbox_module = "sbx.providers.local", isolation = "none",
        provider = { root = root } }
      sbx.run(function()
        local session = sandboxes.require_sandbox():create_session { image = "busybox:1",
          workspace_key = "demo", durability = "ephemeral", network = "egress", ttl_seconds = 300,
          env = { TOKEN = sbx.secret("s3cr3t") }, labels = { team = "a" } }
        local r = session:exec({ "sh", "-c", "cat; printf err >&2; exit 3" },
          { stdin = "hi", timeout_seconds = 10 })
        print(r.exit_code, r.stdout, r.stderr)
        session:destroy()
      end)
      os.execute("rm -rf " .. root)
    ]])
  end)
end)
