-- SPDX-License-Identifier: MIT
-- proves: P5, P6, P4, L2, L6
-- Sessions between real processes, over provider `local` and the ledger in SQLite: killed makers,
-- sessions that outlive them, and many programs that start at once.

local helper = require "spec.helper"
local ledger_sqlite = require "sbx.kit.ledger_sqlite"
local log = require "sbx.log"
local owners = require "spec.support.owners"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local together = require "spec.support.together"
local uv = require "luv"

local failure = support.failure
local MODULES = { "sbx.kit", "sbx.kit.ledger_sqlite", "sbx.sandboxes" }

describe("between processes", function()
  local directory, root, lines, ledger

  before_each(function()
    directory = helper.tmpdir()
    root = directory .. "/root"
    lines = {}
    log.set_sink(function(level, text) lines[#lines + 1] = level .. ": " .. text end)
  end)

  after_each(function()
    log.set_sink(nil)
    if ledger then ledger:close() end
    ledger = nil
  end)

  -- The sandbox of this process, on the ledger and the root that the programs share.
  local function sandbox()
    ledger = ledger or ledger_sqlite.new(directory .. "/ledger.db")
    return support.local_sandbox { root = root, ledger = ledger }
  end

  local function names(path)
    local list, request = {}, uv.fs_scandir(root .. path)
    while request do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      if name:sub(1, 1) ~= "." then list[#list + 1] = name end
    end
    table.sort(list)
    return list
  end

  -- Runs a program of the deployment; returns the lines it printed.
  local function program(code, status)
    local ended = together.run(1, together.DEPLOYMENT .. code, { directory = directory })[1]
    assert.equal(status or 0, ended.status, ended.stderr)
    local printed = {}
    for line in ended.stdout:gmatch("[^\n]+") do printed[#printed + 1] = line end
    return printed, ended.stderr
  end

  describe("a killed maker's", function()
    it("sessions are recovered: the ephemeral gone, the persistent workspace kept", function()
      local made = program([[
        local e, p = made(), made { durability = "persistent", workspace_key = "keep" }
        e:put_file("f", "x")
        p:put_file("f", "kept")
        print(e.id) print(p.id)
        die()
      ]], 137)
      assert.same({ made[1] }, names("/.ephemeral"))
      assert.equal(2, #names("/.sessions"))
      local mine = sandbox()
      local list, failures = mine:recover()
      assert.same({}, failures)
      local ids = { list[1].id, list[2].id }
      table.sort(ids)
      table.sort(made)
      assert.same(made, ids)
      assert.equal(2, #lines)
      assert.same({}, names("/.ephemeral"))
      assert.same({}, names("/.sessions"))
      assert.same({ "keep" }, names(""))
      assert.equal("kept", helper.read_file(root .. "/keep/f"))
      assert.same({}, ledger:list())
      assert.same({}, (mine:recover()))
    end)

    it("sessions are found by their sidecars when the ledger was the program's own", function()
      program([[
        sandboxes.configure { sandbox_module = "sbx.providers.local", isolation = "none",
          ledger = "memory", provider = { root = directory .. "/root" } }
        made() made() made { durability = "persistent" }
        die()
      ]], 137)
      assert.equal(2, #names("/.ephemeral"))
      local list = support.local_sandbox({ root = root }):recover()
      assert.equal(3, #list)
      assert.same({}, names("/.ephemeral"))
      assert.same({}, names("/.sessions"))
      assert.same({ "w" }, names(""))
    end)

    it("sidecar that was never finished goes, a damaged one stays and is told", function()
      local mine = sandbox()
      mine:create_session(support.spec()):destroy()
      helper.write_file(root .. "/.sessions/.sbx-put-0123456789abcdef", '{"version":1')
      local damaged = { cut = '{"version":1,"id":"cut"', empty = "",
        other = '{"version":1,"id":"x"}',
        newer = '{"version":2,"id":"newer"}', null = "null", binary = "\0\255",
        secret = '"the canary value"',
        misplaced = require("sbx.json").encode { version = 1, id = "other",
          durability = "ephemeral", workspace_key = "w", owner = owners.reused_pid } }
      for name, text in pairs(damaged) do helper.write_file(root .. "/.sessions/" .. name, text) end
      assert.same({}, (mine:recover()))
      local count = 0
      for name, text in pairs(damaged) do
        count = count + 1
        assert.equal(text, helper.read_file(root .. "/.sessions/" .. name))
      end
      assert.equal(count, #lines)
      for _, line in ipairs(lines) do
        assert.matches("^warning: .*is no sidecar of this version, left as it is", line)
        assert.is_nil(line:find("canary", 1, true))
      end
      assert.is_nil(uv.fs_stat(root .. "/.sessions/.sbx-put-0123456789abcdef"))
    end)

    it("sidecar is not taken for another's by its owner's text", function()
      local mine = sandbox()
      local kept = {}
      local function leave(id, owner_text)
        uv.fs_mkdir(root .. "/.ephemeral/" .. id, tonumber("700", 8))
        helper.write_file(root .. "/.sessions/" .. id, require("sbx.json").encode { version = 1,
          id = id, owner = owner_text, durability = "ephemeral", workspace_key = "w" })
      end
      mine:create_session(support.spec()):destroy()
      leave("reused", owners.reused_pid)
      leave("boot", owners.other_boot)
      for id, text in pairs { own = owners.own, living = owners.living(), host = owners.other_host,
        namespace = owners.other_namespace, garbage = "garbage", ledger = "ledger:other" } do
        leave(id, text)
        kept[#kept + 1] = id
      end
      table.sort(kept)
      local list = mine:recover()
      assert.equal(2, #list)
      assert.same(kept, names("/.sessions"))
      assert.same(kept, names("/.ephemeral"))
    end)

    it("things below another root are removed there", function()
      program([[
        local session = made(nil, { detached = true })
        made()
        print(session.id)
        die()
      ]], 137)
      local there = root
      root = directory .. "/elsewhere"
      local mine = sandbox()
      mine:create_session(support.spec()):destroy()
      mine:recover()
      assert.equal(1, #mine:list_sessions())
      mine:destroy_session(mine:list_sessions()[1].id)
      root = there
      assert.same({}, names("/.ephemeral"))
      assert.same({}, names("/.sessions"))
    end)
  end)

  it("eight that start at once recover each thing once, and nothing of the living", function()
    local mine = sandbox()
    local living = mine:create_session(support.spec())
    local detached = mine:create_session(support.spec(), { detached = true })
    living:put_file("f", "x")
    program([[
      for i = 1, 12 do made(i % 3 == 0 and { durability = "persistent" } or nil) end
      die()
    ]], 137)
    -- Three of them with sidecars only.
    for i, row in ipairs(ledger:list()) do
      if row.owner ~= owners.own and i % 4 == 0 then ledger:delete(row.id) end
    end
    local found = 0
    for _, line in ipairs(together.lines(8, together.DEPLOYMENT .. [[
      sandboxes.require_sandbox()
    ]], { directory = directory, modules = MODULES, stderr = true })) do
      assert.matches("^sbx: provider local: recovered session sbx%-%x+ ", line)
      found = found + 1
    end
    assert.equal(12, found)
    assert.equal(2, #names("/.ephemeral"))
    assert.equal(2, #names("/.sessions"))
    assert.equal("x", living:get_file("f"))
    assert.equal(2, #mine:list_sessions())
    detached:destroy()
    living:destroy()
  end)

  describe("a detached session", function()
    it("outlives its maker and serves others", function()
      local id = program([[
        local session = made({ labels = { team = "a" } }, { detached = true })
        session:put_file("f", "from the maker")
        print(session.id)
      ]])[1]
      local mine = sandbox()
      assert.same({}, (mine:recover()))
      local infos = mine:list_sessions()
      assert.equal(id, infos[1].id)
      assert.same({ team = "a" }, infos[1].labels)
      local session = mine:get_session(id)
      assert.is_true(rawequal(session, mine:get_session(id)))
      assert.equal("from the maker", session:get_file("f"))
      assert.equal(session.workspace_path .. "\n", session:exec({ "pwd" },
        { timeout_seconds = 10 }).stdout)
      local before = session:info().expires_at
      session:touch()
      assert.is_true(session:info().expires_at > before)
      assert.equal("back\n", program(([[
        local session = sandboxes.require_sandbox():get_session(%q)
        session:put_file("g", "back")
        print(session:get_file("g"))
      ]]):format(id))[1] .. "\n")
      session:destroy()
      assert.same({}, names("/.ephemeral"))
      assert.same({}, names("/.sessions"))
      assert.same({}, ledger:list())
    end)

    it("is destroyed by another while this process uses it", function()
      local mine = sandbox()
      local session = mine:create_session(support.spec(), { detached = true })
      local handle = session:exec_start({ "sleep", "60" }, { timeout_seconds = 60 })
      program(("sandboxes.require_sandbox():destroy_session(%q)"):format(session.id))
      for _, call in ipairs {
        function() session:info() end, function() session:touch() end,
        function() session:get_file("f") end, function() session:put_file("f", "x") end,
        function() session:exec({ "true" }, { timeout_seconds = 1 }) end,
        function() session:exec_start({ "true" }, { timeout_seconds = 1 }) end,
        function() mine:get_session(session.id) end,
      } do
        assert.equal(session.id, failure("SandboxSessionNotFoundError", call).session_id)
      end
      assert.equal(137, support.collect(handle).exit_code)
      session:destroy()
      mine:destroy_session(session.id)
    end)

    it("that another has ended is let go by the reap", function()
      local mine = sandbox()
      local descriptors = support.count_own("fd")
      local session = mine:create_session(support.spec(), { detached = true })
      local handle = session:exec_start({ "sleep", "60" }, { timeout_seconds = 60 })
      program(("sandboxes.require_sandbox():destroy_session(%q)"):format(session.id))
      assert.same({}, (mine:reap()))
      assert.equal(137, support.collect(handle).exit_code)
      assert.is_true(support.count_own("fd") <= descriptors)
    end)

    it("has no env with provider local, which keeps it in memory only", function()
      local mine = sandbox()
      local err = failure("SandboxSpecRejectedError", mine.create_session, mine,
        support.spec { env = { TOKEN = "canary" } }, { detached = true })
      assert.matches("^provider cannot honor: local: env of a detached session", err.message)
      assert.same({}, ledger:list())
      assert.same({}, names("/.sessions"))
      assert.same({}, names("/.ephemeral"))
    end)

    it("is reaped by whoever comes, once", function()
      program([[ for _ = 1, 20 do made({ ttl_seconds = 1 }, { detached = true }) end ]])
      uv.sleep(1050)
      local printed = together.lines(3, together.DEPLOYMENT .. [[
        local ids, failures = sandboxes.require_sandbox():reap()
        assert(#failures == 0)
        for _, id in ipairs(ids) do print(id) end
      ]], { directory = directory, modules = MODULES })
      local seen = {}
      for _, id in ipairs(printed) do
        assert.is_nil(seen[id], "reaped twice")
        seen[id] = true
      end
      assert.equal(20, #printed)
      assert.same({}, names("/.ephemeral"))
      assert.same({}, names("/.sessions"))
    end)
  end)

  it("a session with an env is its maker's alone, and says so", function()
    local mine = sandbox()
    local session = mine:create_session(support.spec { env = { TOKEN = "canary" } })
    local said = program(([[
      local sandbox = sandboxes.require_sandbox()
      local ok, err = pcall(sandbox.get_session, sandbox, %q)
      print(ok, err.class_name, err.message)
    ]]):format(session.id))[1]
    assert.matches("^false\tSandboxError\tsession " .. session.id:gsub("%-", "%%-")
      .. " has an env, which only the program that made it knows", said)
    assert.equal("canary\n", session:exec({ "sh", "-c", "echo $TOKEN" },
      { timeout_seconds = 10 }).stdout)
    session:destroy()
  end)

  it("a destroy under way elsewhere is waited for", function()
    local mine = sandbox()
    local session = mine:create_session(support.spec(), { detached = true })
    local printed = together.lines(5, together.DEPLOYMENT .. ([[
      local sandbox = sandboxes.require_sandbox()
      sandbox:destroy_session(%q)
      print(uv.fs_stat(%q) == nil, #sandbox:list_sessions())
    ]]):format(session.id, session.workspace_path), { directory = directory, modules = MODULES })
    for _, line in ipairs(printed) do assert.equal("true\t0", line) end
    assert.equal(5, #printed)
    failure("SandboxSessionNotFoundError", session.info, session)
  end)

  it("a persistent workspace is never removed under a session", function()
    local printed = together.lines(3, together.DEPLOYMENT .. [[
      local sandbox = sandboxes.require_sandbox()
      local persistent = { durability = "persistent", workspace_key = "shared" }
      local deadline = uv.hrtime() + 1.2e9
      local rounds, refused = 0, 0
      local function remove(fn, ...)
        local ok, err = pcall(fn, ...)
        if ok then return end
        assert(sbx.errors.is(err, "SandboxError") and err.message:find("holds it", 1, true),
          tostring(err))
        refused = refused + 1
      end
      while uv.hrtime() < deadline do
        rounds = rounds + 1
        if number == 1 then
          remove(sandbox.remove_workspace, sandbox, "shared")
        else
          local session = made(persistent)
          session:put_file("f" .. number, "x" .. rounds)
          local seen = session:exec({ "cat", "f" .. number }, { timeout_seconds = 10 })
          assert(seen.stdout == "x" .. rounds, seen.stderr)
          assert(session:get_file("f" .. number) == "x" .. rounds)
          if rounds % 3 == 0 then
            remove(session.destroy, session, { remove_workspace = true })
          end
          session:destroy()
        end
      end
      print(rounds)
    ]], { directory = directory, modules = MODULES })
    assert.equal(3, #printed)
    for _, rounds in ipairs(printed) do assert.is_true(tonumber(rounds) > 3, rounds) end
    assert.same({}, sandbox():list_sessions())
    assert.same({}, ledger:list())
  end)

  it("works alike inside sbx.run", function()
    local id = program([[ print(made(nil, { detached = true }).id) ]])[1]
    local mine = sandbox()
    sbx.run(function()
      local session = mine:get_session(id)
      session:put_file("f", "x")
      session:destroy()
    end)
    assert.same({}, names("/.sessions"))
  end)
end)
