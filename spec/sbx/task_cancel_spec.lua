-- SPDX-License-Identifier: MIT
-- proves: A2, A3
-- Cancels, at each kind of wait.

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local task = require "sbx.task"
local waits = require "sbx.waits"
local uv = require "luv"

local child, failure, timed = support.child, support.failure, support.timed

describe("task:cancel", function()
  after_each(support.cleanup)

  -- Cancels a task that waits in fn, and asserts that Cancelled came up there.
  local function cancel_in(fn, limit_seconds)
    local raised
    local t = sbx.spawn(function()
      local ok, err = pcall(fn)
      raised = not ok and err or "nothing"
      if not ok then error(err, 0) end
    end)
    sbx.sleep(0.05)
    assert.equal("running", t:status())
    local took = timed(t.cancel, t)
    assert.equal("cancelled", t:status())
    assert.equal("Cancelled", raised.class_name)
    assert.is_true(took < (limit_seconds or 0.5), took .. " s")
    assert.is_true(rawequal(raised, failure("Cancelled", t.await, t)))
  end

  describe("ends a wait", function()
    it("in sleep", function()
      sbx.run(cancel_in, function() sbx.sleep(9) end)
    end)

    it("in await, and leaves the awaited task alone", function()
      sbx.run(function()
        local other = sbx.spawn(function() sbx.sleep(0.2); return 7 end)
        cancel_in(function() other:await() end)
        assert.equal("running", other:status())
        assert.equal(7, other:await())
      end)
    end)

    it("in gather and in timeout", function()
      sbx.run(function()
        cancel_in(function() sbx.gather { sbx.spawn(sbx.sleep, 9), sbx.spawn(sbx.sleep, 9) } end)
        cancel_in(function() sbx.timeout(9, sbx.sleep, 9) end)
        cancel_in(function() sbx.timeout(9, sbx.timeout, 9, sbx.sleep, 9) end)
      end)
    end)

    it("in a latch and in another's cancel", function()
      sbx.run(function()
        local latch = waits.latch()
        cancel_in(function() latch:wait() end)
        local stubborn = sbx.spawn(function() task.shield(sbx.sleep, 0.3) end)
        sbx.sleep(0)
        cancel_in(function() stubborn:cancel() end)
        stubborn:await()
      end)
    end)

    it("in exec, the command gone with it", function()
      local session = support.session()
      sbx.run(function()
        local running = sbx.spawn(function()
          session:exec(child("write-pid", "pid", "fork-bg", 60, "sleep", 60),
            { timeout_seconds = 60 })
        end)
        sbx.sleep(0)
        local group = support.read_pid(session, "pid")
        running:cancel()
        assert.same("cancelled", running:status())
        assert.same({}, support.group_members(group))
      end)
    end)

    it("in the output of a handle, which lives on", function()
      local session = support.session()
      sbx.run(function()
        local handle = session:exec_start({ "cat" }, { timeout_seconds = 60 })
        cancel_in(function() support.collect(handle) end)
        handle:write_stdin("x")
        assert.equal("x", support.read_until(handle, "x"))
        handle:kill()
      end)
    end)

    it("in a write that waits", function()
      local session = support.session()
      sbx.run(function()
        local handle = session:exec_start(child("sleep", 60), { timeout_seconds = 60 })
        cancel_in(function() handle:write_stdin(("x"):rep(1024 * 1024)) end)
        handle:kill()
      end)
    end)

    it("in file work, which is waited for", function()
      local session = support.session()
      sbx.run(function()
        local data = ("x"):rep(64 * 1024 * 1024)
        local t = sbx.spawn(session.put_file, session, "f", data)
        sbx.sleep(0)
        t:cancel()
        assert.is_true(t:status() ~= "running")
        local stat = uv.fs_stat(session.workspace_path .. "/f")
        assert.is_true(stat == nil or stat.size == #data)
      end)
    end)
  end)

  it("before the start means that it never starts", function()
    sbx.run(function()
      local ran = false
      local t = sbx.spawn(function() ran = true end)
      t:cancel()
      sbx.sleep(0.01)
      assert.is_false(ran)
      assert.equal("cancelled", t:status())
      failure("Cancelled", t.await, t)
    end)
  end)

  it("after the end changes nothing", function()
    sbx.run(function()
      local good, bad = sbx.spawn(function() return 1 end), sbx.spawn(error, "x", 0)
      pcall(bad.await, bad)
      good:await()
      good:cancel()
      bad:cancel()
      assert.equal("done", good:status())
      assert.equal(1, good:await())
      assert.equal("failed", bad:status())
    end)
  end)

  it("twice, and by several at once, waits for the one clean-up", function()
    sbx.run(function()
      local times = 0
      local t = sbx.spawn(function()
        local ok, err = pcall(sbx.sleep, 9)
        times = times + 1
        task.shield(sbx.sleep, 0.1)
        assert(not ok)
        error(err, 0)
      end)
      sbx.sleep(0.01)
      local cancels = {}
      for i = 1, 3 do cancels[i] = sbx.spawn(t.cancel, t) end
      sbx.gather(cancels)
      assert.equal("cancelled", t:status())
      t:cancel()
      assert.equal(1, times)
    end)
  end)

  it("returns only when the clean-up is done", function()
    sbx.run(function()
      local cleaned = false
      local t = sbx.spawn(function()
        pcall(sbx.sleep, 9)
        sbx.sleep(0.1)
        cleaned = true
      end)
      sbx.sleep(0.01)
      t:cancel()
      assert.is_true(cleaned)
      assert.equal("done", t:status())
    end)
  end)

  it("of a task that handles it lets it go on", function()
    sbx.run(function()
      local t = sbx.spawn(function()
        failure("Cancelled", sbx.sleep, 9)
        sbx.sleep(0.01)
        return "went on"
      end)
      sbx.sleep(0)
      t:cancel()
      assert.equal("went on", t:await())
    end)
  end)

  it("of oneself raises at once", function()
    sbx.run(function()
      local reached = false
      local me
      me = sbx.spawn(function()
        me:cancel()
        reached = true
      end)
      failure("Cancelled", me.await, me)
      assert.is_false(reached)
      assert.equal("cancelled", me:status())
    end)
  end)

  it("of oneself raises at once where a task cannot yield", function()
    sbx.run(function()
      for _, wrap in ipairs {
        function(fn) ("x"):gsub("x", fn) end,
        function(fn) coroutine.wrap(fn)() end,
        function(fn) table.sort({ 2, 1 }, function() fn() end) end,
      } do
        local reached, me = false, nil
        me = sbx.spawn(function()
          wrap(function() me:cancel() end)
          reached = true
        end)
        local seconds = timed(failure, "Cancelled", me.await, me)
        assert.is_true(seconds < 1)
        assert.is_false(reached)
      end
    end)
  end)

  it("of each other ends both", function()
    sbx.run(function()
      local a, b
      local ends = 0
      a = sbx.spawn(function()
        sbx.sleep(0.01)
        pcall(b.cancel, b)
        ends = ends + 1
      end)
      b = sbx.spawn(function()
        sbx.sleep(0.01)
        pcall(a.cancel, a)
        ends = ends + 1
      end)
      sbx.timeout(5, sbx.gather, { sbx.spawn(function() pcall(a.await, a) end),
        sbx.spawn(function() pcall(b.await, b) end) })
      assert.is_true(ends >= 1)
      assert.is_true(a:status() ~= "running" and b:status() ~= "running")
    end)
  end)

  it("of one's awaiter reaches it", function()
    sbx.run(function()
      local outer
      local inner = sbx.spawn(function()
        sbx.sleep(0.02)
        outer:cancel()
        return "inner"
      end)
      outer = sbx.spawn(inner.await, inner)
      assert.equal("inner", inner:await())
      failure("Cancelled", outer.await, outer)
    end)
  end)

  it("waits for a shield, and comes right after it", function()
    sbx.run(function()
      local log = {}
      local t = sbx.spawn(function()
        log[#log + 1] = task.shield(function(...)
          sbx.sleep(0.1)
          return ...
        end, "shielded")
        sbx.sleep(9)
        log[#log + 1] = "never"
      end)
      sbx.sleep(0.01)
      local took = timed(t.cancel, t)
      assert.is_true(took > 0.05 and took < 1, took .. " s")
      assert.same({ "shielded" }, log)
      assert.equal("cancelled", t:status())
    end)
  end)

  it("passes a shield's own error on", function()
    sbx.run(function()
      local ok, err = pcall(task.shield, error, "inside", 0)
      assert.is_false(ok)
      assert.equal("inside", err)
    end)
    assert.equal(3, task.shield(function() return 3 end))
  end)

  it("wanted by nobody else is no error of the run", function()
    support.assert_lua("ok\n", [[
      local sbx = require "sbx"
      sbx.run(function()
        local t = sbx.spawn(sbx.sleep, 9)
        sbx.sleep(0)
        t:cancel()
      end)
      print("ok")
    ]], { bare = true })
  end)

  it("of a task that waits for a latch leaves the latch usable", function()
    sbx.run(function()
      local latch, log = waits.latch(), {}
      local a = sbx.spawn(function() latch:wait(); log[#log + 1] = "a" end)
      local b = sbx.spawn(function() latch:wait(); log[#log + 1] = "b" end)
      sbx.sleep(0)
      a:cancel()
      latch:open()
      latch:open()
      b:await()
      latch:wait()
      assert.same({ "b" }, log)
    end)
  end)

  it("from outside serves the loop until the clean-up is done", function()
    local cleaned = false
    local t = sbx.spawn(function()
      local ok, err = pcall(sbx.sleep, 9)
      task.shield(sbx.sleep, 0.05)
      cleaned = not ok
      error(err, 0)
    end)
    local waiter = sbx.spawn(sbx.sleep, 0.02)
    waiter:await()
    t:cancel()
    assert.is_true(cleaned)
    assert.equal("cancelled", t:status())
  end)

  it("races with completions and timers: each await has its own result #slow", function()
    local session = support.session()
    sbx.run(function()
      local tasks, results, timeouts = {}, 0, 0
      for n = 1, 25 do
        tasks[n] = sbx.spawn(function()
          for i = 1, 40 do
            local mine = n * 1000 + i
            local ok, r = pcall(sbx.timeout, 0.03, function()
              local r = session:exec({ "sh", "-c", "sleep 0.02; echo " .. mine },
                { timeout_seconds = 30 })
              return tonumber(r.stdout)
            end)
            if ok then
              assert.equal(mine, r)
              results = results + 1
            else
              assert.equal("TimeoutError", r.class_name)
              timeouts = timeouts + 1
            end
            local before = uv.hrtime()
            sbx.sleep(0.005)
            assert.is_true((uv.hrtime() - before) / 1e9 > 0.003)
          end
        end)
      end
      sbx.gather(tasks)
      assert.equal(1000, results + timeouts)
    end)
  end)
end)
