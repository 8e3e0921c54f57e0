-- SPDX-License-Identifier: MIT
-- proves: A3, L1, L2, L4, L7, P1, P2, P3, P4, P9, E3

local errors = require "sbx.errors"
local helper = require "spec.helper"
local policy = require "sbx.policy"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, collect, failure = support.child, support.collect, support.failure

describe("local session", function()
  local sandbox, root

  before_each(function() sandbox, root = support.local_sandbox() end)

  after_each(function()
    for _, info in ipairs(sandbox:list_sessions()) do sandbox:destroy_session(info.id) end
    support.cleanup()
  end)

  local function create(changes) return sandbox:create_session(support.spec(changes)) end

  local function exists(path) return uv.fs_lstat(path) ~= nil end

  local function entries(path)
    local names, request = {}, uv.fs_scandir(path)
    while request do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      names[#names + 1] = name
    end
    table.sort(names)
    return names
  end

  describe("spec", function()
    local function rejected(changes, ...)
      local err = failure("SandboxSpecRejectedError", create, changes)
      assert.equal(1, (err.message:find("provider cannot honor:", 1, true)), err.message)
      for _, text in ipairs { ... } do
        assert.is_truthy(err.message:find(text, 1, true), err.message)
      end
    end

    it("is rejected where the host cannot give it, with the way out", function()
      rejected({ isolation = "container" }, "isolation", "sbx.providers.docker")
      rejected({ isolation = "vm" }, "isolation")
      rejected({ network = "none" }, "network", "egress")
      rejected({ network = "internal" }, "network")
      rejected({ cpu = 1 }, "cpu")
      rejected({ memory_mb = 64 }, "memory_mb")
      assert.same({}, sandbox:list_sessions())
      assert.same({}, entries(root))
    end)

    it("is rejected where its network is left to the default", function()
      local spec = support.spec()
      spec.network = nil
      local err = failure("SandboxSpecRejectedError", sandbox.create_session, sandbox, spec)
      assert.matches('network "none"', err.message)
    end)

    it("is rejected where it inherits a floor above none", function()
      sandbox:bind_policy(policy.SandboxPolicy {})
      local err = failure("SandboxSpecRejectedError", create)
      assert.matches("^provider cannot honor:", err.message)
      assert.matches("TAI_MCP_SANDBOX_ISOLATION", err.message)
    end)

    it("is checked by the policy before the provider is asked", function()
      sandbox:bind_policy(policy.SandboxPolicy { isolation = "none", egress = "none" })
      local err = failure("SandboxSpecRejectedError", create, { cpu = 1 })
      assert.matches("^policy refused:", err.message)
    end)

    it("records the image and uses it for nothing", function()
      assert.equal("no/such:image", create({ image = "no/such:image" }):info().image)
    end)
  end)

  describe("ephemeral workspace", function()
    it("is a fresh private directory that goes with the session", function()
      local session = create()
      local path = session.workspace_path
      assert.equal(root .. "/.ephemeral/" .. session.id, path)
      assert.equal("700", ("%o"):format(uv.fs_stat(path).mode % 512))
      assert.same({}, entries(path))
      session:put_file("a/b", "x")
      session:exec({ "sh", "-c", "mkdir -p d/e; echo x >d/e/f; chmod 0 d/e; ln -s / root" },
        { timeout_seconds = 30 })
      session:destroy()
      assert.is_false(exists(path))
      assert.is_true(exists("/etc"))
    end)

    it("is another one for each session of one key", function()
      local one, two = create(), create()
      assert.not_equal(one.id, two.id)
      assert.not_equal(one.workspace_path, two.workspace_path)
      one:put_file("f", "one")
      failure("SandboxFileNotFoundError", two.get_file, two, "f")
      one:destroy()
      two:put_file("f", "two")
      assert.equal("two", two:get_file("f"))
    end)

    it("goes though a command still writes into it", function()
      local session = create()
      local handle = session:exec_start({ "sh", "-c",
        "i=0; while :; do mkdir -p d$i; echo x >d$i/f; i=$((i+1)); done" },
        { timeout_seconds = 60 })
      uv.sleep(200)
      session:destroy()
      assert.is_false(exists(session.workspace_path))
      handle:kill()
    end)
  end)

  describe("persistent workspace", function()
    local function persistent(key)
      return create { workspace_key = key or "keep", durability = "persistent" }
    end

    it("is the key's own directory, adopted if there, and stays", function()
      local session = persistent()
      assert.equal(root .. "/keep", session.workspace_path)
      session:put_file("f", "kept")
      session:destroy()
      assert.equal("kept", helper.read_file(root .. "/keep/f"))
      session = persistent()
      assert.equal("kept", session:get_file("f"))
      assert.equal("persistent", session:info().durability)
    end)

    it("goes when asked, and only when no other session holds it", function()
      local one, two = persistent(), persistent()
      local err = failure("SandboxError", one.destroy, one, { remove_workspace = true })
      assert.is_truthy(err.message:find(two.id, 1, true))
      assert.equal(0, one:exec({ "true" }, { timeout_seconds = 30 }).exit_code)
      failure("SandboxError", sandbox.remove_workspace, sandbox, "keep")
      two:destroy()
      one:destroy { remove_workspace = true }
      assert.is_false(exists(root .. "/keep"))
    end)

    it("is removed by its key", function()
      persistent():destroy()
      sandbox:remove_workspace("keep")
      assert.is_false(exists(root .. "/keep"))
      sandbox:remove_workspace("keep")
      sandbox:remove_workspace("never-was")
    end)

    it("cannot be named outside of the root or onto the ephemeral ones", function()
      for _, key in ipairs { "..", ".", ".ephemeral", "a/b", "", ("x"):rep(65), "a\0b", 1 } do
        failure("SandboxValidationError", create, { workspace_key = key })
        failure("SandboxValidationError", sandbox.remove_workspace, sandbox, key)
      end
      assert.equal(root .. "/" .. ("x"):rep(64), persistent(("x"):rep(64)).workspace_path)
    end)

    it("survives a reap", function()
      local now = 1000
      local other = support.local_sandbox { root = root, now = function() return now end }
      local session = other:create_session(support.spec { workspace_key = "keep",
        durability = "persistent", ttl_seconds = 10 })
      session:put_file("f", "x")
      now = 1011
      assert.same({ session.id }, (other:reap()))
      assert.equal("x", helper.read_file(root .. "/keep/f"))
    end)
  end)

  describe("gone", function()
    it("answers every call with SandboxSessionNotFoundError", function()
      local session = create()
      local handle = session:exec_start(child("sleep", 60), { timeout_seconds = 60 })
      session:destroy()
      for _, call in ipairs {
        function() session:exec({ "true" }, { timeout_seconds = 1 }) end,
        function() session:exec_start({ "true" }, { timeout_seconds = 1 }) end,
        function() session:put_file("f", "x") end,
        function() session:get_file("f") end,
        function() session:info() end,
        function() session:touch() end,
        function() sandbox:get_session(session.id) end,
      } do
        local err = failure("SandboxSessionNotFoundError", call)
        assert.equal(session.id, err.session_id)
      end
      session:destroy()
      sandbox:destroy_session(session.id)
      assert.equal(137, collect(handle).exit_code)
    end)

    it("checks arguments before it looks for the session", function()
      local session = create()
      session:destroy()
      failure("SandboxValidationError", session.exec, session, {}, { timeout_seconds = 1 })
    end)

    it("by its ttl though a command runs", function()
      local now = 1000
      local other = support.local_sandbox { now = function() return now end }
      local session = other:create_session(support.spec { ttl_seconds = 10 })
      local handle = session:exec_start(child("write-pid", "pid", "sleep", 60),
        { timeout_seconds = 60 })
      local pid = support.read_pid(session, "pid")
      now = 1010
      assert.same({ session.id }, (other:reap()))
      assert.is_nil(support.process_state(pid))
      assert.equal(137, collect(handle).exit_code)
    end)

    it("at once: its key can be used again, twenty times", function()
      for i = 1, 20 do
        local session = create { workspace_key = "same", durability = "persistent" }
        assert.equal(0, session:exec({ "true" }, { timeout_seconds = 30 }).exit_code)
        session:put_file("n", tostring(i))
        session:destroy()
      end
      assert.equal("20", helper.read_file(root .. "/same/n"))
    end)
  end)

  describe("many at once", function()
    it("are made and destroyed side by side", function()
      sbx.run(function()
        local tasks = {}
        for i = 1, 30 do
          tasks[i] = sbx.spawn(function()
            local session = create()
            session:put_file("f", tostring(i))
            local r = session:exec({ "cat", "f" }, { timeout_seconds = 30 })
            session:destroy()
            return r.stdout
          end)
        end
        for i, text in ipairs(sbx.gather(tasks)) do assert.equal(tostring(i), text) end
      end)
      assert.same({}, sandbox:list_sessions())
      assert.same({}, entries(root .. "/.ephemeral"))
    end)

    it("cancelled while they are made leave no row and no directory", function()
      sbx.run(function()
        for i = 1, 40 do
          local task = sbx.spawn(create)
          if i % 4 > 0 then sbx.sleep(i % 4 / 4000) end
          task:cancel()
          local ok, session = pcall(task.await, task)
          if ok then session:destroy() else assert.is_true(errors.is(session, "Cancelled")) end
        end
      end)
      assert.same({}, sandbox:list_sessions())
      assert.same({}, entries(root .. "/.ephemeral"))
    end)
  end)

  describe("root", function()
    it("is made, with its parents, private", function()
      local path = helper.tmpdir() .. "/new/root"
      local other = support.local_sandbox { root = path }
      other:create_session(support.spec()):destroy()
      assert.equal("700", ("%o"):format(uv.fs_stat(path).mode % 512))
    end)

    it("that cannot be used is an error with the way out, and nothing is left", function()
      local file = helper.tmpdir() .. "/file"
      helper.write_file(file, "x")
      local other = support.local_sandbox { root = file .. "/root" }
      local err = failure("SandboxError", other.create_session, other, support.spec())
      assert.matches("SANDBOX_LOCAL_ROOT", err.message)
      assert.same({}, other:list_sessions())
    end)

    it("is below the state directory for a user who cannot write the system's", function()
      local works = uv.getuid() == 0 and select(2, helper.run(
        "setpriv --reuid=65533 --clear-groups " .. helper.shell_quote(helper.sbxlua())
        .. " -e '' 2>/dev/null")) == 0
      helper.must_work("setpriv", works, "needs root, setpriv and a build that others can read")
      for _, home in ipairs { "XDG_STATE_HOME", "HOME" } do
        local code = [[
          local root = sandbox._workspaces._setting
          for name in ("XDG_STATE_HOME HOME"):gmatch("%S+") do uv.os_unsetenv(name) end
          uv.os_setenv("]] .. home .. [[", root)
          local other = require("sbx.providers.local").new { settings = { base_path = "/bin",
            exec_default_timeout_seconds = 1, reap_interval_seconds = 1 } }
          other:bind_policy(sbx.policy.SandboxPolicy { isolation = "none" })
          local s = other:create_session { image = "x", workspace_key = "k", ttl_seconds = 9,
            durability = "persistent", network = "egress" }
          print((s.workspace_path:sub(#root + 1)))
          s:destroy()
        ]]
        support.assert_lua(home == "HOME" and "/.local/state/sbxlua/local/k\n"
          or "/sbxlua/local/k\n", code, { prefix = "setpriv --reuid=65533 --clear-groups",
          open = true })
      end
    end)
  end)

  it("carries the provider's defaults, and exec still requires a deadline", function()
    assert.equal(300, sandbox.exec_default_timeout_seconds)
    assert.equal(300, sandbox.reap_interval_seconds)
    local session = create()
    failure("SandboxValidationError", session.exec, session, { "true" }, {})
  end)

  it("shows its id and nothing secret", function()
    local session = create { env = { T = sbx.secret("s3cr3t") } }
    assert.equal("SandboxSession(" .. session.id .. ")", tostring(session))
    assert.equal("Sandbox(local)", tostring(sandbox))
    assert.is_nil(tostring(session:info()):find("s3cr3t", 1, true))
    failure("SandboxError", sandbox.get_session, sandbox, "no-such-id")
  end)
end)
