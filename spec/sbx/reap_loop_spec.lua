-- SPDX-License-Identifier: MIT
-- proves: P8, L4, P4
-- The reap loop and the log it speaks to. Each case is a program of its own: the slot it belongs to
-- stays for the process.

local support = require "spec.support.sandbox"

-- Runs code in a program with a provider in memory or, by `real`, local; `made(changes)` makes a
-- session, `lines` is what was logged.
local function runs(expected, code, options)
  options = options or {}
  support.assert_lua(expected, [[
    local sbx = require "sbx"
    local errors, log, sandboxes = sbx.errors, require "sbx.log", sbx.sandboxes
    local lines = {}
    log.set_sink(function(level, text) lines[#lines + 1] = level .. ": " .. text end)
    local class, sandbox
  ]] .. (options.real and [[
    local root = os.tmpname()
    os.remove(root)
    sandboxes.configure { sandbox_module = "sbx.providers.local", isolation = "none",
      provider = { root = root, reap_interval_seconds = 0.05 } }
    sandbox = sandboxes.require_sandbox()
    local function made(changes)
      local spec = { image = "host", workspace_key = "w", durability = "ephemeral",
        network = "egress", ttl_seconds = 1 }
      for name, value in pairs(changes or {}) do spec[name] = value end
      return sandbox:create_session(spec)
    end
  ]] or [[
    local fake = require "spec.support.fake_provider"
    local now = 1000
    class = setmetatable({ new = function(options)
      options.now = function() return now end
      return fake.class.new(options)
    end }, { __index = fake.class })
    sandboxes.configure { provider = { reap_interval_seconds = 0.05 } }
    local function made(changes) return sandbox:create_session(fake.spec(changes)) end
    local function register()
      sandboxes.register_sandbox(class)
      sandbox = sandboxes.require_sandbox()
    end
  ]]) .. code, { bare = true, prefix = "env -i PATH=/usr/bin:/bin LUA_PATH='./?.lua;;' TMPDIR="
    .. os.getenv("TMPDIR") })
end

describe("the reap loop", function()
  it("runs during sbx.run, round after round", function()
    runs("0\tfalse\n2\n4\n", [[
      register()
      sbx.run(function()
        made() made()
        sbx.sleep(0.12)
        print(#sandbox.destroyed, #sandbox:list_sessions() == 0)
        now = now + 200
        sbx.sleep(0.15)
        print(#sandbox.destroyed)
        made() made()
        now = now + 200
        sbx.sleep(0.15)
        print(#sandbox.destroyed)
      end)
    ]])
  end)

  it("keeps no run alive and is there again in the next", function()
    runs("true\n0\n1\n", [[
      sandboxes.configure { provider = { reap_interval_seconds = 100 } }
      register()
      local uv = require "luv"
      local before = uv.hrtime()
      for _ = 1, 50 do sbx.run(function() sbx.sleep(0.001) end) end
      print(uv.hrtime() - before < 5e9)
      sandbox.reap_interval_seconds = 0.05
      made()
      now = now + 200
      uv.sleep(150)
      print(#sandbox.destroyed)
      sbx.run(function() sbx.sleep(0.15) end)
      print(#sandbox.destroyed)
    ]])
  end)

  it("begins with the provider, in the middle of a run", function()
    runs("1\n", [[
      sbx.run(function()
        register()
        made()
        now = now + 200
        sbx.sleep(0.15)
        print(#sandbox.destroyed)
      end)
    ]])
  end)

  it("logs a round that fails, and the next one still comes", function()
    runs("true\nwarning: reaping expired sessions failed: SandboxError: ledger gone\n1\n", [[
      register()
      local list, failing = sandbox._ledger.list, true
      function sandbox._ledger.list(self)
        if failing then error(errors.SandboxError("ledger gone"), 0) end
        return list(self)
      end
      sbx.run(function()
        made()
        now = now + 200
        sbx.sleep(0.2)
        print(#lines >= 2)
        print(lines[1])
        failing = false
        sbx.sleep(0.15)
        print(#sandbox.destroyed)
      end)
    ]])
  end)

  it("logs a session that will not go, and tries it again", function()
    runs("true\ttrue\n1\ttrue\n2\n", [[
      register()
      sbx.run(function()
        local stuck, other = made(), made()
        sandbox.fail_destroy[stuck.id] = errors.SandboxError("would not go")
        now = now + 200
        sbx.sleep(0.2)
        print(lines[1] == "warning: expired session " .. stuck.id
          .. " could not be destroyed: SandboxError: would not go", #lines >= 2)
        print(#sandbox.destroyed, sandbox.destroyed[1] == other.id)
        sandbox.fail_destroy = {}
        sbx.sleep(0.15)
        print(#sandbox.destroyed)
      end)
    ]])
  end)

  it("ends a teardown it has begun before the run is over", function()
    runs("1\t0\n", [[
      register()
      made()
      now = now + 200
      sandbox.pause_seconds = 0.3
      sbx.run(function() sbx.sleep(0.1) end)
      print(#sandbox.destroyed, #sandbox._ledger:list())
    ]])
  end)

  it("hides no deadlock", function()
    runs("TaskError\n", [[
      register()
      local ok, err = pcall(sbx.run, function() require("sbx.waits").latch():wait() end)
      print(err.class_name)
    ]])
  end)

  it("takes an interval of any length", function()
    runs("0\n", [[
      register()
      sandbox.reap_interval_seconds = 1e300
      made()
      now = now + 200
      sbx.run(function() sbx.sleep(0.1) end)
      print(#sandbox.destroyed)
    ]])
  end)

  it("destroys a session in whose commands something runs", function()
    runs("137\n7 whole\nSandboxSessionNotFoundError\n0\n", [[
      sbx.run(function()
        local session = made()
        local handle = session:exec_start({ "sleep", "60" }, { timeout_seconds = 60 })
        local one_shot = sbx.spawn(session.exec, session,
          { "sh", "-c", "sleep 1.6; printf whole; exit 7" }, { timeout_seconds = 30 })
        for item in handle:output() do print(item.exit_code) end
        local result = one_shot:await()
        print(result.exit_code .. " " .. result.stdout)
        local ok, err = pcall(session.exec, session, { "true" }, { timeout_seconds = 1 })
        print(err.class_name)
        print(#sandbox:list_sessions())
      end)
      os.execute("rm -rf " .. root)
    ]], { real = true })
  end)

  it("leaves a session alone that is touched in time", function()
    runs("x\n", [[
      sbx.run(function()
        local session = made()
        session:put_file("f", "x")
        for _ = 1, 6 do
          sbx.sleep(0.25)
          session:touch()
        end
        print(session:get_file("f"))
        session:destroy()
      end)
      os.execute("rm -rf " .. root)
    ]], { real = true })
  end)
end)

describe("the log", function()
  it("goes to stderr, a line an event, until a program takes it", function()
    local stdout, status, stderr = support.run_lua([[
      local log = require "sbx.log"
      log.info("one")
      log.warning("two")
      log.set_sink(function(level, text) print(level, text) end)
      log.info("three")
      log.warning("four")
      log.set_sink(nil)
      log.info("five")
    ]], { bare = true })
    assert.same({ "info\tthree\nwarning\tfour\n", 0, "sbx: one\nsbx: warning: two\nsbx: five\n" },
      { stdout, status, stderr })
  end)
end)
