-- SPDX-License-Identifier: MIT
-- proves: P5, P6, E2
-- What the dead leave behind, by a provider in memory and forged owners: whose a thing is, who may
-- take it, and who waits for whom. With real processes: recovery_processes_spec.lua.

local errors = require "sbx.errors"
local fake = require "spec.support.fake_provider"
local ledger_memory = require "sbx.kit.ledger_memory"
local log = require "sbx.log"
local owners = require "spec.support.owners"
local sbx = require "sbx"
local support = require "spec.support.sandbox"

local failure = support.failure

describe("recovery", function()
  local ledger, sandbox, resources, lines

  before_each(function()
    lines = {}
    log.set_sink(function(level, text) lines[#lines + 1] = level .. ": " .. text end)
    ledger = ledger_memory.new()
    ledger.shared = true
    function ledger.identity() return "this" end
    sandbox = fake.new { ledger = ledger }
    resources = {}
    function sandbox._list_resources()
      local list = {}
      for id, resource in pairs(resources) do
        list[#list + 1] = { id = id, owner = resource.owner, workspace_key = "w",
          durability = resource.durability or "ephemeral" }
      end
      table.sort(list, function(a, b) return a.id < b.id end)
      return list
    end
    local destroy = sandbox._destroy_resources
    function sandbox:_destroy_resources(what, remove_workspace)
      destroy(self, what, remove_workspace)
      self.kept = self.kept or {}
      self.kept[what.id] = not remove_workspace
      resources[what.id] = nil
    end
  end)

  after_each(function() log.set_sink(nil) end)

  local function row(id, changes)
    local fields = { id = id, provider = "fake", image = "i", workspace_key = "w",
      workspace_path = "/w", durability = "ephemeral", created_at = #ledger:list(),
      expires_at = 9e9,
      ttl_seconds = 100, labels = {}, has_env = false, state = "live", owner = owners.reused_pid }
    for name, value in pairs(changes or {}) do fields[name] = value end
    assert(ledger:insert(fields))
    return fields
  end

  local function recovered()
    local ids, list, failures = {}, sandbox:recover()
    for i, each in ipairs(list) do ids[i] = each.id end
    return ids, failures, list
  end

  local function left()
    local ids = {}
    for i, each in ipairs(ledger:list()) do ids[i] = each.id end
    return ids
  end

  describe("of rows", function()
    it("takes those of the dead and no others", function()
      row("reused", { owner = owners.reused_pid })
      row("booted", { owner = owners.other_boot })
      row("own", { owner = owners.own })
      row("living", { owner = owners.living() })
      row("namespace", { owner = owners.other_namespace })
      row("host", { owner = owners.other_host })
      for i, text in ipairs(owners.garbage) do row("garbage" .. i, { owner = text }) end
      assert.same({ "reused", "booted" }, (recovered()))
      assert.same({ "reused", "booted" }, sandbox.destroyed)
      assert.equal(4 + #owners.garbage, #left())
    end)

    it("takes the ephemeral workspace along and keeps the persistent one", function()
      row("e")
      row("p", { durability = "persistent" })
      local _, _, list = recovered()
      assert.same({ { id = "e", durability = "ephemeral", workspace_key = "w" },
        { id = "p", durability = "persistent", workspace_key = "w" } }, list)
      assert.same({ e = false, p = true }, sandbox.kept)
      assert.same({ "info: provider fake: recovered session e (ephemeral, workspace w), left by a "
        .. "process that is gone", "info: provider fake: recovered session p (persistent, "
        .. "workspace w), left by a process that is gone" }, lines)
      assert.same({}, left())
    end)

    it("twice finds nothing more", function()
      row("a")
      assert.same({ "a" }, (recovered()))
      assert.same({}, (recovered()))
      assert.same({ "a" }, sandbox.destroyed)
      assert.equal(1, #lines)
    end)

    it("takes over what a dead process was making or ending", function()
      row("made", { state = "creating", claimed_by = owners.reused_pid })
      row("ended", { state = "destroying", owner = owners.own, claimed_by = owners.reused_pid })
      row("detached", { state = "creating", owner = "ledger:this", claimed_by = owners.other_boot })
      row("both", { state = "destroying", claimed_by = owners.reused_pid })
      assert.same({ "made", "ended", "detached", "both" }, (recovered()))
      assert.same({}, left())
    end)

    it("leaves alone what a living process is at, whoever owned it", function()
      row("made", { state = "creating", owner = owners.living(), claimed_by = owners.living() })
      row("ended", { state = "destroying", claimed_by = owners.living() })
      row("unseen", { state = "destroying", claimed_by = owners.other_host })
      assert.same({}, (recovered()))
      assert.same({ "made", "ended", "unseen" }, left())
    end)

    it("leaves sessions alone that belong to the ledger", function()
      row("detached", { owner = "ledger:this" })
      row("strange", { owner = "ledger:other" })
      assert.same({}, (recovered()))
    end)

    it("leaves those of another provider alone", function()
      row("other", { provider = "other" })
      assert.same({}, (recovered()))
      assert.same({ "other" }, left())
    end)

    it("goes on past one that will not go, which stays and is told", function()
      for _, id in ipairs { "a", "b", "c" } do row(id) end
      local value = errors.SandboxError("would not go")
      sandbox.fail_destroy.b = value
      local ids, failures = recovered()
      assert.same({ "a", "c" }, ids)
      assert.equal("b", failures[1].id)
      assert.is_true(rawequal(value, failures[1].error))
      assert.same({ "b" }, left())
      assert.matches("^warning: .*session b could not be recovered: .*would not go", lines[2])
      sandbox.fail_destroy = {}
      assert.same({ "b" }, (recovered()))
    end)

    it("leaves nothing half ended when it is cancelled", function()
      for i = 1, 4 do row("n" .. i) end
      sandbox.pause_seconds = 0.02
      sbx.run(function()
        local t = sbx.spawn(sandbox.recover, sandbox)
        sbx.sleep(0.03)
        t:cancel()
      end)
      assert.equal(4, #sandbox.destroyed + #left())
    end)
  end)

  describe("of resources without a row", function()
    it("takes those of the dead and no others", function()
      resources = { dead = { owner = owners.reused_pid }, boot = { owner = owners.other_boot },
        mine = { owner = owners.own }, living = { owner = owners.living() },
        host = { owner = owners.other_host }, namespace = { owner = owners.other_namespace },
        nobody = {}, number = { owner = 5 } }
      for i, text in ipairs(owners.garbage) do resources["garbage" .. i] = { owner = text } end
      assert.same({ "boot", "dead" }, (recovered()))
      assert.is_nil(resources.dead)
      assert.is_table(resources.living)
      assert.same({}, (recovered()))
      assert.equal(2, #lines)
    end)

    it("takes what this ledger has forgotten, not what another one knows", function()
      resources = { forgotten = { owner = "ledger:this" }, theirs = { owner = "ledger:other" } }
      assert.same({ "forgotten" }, (recovered()))
      ledger.shared = nil
      resources = { forgotten = { owner = "ledger:this" } }
      assert.same({}, (recovered()))
    end)

    it("keeps persistent workspaces", function()
      resources = { p = { owner = owners.reused_pid, durability = "persistent" } }
      assert.same({ "p" }, (recovered()))
      assert.is_true(sandbox.kept.p)
    end)

    it("takes nothing that has a row", function()
      row("a", { owner = "ledger:this" })
      resources = { a = { owner = "ledger:this" } }
      assert.same({}, (recovered()))
    end)

    it("does not count one that another process has just ended", function()
      resources = { a = { owner = owners.reused_pid } }
      local get = ledger.get
      function ledger.get(self, id) -- between the look at the resource and that at the row
        resources.a = nil
        return get(self, id)
      end
      assert.same({}, (recovered()))
      assert.same({}, lines)
    end)
  end)

  describe("of a workspace's removal", function()
    local function mark(owner_text)
      row("removing:fake:w", { durability = "persistent", state = "removing", owner = owner_text,
        claimed_by = owner_text })
    end

    it("forgets the mark of a dead process and keeps that of a living one", function()
      mark(owners.reused_pid)
      assert.same({}, (recovered()))
      assert.same({}, left())
      mark(owners.living())
      recovered()
      assert.same({ "removing:fake:w" }, left())
    end)

    it("holds a create up while it lasts", function()
      mark(owners.living())
      sbx.run(function()
        local t = sbx.spawn(sandbox.create_session, sandbox,
          fake.spec { durability = "persistent", workspace_key = "w" })
        sbx.sleep(0.06)
        assert.same({}, sandbox.created)
        sandbox:create_session(fake.spec { workspace_key = "w" }) -- ephemeral: another place
        ledger:delete("removing:fake:w")
        assert.equal("persistent", t:await():info().durability)
      end)
    end)

    it("holds another removal up, and neither fails", function()
      mark(owners.living())
      sbx.run(function()
        local t = sbx.spawn(sandbox.remove_workspace, sandbox, "w")
        sbx.sleep(0.06)
        assert.same({}, sandbox.removed)
        ledger:delete("removing:fake:w")
        t:await()
        assert.same({ "w" }, sandbox.removed)
      end)
      assert.same({}, left())
    end)

    it("holds nobody up when its process is dead", function()
      mark(owners.reused_pid)
      sandbox:create_session(fake.spec { durability = "persistent", workspace_key = "w" }):destroy()
      mark(owners.reused_pid)
      sandbox:remove_workspace("w")
      assert.same({}, left())
    end)

    it("takes no mark for another's that has come in its place", function()
      mark(owners.reused_pid)
      local delete = ledger.delete
      function ledger.delete(self, id, before) -- another process is quicker
        ledger.delete = delete
        delete(self, id)
        mark(owners.living())
        delete(self, id, before)
      end
      recovered()
      assert.same({ "removing:fake:w" }, left())
    end)

    it("waits for one that has come in a dead one's place", function()
      mark(owners.reused_pid)
      local delete = ledger.delete
      function ledger.delete(self, id, before) -- another process is quicker
        ledger.delete = delete
        delete(self, id)
        mark(owners.living())
        delete(self, id, before)
      end
      sbx.run(function()
        local t = sbx.spawn(sandbox.remove_workspace, sandbox, "w")
        sbx.sleep(0.06)
        assert.same({ "removing:fake:w" }, left())
        assert.same({}, sandbox.removed)
        ledger:delete("removing:fake:w")
        t:await()
      end)
    end)

    it("is another provider's affair", function()
      row("removing:other:w", { provider = "other", durability = "persistent", state = "removing",
        owner = owners.living(), claimed_by = owners.living() })
      row("held", { provider = "other", durability = "persistent", owner = owners.own })
      sandbox:create_session(fake.spec { durability = "persistent", workspace_key = "w" }):destroy()
      sandbox:remove_workspace("w")
      assert.same({ "w" }, sandbox.removed)
    end)

    it("that finds a holder at the last moment leaves the session live", function()
      local session = sandbox:create_session(
        fake.spec { durability = "persistent", workspace_key = "w" })
      local insert = ledger.insert
      function ledger.insert(self, mark_row)
        ledger.insert = insert
        row("other", { durability = "persistent", owner = owners.living() })
        return insert(self, mark_row)
      end
      failure("SandboxError", session.destroy, session, { remove_workspace = true })
      assert.equal("w", session:info().workspace_key)
      session:touch()
      session:put_file("f", "x")
      assert.same({ "other", session.id }, left())
    end)
  end)

  describe("and other processes", function()
    it("waits for one that is ending the session", function()
      row("a", { state = "destroying", owner = owners.living(), claimed_by = owners.living() })
      sbx.run(function()
        local t = sbx.spawn(sandbox.destroy_session, sandbox, "a")
        sbx.sleep(0.06)
        assert.equal("running", t:status())
        ledger:delete("a")
        t:await()
      end)
      assert.same({}, sandbox.destroyed)
    end)

    it("goes on where one that was ending the session has died or given up", function()
      row("a", { state = "destroying", owner = owners.living(), claimed_by = owners.reused_pid })
      sandbox:destroy_session("a")
      row("b", { state = "destroying", owner = owners.living(), claimed_by = owners.living() })
      sbx.run(function()
        local t = sbx.spawn(sandbox.destroy_session, sandbox, "b")
        sbx.sleep(0.03)
        ledger:release("b", "destroying")
        t:await()
      end)
      assert.same({ "a", "b" }, sandbox.destroyed)
      assert.same({}, left())
    end)

    it("reaps what is expired, whoever made it, unless somebody is at it", function()
      local expired = { expires_at = 0, owner = owners.living() }
      row("live", expired)
      row("given-up", { expires_at = 0, owner = owners.living(), state = "destroying" })
      row("claimed", { expires_at = 0, state = "destroying", claimed_by = owners.living() })
      row("creating", { expires_at = 0, state = "creating", claimed_by = owners.living() })
      row("mark", { expires_at = 0, state = "removing", owner = owners.living() })
      row("theirs", { expires_at = 0, provider = "other" })
      assert.same({ "live", "given-up" }, (sandbox:reap()))
      assert.same({ "claimed", "creating", "mark", "theirs" }, left())
    end)

    it("refuses to end or give a session of another provider", function()
      row("theirs", { provider = "other", owner = owners.own })
      local err = failure("SandboxError", sandbox.destroy_session, sandbox, "theirs")
      assert.matches("provider other", err.message)
      failure("SandboxSessionNotFoundError", sandbox.get_session, sandbox, "theirs")
      assert.same({}, sandbox:list_sessions())
      assert.same({ "theirs" }, left())
    end)

    it("gives no session that only its maker can use", function()
      row("a", { owner = owners.living() })
      local err = failure("SandboxError", sandbox.get_session, sandbox, "a")
      assert.is_false(errors.is(err, "SandboxSessionNotFoundError"))
      assert.matches("no way to attach", err.message)
    end)

    it("lets go of a session that another has ended", function()
      local session = sandbox:create_session(fake.spec())
      local closed = 0
      function session._close() closed = closed + 1 end
      ledger:delete(session.id)
      sandbox:reap()
      assert.equal(1, closed)
      for _ = 1, 2 do
        local err = failure("SandboxSessionNotFoundError", session.info, session)
        assert.equal(session.id, err.session_id)
      end
      failure("SandboxSessionNotFoundError", sandbox.get_session, sandbox, session.id)
      assert.equal(1, closed)
      session:destroy()
      assert.same({}, sandbox.destroyed)
    end)
  end)

  describe("of a detached session", function()
    it("is none: it belongs to the ledger", function()
      local session = sandbox:create_session(fake.spec(), { detached = true })
      assert.equal("ledger:this", ledger:get(session.id).owner)
      assert.is_nil(ledger:get(session.id).claimed_by)
      assert.equal("ledger:this", sandbox.created[1].labels["tai42.sandbox.owner"])
      assert.same({}, (recovered()))
    end)

    it("needs a ledger that outlives the program", function()
      ledger.shared = nil
      local err = failure("SandboxError", sandbox.create_session, sandbox, fake.spec(),
        { detached = true })
      assert.matches("SBX_LEDGER=sqlite", err.message)
      assert.same({}, sandbox.created)
      assert.same({}, left())
    end)
  end)

  describe("of a create that fails", function()
    it("to be recorded is not needed: nothing is left", function()
      local value = errors.SandboxError("disk full")
      function ledger.update() error(value, 0) end
      local ok, err = pcall(sandbox.create_session, sandbox, fake.spec())
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
      assert.equal(1, #sandbox.created)
      assert.equal(1, #sandbox.destroyed)
      assert.same({}, left())
    end)

    it("as its row was taken is not needed either", function()
      local update = ledger.update
      function ledger.update(self, id, ...)
        ledger:delete(id)
        return update(self, id, ...)
      end
      local err = failure("SandboxError", sandbox.create_session, sandbox, fake.spec())
      assert.matches("was removed while it was made", err.message)
      assert.equal(1, #sandbox.destroyed)
    end)
  end)
end)
