-- SPDX-License-Identifier: MIT
-- proves: P1, P2, P3, P4, P9, M1, A3, L4

local errors = require "sbx.errors"
local fake = require "spec.support.fake_provider"
local sbx = require "sbx"
local support = require "spec.support.sandbox"

local failure = support.failure

describe("a managed sandbox", function()
  local sandbox, now

  before_each(function()
    now = 1000
    sandbox = fake.new { now = function() return now end }
  end)

  local function create(changes) return sandbox:create_session(fake.spec(changes)) end

  local function refused(changes, text)
    local err = failure("SandboxSpecRejectedError", create, changes)
    assert.equal(1, (err.message:find("policy refused:", 1, true)), err.message)
    assert.is_truthy(err.message:find(text, 1, true), err.message)
  end

  describe("at its create", function()
    it("holds the policy against the spec before the provider is asked", function()
      sandbox = fake.new {
        policy = { egress = "internal", isolation = "container", durable = false },
      }
      refused({ network = "egress" }, "network")
      refused({ isolation = "none" }, "isolation")
      refused({ durability = "persistent" }, "persistent")
      refused({ labels = { ["tai42.sandbox"] = "1" } }, "tai42.sandbox")
      refused({ labels = { ["tai42.sandbox.owner"] = "x" } }, "tai42.sandbox.owner")
      assert.same({}, sandbox.created)
      assert.same({}, sandbox:list_sessions())
      create { network = "internal", isolation = "vm", labels = { ["tai42.sandboxes"] = "mine" } }
      assert.equal(1, #sandbox.created)
    end)

    it("validates the spec first, all faults at once", function()
      local err = failure("SandboxValidationError", create,
        { image = 1, ttl_seconds = 0, workspace_key = "a/b", color = "red" })
      assert.equal(4, #err.faults)
      assert.same({}, sandbox.created)
      failure("SandboxValidationError", sandbox.create_session, sandbox, nil)
    end)

    it("without a policy is a fault of the program, not a rejection", function()
      sandbox = fake.new { policy = false }
      local ok, err = pcall(create)
      assert.is_false(ok)
      assert.is_false(errors.is(err, "SandboxError"))
      assert.matches("no policy", tostring(err))
      assert.same({}, sandbox.created)
    end)

    it("gives the provider the effective spec and the kit's labels", function()
      local session = create { labels = { team = "a" }, env = { T = "plain" } }
      local spec = sandbox.created[1]
      assert.equal("container", spec.isolation)
      assert.equal("none", spec.network)
      assert.equal("plain", spec.env.T:reveal())
      assert.equal("a", spec.labels.team)
      assert.equal("1", spec.labels["tai42.sandbox"])
      assert.equal("k", spec.labels["tai42.sandbox.workspace"])
      assert.equal("ephemeral", spec.labels["tai42.sandbox.durability"])
      assert.equal(session.id, spec.labels["tai42.sandbox.session"])
    end)

    it("changes nothing of the caller's, and is not changed by it", function()
      local spec = fake.spec { labels = { team = "a" }, env = { T = "v" } }
      local session = sandbox:create_session(spec)
      assert.same(fake.spec { labels = { team = "a" }, env = { T = "v" } }, spec)
      spec.labels.team = "b"
      assert.same({ team = "a" }, session:info().labels)
      session:info().labels.team = "c"
      assert.same({ team = "a" }, session:info().labels)
    end)

    it("that fails in the provider leaves no row, and raises its error unchanged", function()
      local value = errors.SandboxError("half way")
      sandbox.fail_create = value
      local ok, err = pcall(create)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
      assert.same({}, sandbox:list_sessions())
      assert.same({}, sandbox._ledger:list())
      sandbox.fail_create = nil
      create()
      assert.equal(1, #sandbox:list_sessions())
    end)

    it("that is cancelled leaves no row", function()
      sandbox.pause_seconds = 9
      sbx.run(function()
        local t = sbx.spawn(create)
        sbx.sleep(0.01)
        assert.same({}, sandbox:list_sessions())
        now = 5000
        assert.same({}, (sandbox:reap()))
        assert.same({}, sandbox.destroyed)
        t:cancel()
        failure("Cancelled", t.await, t)
      end)
      assert.same({}, sandbox._ledger:list())
    end)

    it("gives each session an id of its own", function()
      local seen = {}
      for _ = 1, 500 do
        local id = create().id
        assert.is_nil(seen[id])
        assert.matches("^sbx%-%x+$", id)
        seen[id] = true
      end
    end)
  end)

  describe("knows its sessions", function()
    it("by get, list and info", function()
      local one = create { image = "one:1", labels = { a = "b" } }
      now = 1005.5
      local two = create { durability = "persistent", workspace_key = "w" }
      assert.is_true(rawequal(one, sandbox:get_session(one.id)))
      local infos = sandbox:list_sessions()
      assert.equal(2, #infos)
      assert.equal(one.id, infos[1].id)
      assert.equal(two.id, infos[2].id)
      local info = one:info()
      assert.equal("one:1", info.image)
      assert.equal("k", info.workspace_key)
      assert.equal(one.workspace_path, info.workspace_path)
      assert.equal("ephemeral", info.durability)
      assert.equal(1000, info.created_at)
      assert.equal(1100, info.expires_at)
      assert.same({ a = "b" }, info.labels)
      assert.equal(1105.5, two:info().expires_at)
    end)

    it("and no others", function()
      for _, id in ipairs { "none", "" } do
        local err = failure("SandboxSessionNotFoundError", sandbox.get_session, sandbox, id)
        assert.equal(id, err.session_id)
      end
      failure("SandboxSessionNotFoundError", sandbox.get_session, sandbox, 7)
      sandbox:destroy_session("none")
    end)

    it("and carries the provider's settings", function()
      assert.equal(30, sandbox.exec_default_timeout_seconds)
      assert.equal(60, sandbox.reap_interval_seconds)
    end)

    it("and passes checked calls on to the provider", function()
      local session = create()
      session:put_file("f", "x")
      assert.equal("x", session:get_file("f"))
      failure("SandboxFileNotFoundError", session.get_file, session, "g")
      local err = failure("SandboxError", session.exec, session, { "a" }, { timeout_seconds = 1 })
      assert.matches("limit of processes", err.message)
      assert.equal("output", session.last_request.wait)
    end)
  end)

  describe("in time", function()
    it("touch sets the end to now + ttl", function()
      local session = create()
      now = 1070
      session:touch()
      assert.equal(1170, session:info().expires_at)
      now = 1050 -- a clock that goes back
      session:touch()
      assert.equal(1150, session:info().expires_at)
    end)

    it("reap destroys the expired and returns their ids", function()
      local short, long = create { ttl_seconds = 10 }, create { ttl_seconds = 20 }
      assert.same({}, (sandbox:reap()))
      now = 1009.9
      assert.same({}, (sandbox:reap()))
      now = 1010
      assert.same({ short.id }, (sandbox:reap()))
      failure("SandboxSessionNotFoundError", short.info, short)
      assert.equal(long.id, long:info().id)
      now = 5000
      assert.same({ long.id }, (sandbox:reap()))
      assert.same({}, (sandbox:reap()))
    end)

    it("reap keeps a session that was touched, and persistent workspaces", function()
      local touched = create { ttl_seconds = 10 }
      local kept = create { ttl_seconds = 10, durability = "persistent", workspace_key = "w" }
      now = 1009
      touched:touch()
      now = 1012
      assert.same({ kept.id }, (sandbox:reap()))
      assert.same({ w = true }, sandbox.workspaces)
    end)

    it("reap goes on past one that fails, which stays and is reported", function()
      local sessions = {}
      for i = 1, 4 do
        now = 1000 + i
        sessions[i] = create { ttl_seconds = i }
      end
      local value = errors.SandboxError("would not go")
      sandbox.fail_destroy[sessions[2].id] = value
      now = 2000
      local ids, failures = sandbox:reap()
      assert.same({ sessions[1].id, sessions[3].id, sessions[4].id }, ids)
      assert.equal(1, #failures)
      assert.equal(sessions[2].id, failures[1].id)
      assert.is_true(rawequal(value, failures[1].error))
      assert.is_table(sandbox._ledger:get(sessions[2].id))
      sandbox.fail_destroy = {}
      assert.same({ sessions[2].id }, (sandbox:reap()))
      assert.same({}, sandbox._ledger:list())
    end)

    it("two reaps at once destroy each session once", function()
      for _ = 1, 5 do create { ttl_seconds = 1 } end
      now = 2000
      sandbox.pause_seconds = 0.01
      sbx.run(function()
        sbx.gather { sbx.spawn(sandbox.reap, sandbox), sbx.spawn(sandbox.reap, sandbox) }
      end)
      assert.equal(5, #sandbox.destroyed)
      assert.same({}, sandbox:list_sessions())
    end)

    it("a reap that is cancelled leaves no session half destroyed", function()
      for _ = 1, 5 do create { ttl_seconds = 1 } end
      now = 2000
      sandbox.pause_seconds = 0.02
      sbx.run(function()
        local reaper = sbx.spawn(sandbox.reap, sandbox)
        sbx.sleep(0.03)
        reaper:cancel()
      end)
      sandbox.pause_seconds = nil
      assert.equal(5, #sandbox.destroyed + #sandbox:list_sessions())
    end)
  end)

  describe("at its destroy", function()
    it("is idempotent, by session and by id", function()
      local session = create()
      session:destroy()
      session:destroy()
      sandbox:destroy_session(session.id)
      assert.same({ session.id }, sandbox.destroyed)
    end)

    it("of many at once does it once, and all wait for it", function()
      local session = create()
      sandbox.pause_seconds = 0.05
      sbx.run(function()
        local tasks = {}
        for i = 1, 5 do
          tasks[i] = sbx.spawn(function()
            session:destroy()
            assert.same({ session.id }, sandbox.destroyed)
          end)
        end
        sbx.gather(tasks)
      end)
    end)

    it("is not half done by a cancel", function()
      local session = create()
      sandbox.pause_seconds = 0.05
      sbx.run(function()
        local t = sbx.spawn(session.destroy, session)
        sbx.sleep(0.01)
        t:cancel()
        assert.same({ session.id }, sandbox.destroyed)
        assert.same({}, sandbox._ledger:list())
      end)
    end)

    it("makes every call fail from the moment it begins", function()
      local session = create()
      sandbox.pause_seconds = 0.05
      sbx.run(function()
        local t = sbx.spawn(session.destroy, session)
        sbx.sleep(0.01)
        failure("SandboxSessionNotFoundError", session.put_file, session, "f", "x")
        failure("SandboxSessionNotFoundError", session.touch, session)
        failure("SandboxSessionNotFoundError", sandbox.get_session, sandbox, session.id)
        assert.same({}, sandbox:list_sessions())
        t:await()
      end)
    end)

    it("that fails raises, keeps the row, and can be tried again", function()
      local session = create()
      sandbox.fail_destroy[session.id] = errors.SandboxError("stuck")
      failure("SandboxError", session.destroy, session)
      failure("SandboxError", session.destroy, session)
      assert.is_table(sandbox._ledger:get(session.id))
      sandbox.fail_destroy = {}
      session:destroy()
      assert.is_nil(sandbox._ledger:get(session.id))
    end)

    it("keeps a persistent workspace unless asked", function()
      local session = create { durability = "persistent", workspace_key = "w" }
      session:destroy()
      assert.same({ w = true }, sandbox.workspaces)
      session = create { durability = "persistent", workspace_key = "w" }
      session:destroy { remove_workspace = true }
      assert.same({}, sandbox.workspaces)
      create { durability = "ephemeral", workspace_key = "w" }:destroy { remove_workspace = true }
    end)

    it("refuses to remove a workspace that another holds, and stays live", function()
      local one = create { durability = "persistent", workspace_key = "w" }
      local two = create { durability = "persistent", workspace_key = "w" }
      create { durability = "persistent", workspace_key = "other" }
      create { durability = "ephemeral", workspace_key = "w" }
      local err = failure("SandboxError", one.destroy, one, { remove_workspace = true })
      assert.is_truthy(err.message:find(two.id, 1, true), err.message)
      assert.equal("w", one:info().workspace_key)
      err = failure("SandboxError", sandbox.remove_workspace, sandbox, "w")
      assert.is_truthy(err.message:find("w", 1, true))
      assert.same({}, sandbox.removed)
      two:destroy()
      one:destroy { remove_workspace = true }
      assert.same({ "w" }, sandbox.removed)
    end)

    it("removes a workspace by its key, and checks the key", function()
      create { durability = "persistent", workspace_key = "w" }:destroy()
      sandbox:remove_workspace("w")
      sandbox:remove_workspace("w")
      assert.same({}, sandbox.workspaces)
      for _, key in ipairs { "", "a/b", "..", 1 } do
        failure("SandboxValidationError", sandbox.remove_workspace, sandbox, key)
      end
    end)

    it("does not remove a workspace under a session made meanwhile", function()
      for _, how in ipairs { "destroy", "remove_workspace" } do
        local session = create { durability = "persistent", workspace_key = "w" }
        if how == "remove_workspace" then session:destroy() end
        sandbox.pause_seconds = 0.03
        sbx.run(function()
          local remover = sbx.spawn(function()
            if how == "destroy" then
              session:destroy { remove_workspace = true }
            else
              sandbox:remove_workspace("w")
            end
          end)
          sbx.sleep(0.01)
          sandbox.pause_seconds = nil -- the create is the quicker one
          local ok, made = pcall(create, { durability = "persistent", workspace_key = "w" })
          remover:await()
          if ok then
            assert.same({ w = true }, sandbox.workspaces)
            made:destroy()
          end
        end)
      end
    end)
  end)
end)
