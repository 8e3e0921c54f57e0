-- SPDX-License-Identifier: MIT
-- proves: A2, A3
-- Results, errors, states, cancels. Where a call may wait at all is in task_context_spec.

local errors = require "sbx.errors"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local task = require "sbx.task"
local waits = require "sbx.waits"

local failure, timed = support.failure, support.timed

describe("sbx.run", function()
  it("gives the function its arguments and returns its results, nils included", function()
    local function count(...) return select("#", ...), ... end
    assert.same({ 4, nil, 2, nil, nil, n = 5 },
      { n = select("#", count(sbx.run(function(...) return ... end, nil, 2, nil, nil))),
        count(sbx.run(function(...) return ... end, nil, 2, nil, nil)) })
    assert.equal(0, (count(sbx.run(function() end))))
    assert.equal(1, (count(sbx.run(function() return nil end))))
  end)

  it("raises the function's error unchanged, of whatever kind", function()
    for _, value in ipairs { {}, "text", 7, false, errors.SandboxError("x") } do
      local ok, err = pcall(sbx.run, function() error(value, 0) end)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
    end
    local ok, err = pcall(sbx.run, function() error() end)
    assert.is_false(ok)
    assert.is_nil(err)
  end)

  it("waits for the tasks that are left, and for those that they start", function()
    local log = {}
    sbx.run(function()
      sbx.spawn(function()
        sbx.sleep(0.05)
        log[#log + 1] = "child"
        sbx.spawn(function()
          sbx.sleep(0.05)
          log[#log + 1] = "grandchild"
        end)
      end)
      log[#log + 1] = "main"
    end)
    assert.same({ "main", "child", "grandchild" }, log)
  end)

  it("waits for them when it raises, too", function()
    local ended = false
    assert.is_false((pcall(sbx.run, function()
      sbx.spawn(function() sbx.sleep(0.05); ended = true end)
      error("main", 0)
    end)))
    assert.is_true(ended)
  end)

  it("raises inside a task and inside another run", function()
    sbx.run(function()
      local err = failure("TaskError", sbx.run, function() end)
      assert.matches("sbx.run", err.message)
      sbx.spawn(function() failure("TaskError", sbx.run, function() end) end)
    end)
    assert.equal(1, sbx.run(function() return 1 end))
  end)

  it("needs a function", function()
    assert.is_false((pcall(sbx.run)))
    assert.is_false((pcall(sbx.spawn, "x")))
    assert.equal(1, sbx.run(function() return 1 end))
  end)

  it("raises when every task waits for another", function()
    local err = failure("TaskError", sbx.run, function()
      local a, b
      a = sbx.spawn(function() b:await() end)
      b = sbx.spawn(function() a:await() end)
      a:await()
    end)
    assert.matches("deadlock", err.message)
    failure("TaskError", sbx.run, function() waits.latch():wait() end)
    assert.equal(1, sbx.run(function() return 1 end))
  end)

  it("raises what a task failed with that nobody awaited, and tells of each", function()
    local _, status, stderr = support.run_lua([[
      local sbx = require "sbx"
      local first = setmetatable({}, { __tostring = function() return "FIRST" end })
      local ok, err = pcall(sbx.run, function()
        sbx.spawn(error, first)
        sbx.spawn(function() sbx.sleep(0.01) error("SECOND", 0) end)
        sbx.spawn(function() sbx.sleep(0.02) end)
        return 1
      end)
      assert(not ok and err == first)
    ]], { bare = true })
    assert.equal(0, status, stderr)
    assert.matches("nobody awaited.*FIRST", stderr)
    assert.matches("nobody awaited.*SECOND", stderr)
  end)

  it("raises the main function's error first and still tells of the others", function()
    local _, status, stderr = support.run_lua([[
      local sbx = require "sbx"
      local ok, err = pcall(sbx.run, function()
        sbx.spawn(error, "OTHER", 0)
        error("MAIN", 0)
      end)
      assert(err == "MAIN")
    ]], { bare = true })
    assert.equal(0, status, stderr)
    assert.matches("OTHER", stderr)
    assert.is_nil(stderr:find("MAIN", 1, true))
  end)

  it("says nothing of a failure that was awaited, early or late", function()
    support.assert_lua("", [[
      local sbx = require "sbx"
      sbx.run(function()
        local early = sbx.spawn(error, "x", 0)
        assert(not pcall(early.await, early))
        local late = sbx.spawn(error, "x", 0)
        sbx.sleep(0.02)
        assert(not pcall(late.await, late))
        local gathered = sbx.spawn(error, "x", 0)
        sbx.sleep(0.02)
        assert(not pcall(sbx.gather, { gathered }))
      end)
    ]], { bare = true })
  end)

  it("does not lose a failure whose awaiter was cancelled before it", function()
    local _, status, stderr = support.run_lua([[
      local sbx = require "sbx"
      local ok, err = pcall(sbx.run, function()
        local failing = sbx.spawn(function() sbx.sleep(0.05) error("LOST?", 0) end)
        local awaiter = sbx.spawn(failing.await, failing)
        sbx.sleep(0.01)
        awaiter:cancel()
      end)
      assert(not ok and err == "LOST?")
      ok, err = pcall(sbx.run, function()
        local failing = sbx.spawn(function()
          pcall(sbx.sleep, 9)
          error("IN CLEAN-UP", 0)
        end)
        sbx.sleep(0.01)
        failing:cancel()
      end)
      assert(not ok and err == "IN CLEAN-UP")
    ]], { bare = true })
    assert.equal(0, status, stderr)
    assert.matches("LOST%?", stderr)
    assert.matches("IN CLEAN%-UP", stderr)
  end)
end)

describe("a task", function()
  it("begins at the next turn, in the order of the spawns", function()
    sbx.run(function()
      local log = {}
      for i = 1, 5 do sbx.spawn(function(n) log[#log + 1] = n end, i) end
      assert.same({}, log)
      sbx.sleep(0)
      assert.same({ 1, 2, 3, 4, 5 }, log)
    end)
  end)

  it("gives its results to every awaiter, as often as asked", function()
    sbx.run(function()
      local t = sbx.spawn(function(...)
        sbx.sleep(0.01)
        return nil, select("#", ...), nil
      end, 1, nil)
      local others = {}
      for i = 1, 3 do others[i] = sbx.spawn(function() return select("#", t:await()) end) end
      assert.equal(3, select("#", t:await()))
      assert.equal(2, (select(2, t:await())))
      assert.same({ 3, 3, 3, n = 3 }, sbx.gather(others))
    end)
  end)

  it("gives its error to every awaiter, the same table", function()
    sbx.run(function()
      local value = {}
      local t = sbx.spawn(function() sbx.sleep(0.01); error(value) end)
      for _ = 1, 3 do
        local ok, err = pcall(t.await, t)
        assert.is_false(ok)
        assert.is_true(rawequal(value, err))
      end
    end)
  end)

  it("has a status", function()
    sbx.run(function()
      local good, bad = sbx.spawn(sbx.sleep, 0.02), sbx.spawn(error, "x", 0)
      local stopped = sbx.spawn(sbx.sleep, 9)
      for _, t in ipairs { good, bad, stopped } do assert.equal("running", t:status()) end
      sbx.sleep(0)
      assert.equal("running", good:status())
      pcall(bad.await, bad)
      stopped:cancel()
      good:await()
      assert.same({ "done", "failed", "cancelled" },
        { good:status(), bad:status(), stopped:status() })
      assert.equal("sbx.Task (done)", tostring(good))
    end)
  end)

  it("cannot await itself", function()
    sbx.run(function()
      local me
      me = sbx.spawn(function() failure("TaskError", me.await, me) end)
      me:await()
    end)
  end)

  it("that yields on its own fails and says why", function()
    sbx.run(function()
      local t = sbx.spawn(function() coroutine.yield(1) end)
      assert.matches("yielded", failure("TaskError", t.await, t).message)
    end)
  end)

  it("goes on with others while it sleeps", function()
    local seconds = timed(sbx.run, function()
      local tasks = {}
      for i = 1, 100 do tasks[i] = sbx.spawn(sbx.sleep, 0.2) end
      sbx.gather(tasks)
    end)
    assert.is_true(seconds > 0.19 and seconds < 1.5, seconds .. " s")
  end)

  it("sleeps for a number of seconds that is one", function()
    for _, seconds in ipairs { -1, 0 / 0, math.huge, "1", false } do
      assert.is_false((pcall(sbx.sleep, seconds)))
      assert.is_false((pcall(sbx.run, sbx.sleep, seconds)))
    end
    assert.is_false((pcall(sbx.sleep)))
    sbx.sleep(0)
  end)

  it("is collected when it has ended", function()
    local seen = setmetatable({}, { __mode = "k" })
    sbx.run(function()
      for _ = 1, 50 do seen[sbx.spawn(sbx.sleep, 0)] = true end
      sbx.sleep(0.02)
    end)
    collectgarbage()
    collectgarbage()
    local left = 0
    for _ in pairs(seen) do left = left + 1 end
    assert.is_true(left < 5, left .. " of 50 are kept")
  end)

  it("lives on though nobody holds it", function()
    local ended = 0
    sbx.run(function()
      for _ = 1, 100 do sbx.spawn(function() sbx.sleep(0.05); ended = ended + 1 end) end
      for _ = 1, 5 do
        sbx.sleep(0.005)
        collectgarbage()
      end
    end)
    assert.equal(100, ended)
  end)
end)

describe("sbx.gather", function()
  it("gives the first result of each in order, nils included", function()
    sbx.run(function()
      local tasks = {}
      for i = 1, 5 do
        tasks[i] = sbx.spawn(function()
          sbx.sleep((6 - i) / 200)
          if i == 3 then return nil end
          return i, "more"
        end)
      end
      assert.same({ 1, 2, nil, 4, 5, n = 5 }, sbx.gather(tasks))
      assert.same({ n = 0 }, sbx.gather {})
      assert.same({ 1, 1, n = 2 }, sbx.gather { tasks[1], tasks[1] })
    end)
  end)

  it("at the first failure cancels the rest, waits for them and raises it", function()
    sbx.run(function()
      local value, cleaned = {}, 0
      local function slow()
        local ok, err = pcall(sbx.sleep, 9)
        assert(not ok and errors.is(err, "Cancelled"))
        task.shield(sbx.sleep, 0.05)
        cleaned = cleaned + 1
        error(err, 0)
      end
      local tasks = { sbx.spawn(slow), sbx.spawn(function() sbx.sleep(0.02); error(value) end),
        sbx.spawn(slow) }
      local ok, err = pcall(sbx.gather, tasks)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
      assert.equal(2, cleaned)
      assert.same({ "cancelled", "failed", "cancelled" },
        { tasks[1]:status(), tasks[2]:status(), tasks[3]:status() })
    end)
  end)

  it("raises the failure that came first, not that of the first task", function()
    sbx.run(function()
      local ok, err = pcall(sbx.gather, {
        sbx.spawn(function() sbx.sleep(0.1); error("late", 0) end),
        sbx.spawn(function() sbx.sleep(0.02); error("early", 0) end) })
      assert.is_false(ok)
      assert.equal("early", err)
    end)
  end)

  it("raises for a task that was cancelled by another", function()
    sbx.run(function()
      local one, two = sbx.spawn(sbx.sleep, 9), sbx.spawn(sbx.sleep, 9)
      sbx.spawn(function() one:cancel() end)
      failure("Cancelled", sbx.gather, { one, two })
      assert.equal("cancelled", two:status())
    end)
  end)

  it("cancelled itself cancels all and waits for them", function()
    sbx.run(function()
      local tasks = { sbx.spawn(sbx.sleep, 9), sbx.spawn(sbx.sleep, 9) }
      local gatherer = sbx.spawn(sbx.gather, tasks)
      sbx.sleep(0.01)
      gatherer:cancel()
      assert.equal("cancelled", tasks[1]:status())
      assert.equal("cancelled", tasks[2]:status())
    end)
  end)

  it("takes tasks only", function()
    assert.is_false((pcall(sbx.gather, { 1 })))
    assert.is_false((pcall(sbx.gather, { {} })))
  end)

  it("outside a task serves the loop until all have ended", function()
    assert.same({ 1, 2, n = 2 }, sbx.gather {
      sbx.spawn(function() sbx.sleep(0.02); return 1 end),
      sbx.spawn(function() return 2 end),
    })
  end)

  it("takes time and memory in proportion to its tasks", function()
    local seconds = timed(support.assert_lua, "5000\n", [[
      local sbx = require "sbx"
      sbx.run(function()
        local tasks = {}
        for i = 1, 5000 do
          tasks[i] = sbx.spawn(function()
            for _ = 1, i % 50 do sbx.sleep(0) end
            return i
          end)
        end
        print(#sbx.gather(tasks))
      end)
    ]], { bare = true })
    assert.is_true(seconds < 10, seconds .. " s")
  end)
end)

describe("sbx.timeout", function()
  it("gives the function's results and errors when it is in time", function()
    sbx.run(function()
      assert.same({ 1, nil, 3 }, { sbx.timeout(5, function(...) return ... end, 1, nil, 3) })
      local value = {}
      local ok, err = pcall(sbx.timeout, 5, error, value)
      assert.is_false(ok)
      assert.is_true(rawequal(value, err))
    end)
  end)

  it("cancels the function, waits for it and raises TimeoutError", function()
    sbx.run(function()
      local cleaned = false
      local seconds, err = timed(failure, "TimeoutError", sbx.timeout, 0.05, function()
        local ok, reason = pcall(sbx.sleep, 9)
        task.shield(sbx.sleep, 0.05)
        cleaned = not ok
        error(reason, 0)
      end)
      assert.is_true(cleaned)
      assert.is_true(seconds > 0.09 and seconds < 1, seconds .. " s")
      assert.matches("0.05", err.message)
    end)
  end)

  it("raises the function's own failure in its clean-up instead", function()
    sbx.run(function()
      local ok, err = pcall(sbx.timeout, 0.02, function()
        pcall(sbx.sleep, 9)
        error("clean-up", 0)
      end)
      assert.is_false(ok)
      assert.equal("clean-up", err)
    end)
  end)

  it("works nested, outside a task, and needs a time", function()
    sbx.run(function()
      failure("TimeoutError", sbx.timeout, 0.05, sbx.timeout, 9, sbx.sleep, 9)
      failure("TimeoutError", sbx.timeout, 9, sbx.timeout, 0.05, sbx.sleep, 9)
    end)
    assert.equal(3, sbx.timeout(5, function() sbx.sleep(0.01); return 3 end))
    failure("TimeoutError", sbx.timeout, 0.02, sbx.sleep, 9)
    for _, seconds in ipairs { 0, -1, 0 / 0, "1" } do
      assert.is_false((pcall(sbx.timeout, seconds, sbx.sleep, 0)))
    end
    assert.equal(1, sbx.timeout(math.huge, function() return 1 end))
    assert.equal(1, sbx.timeout(1e300, function() return 1 end))
  end)

  it("cancelled itself cancels the function", function()
    sbx.run(function()
      local inner
      local outer = sbx.spawn(sbx.timeout, 9, function()
        local ok, err = pcall(sbx.sleep, 9)
        inner = not ok and err.class_name
        error(err, 0)
      end)
      sbx.sleep(0.01)
      outer:cancel()
      assert.equal("Cancelled", inner)
      assert.equal("cancelled", outer:status())
    end)
  end)
end)
