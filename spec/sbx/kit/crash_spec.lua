-- SPDX-License-Identifier: MIT
-- proves: P4, P5, P6, L2, L6
-- Processes that share a ledger and die: each session is ended once, and the next start leaves no
-- row, directory, sidecar or process of a dead owner, and touches none of a living one.
--
-- SBX_CRASH_ROUNDS sets the number of kills at random points (10 unless told, 50 for the long
-- form), SBX_SEED the points.

local helper = require "spec.helper"
local ledger_sqlite = require "sbx.kit.ledger_sqlite"
local log = require "sbx.log"
local support = require "spec.support.sandbox"
local together = require "spec.support.together"
local uv = require "luv"

local ROUNDS = tonumber(os.getenv("SBX_CRASH_ROUNDS")) or 10
local MODULES = { "sbx.kit", "sbx.kit.ledger_sqlite", "sbx.sandboxes" }
local MARK_SECONDS = "7654321" -- what no other command here sleeps

describe("processes on one ledger #slow", function()
  local directory, root, ledger, sandbox, living

  local function names(path)
    local list, request = {}, uv.fs_scandir(root .. path)
    while request do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      list[#list + 1] = name
    end
    table.sort(list)
    return list
  end

  local function sorted(list)
    table.sort(list)
    return list
  end

  before_each(function()
    log.set_sink(function() end)
    directory = helper.tmpdir()
    root = directory .. "/root"
    ledger = ledger_sqlite.new(directory .. "/ledger.db")
    sandbox = support.local_sandbox { root = root, ledger = ledger }
    living = {
      sandbox:create_session(support.spec { ttl_seconds = 1e6 }),
      sandbox:create_session(support.spec { ttl_seconds = 1e6 }, { detached = true }),
      sandbox:create_session(support.spec { ttl_seconds = 1e6, durability = "persistent",
        workspace_key = "living" }),
    }
    for _, session in ipairs(living) do session:put_file("f", session.id) end
  end)

  after_each(function()
    for _, session in ipairs(living) do session:destroy() end
    ledger:close()
    log.set_sink(nil)
  end)

  -- Sessions that belong to the ledger outlive whoever made them, whole.
  local function end_detached()
    for _, row in ipairs(ledger:list()) do
      if row.state == "live" and row.owner == "ledger:" .. ledger:identity()
        and row.id ~= living[2].id then
        local session = sandbox:get_session(row.id)
        session:put_file("f", "whole")
        session:destroy()
      end
    end
  end

  -- What the next start finds and leaves.
  local function check_clean(where)
    local next_start = support.local_sandbox { root = root, ledger = ledger }
    local _, failures = next_start:recover()
    assert.same({}, failures, where)
    end_detached()
    local ids, ephemeral = {}, { living[1].id, living[2].id }
    for _, row in ipairs(ledger:list()) do ids[#ids + 1] = row.id end
    local expected = sorted { living[1].id, living[2].id, living[3].id }
    assert.same(expected, sorted(ids), where)
    local sidecars = {}
    for _, name in ipairs(names("/.sessions")) do
      if name ~= ".recovery.lock" then sidecars[#sidecars + 1] = name end
    end
    assert.same(expected, sidecars, where)
    assert.same(sorted(ephemeral), names("/.ephemeral"), where)
    for _, session in ipairs(living) do
      assert.equal(session.id, session:get_file("f"), where)
      assert.equal(session.id, session:info().id)
    end
  end

  it("make and reap 200 sessions side by side, each ended once", function()
    local printed = together.lines(2, together.DEPLOYMENT .. [[
      local sandbox, loop = sandboxes.require_sandbox(), require "sbx.loop"
      local destroy = sandbox._destroy_resources
      function sandbox:_destroy_resources(row, remove)
        print("destroyed " .. row.id)
        return destroy(self, row, remove)
      end
      function sandbox._now() return loop.now() end
      local function reap()
        sandbox._now = function() return loop.now() + 10 end
        local ids, failures = sandbox:reap()
        sandbox._now = loop.now
        for _, failure in ipairs(failures) do print("failed " .. tostring(failure.error)) end
        for _, id in ipairs(ids) do print("reaped " .. id) end
      end
      sbx.run(function()
        local makers = {}
        for maker = 1, 4 do
          makers[maker] = sbx.spawn(function()
            for i = 1, 25 do
              print("made " .. made({ ttl_seconds = 1,
                durability = i % 5 == 0 and "persistent" or nil }, { detached = i % 3 == 0 }).id)
              if i % 2 == 0 then reap() end
            end
          end)
        end
        sbx.gather(makers)
        for _ = 1, 100 do
          reap()
          if #sandbox:list_sessions() == 3 then break end
          sbx.sleep(0.02)
        end
      end)
    ]], { directory = directory, modules = MODULES })
    local seen = { made = {}, destroyed = {}, reaped = {} }
    local counts = { made = 0, destroyed = 0, reaped = 0 }
    for _, line in ipairs(printed) do
      local what, id = line:match("^(%l+) (.*)$")
      assert.is_table(seen[what], line)
      assert.is_nil(seen[what][id], line .. ", twice")
      seen[what][id] = true
      counts[what] = counts[what] + 1
    end
    assert.same({ made = 200, destroyed = 200, reaped = 200 }, counts)
    check_clean("after the reaps")
  end)

  local WORKER = together.DEPLOYMENT .. [[
    local sandbox, loop = sandboxes.require_sandbox(), require "sbx.loop"
    math.randomseed(tonumber(arg[2]))
    local deadline = uv.hrtime() + tonumber(arg[3]) * 1e9
    local mine = {}
    local function step()
      local pick = math.random(10)
      if pick <= 5 then
        local persistent = math.random(3) == 1
        local session = made({ ttl_seconds = 1, durability = persistent and "persistent" or nil,
          workspace_key = "k" .. math.random(3) }, { detached = math.random(3) == 1 })
        mine[#mine + 1] = session
        session:put_file("a/b/c", ("x"):rep(math.random(5000)))
        if math.random(4) == 1 then
          session:exec_start({ "sleep", "]] .. MARK_SECONDS .. [[" }, { timeout_seconds = 3600 })
        end
      elseif pick <= 7 and #mine > 0 then
        table.remove(mine, math.random(#mine)):destroy { remove_workspace = math.random(4) == 1 }
      elseif pick == 8 then
        sandbox:remove_workspace("k" .. math.random(3))
      else
        sandbox._now = function() return loop.now() + 10 end
        sandbox:reap()
        sandbox._now = loop.now
      end
    end
    assert(io.open(directory .. "/working." .. number, "w")):close()
    sbx.run(function()
      local workers = {}
      for worker = 1, 3 do
        workers[worker] = sbx.spawn(function()
          while uv.hrtime() < deadline do
            local ok, err = pcall(step)
            if not ok and not sbx.errors.is(err, "SandboxError") then error(err, 0) end
          end
        end)
      end
      sbx.gather(workers)
    end)
    for _, session in ipairs(mine) do session:destroy() end
  ]]

  local function start_worker(number, seed, seconds)
    local file = directory .. "/worker.lua"
    helper.write_file(file, ('local uv, sbx = require "luv", require "sbx"\n'
      .. "local directory, number = %q, tonumber(arg[1])\n"):format(directory) .. WORKER)
    os.remove(directory .. "/working." .. number)
    local out = helper.run(("%s %s %d %d %g >/dev/null 2>>%s/stderr & echo $!"):format(
      helper.shell_quote(helper.sbxlua()), file, number, seed, seconds, directory))
    assert.is_true(support.wait_blocking(function()
      return uv.fs_access(directory .. "/working." .. number, "R")
    end), "the worker did not start")
    return assert(tonumber(out:match("%d+")))
  end

  local function marked_processes()
    local list, request = {}, uv.fs_scandir("/proc")
    while true do
      local name = uv.fs_scandir_next(request)
      if not name then return list end
      local file = name:find("^%d+$") and io.open("/proc/" .. name .. "/cmdline", "rb")
      local line = file and file:read("*a") or ""
      if file then file:close() end
      if line == "sleep\0" .. MARK_SECONDS .. "\0" then list[#list + 1] = name end
    end
  end

  it("are killed at random points, and the next start cleans up", function()
    local seed = tonumber(os.getenv("SBX_SEED")) or os.time()
    for round = 1, ROUNDS do
      local where = ("SBX_SEED=%d, round %d"):format(seed, round)
      math.randomseed(seed + round)
      local delay = math.random(5, 150)
      local victim = start_worker(1, seed + round, 60)
      local other = start_worker(2, seed - round, 0.2)
      uv.sleep(delay)
      uv.kill(victim, "sigkill")
      assert.is_true(support.wait_blocking(function() return not support.is_alive(victim) end))
      -- A start while the other one is still at work, and one afterwards.
      support.local_sandbox({ root = root, ledger = ledger }):recover()
      assert.is_true(support.wait_blocking(function() return not support.is_alive(other) end, 20),
        where .. ": the other one does not end")
      check_clean(where)
      assert.is_true(support.wait_blocking(function() return #marked_processes() == 0 end, 5),
        where .. ": a command lives on")
      assert.equal("", helper.read_file(directory .. "/stderr"), where)
    end
  end)

  describe("that die at each step of a create and a destroy", function()
    -- Calls of the ledger and of the runtime's files, counted; the one that `arg` names is the
    -- last, or the last but for having been begun.
    local STEPS = together.DEPLOYMENT .. [[
      local sandbox = sandboxes.require_sandbox()
      local count, last, begun = 0, tonumber(arg[2]), arg[3] == "begun"
      local function step_of(object, name)
        local original = object[name]
        object[name] = function(...)
          count = count + 1
          if count ~= last then return original(...) end
          if begun then original(...) end
          die()
        end
      end
      for _, name in ipairs { "insert", "get", "update", "claim", "delete", "list" } do
        step_of(getmetatable(sandbox._ledger).__index, name)
      end
      local files = require "_sbx.files"
      for _, name in ipairs { "put", "make_dirs", "open_root", "remove_tree" } do
        step_of(files, name)
      end
      made():destroy()
      made({ durability = "persistent", workspace_key = "k" }):destroy()
      made(nil, { detached = true }):destroy()
      made({ durability = "persistent", workspace_key = "k" }):destroy { remove_workspace = true }
      print(count)
    ]]

    for _, how in ipairs { "before", "begun" } do
      it(("(%s)"):format(how), function()
        local file = directory .. "/steps.lua"
        helper.write_file(file, ('local uv, sbx = require "luv", require "sbx"\n'
          .. "local directory = %q\n"):format(directory) .. STEPS)
        local step, done = 0, false
        while not done do
          step = step + 1
          local out, status = helper.run(("exec 2>/dev/null\n%s %s 1 %d %s 2>&1\nexit $?"):format(
            helper.shell_quote(helper.sbxlua()), file, step, how))
          done = status == 0
          assert.is_true(done or status == 137, out)
          check_clean(how .. ", step " .. step)
        end
        assert.is_true(step > 30, "only " .. step .. " steps")
      end)
    end
  end)
end)
