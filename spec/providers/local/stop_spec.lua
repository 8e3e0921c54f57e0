-- SPDX-License-Identifier: MIT
-- proves: A3, E2, L4, L5, X4, X8, X9, X16
-- How a one-shot is stopped: by its deadline, a cancel, a fault; and what its group has of it.

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, failure, timed = support.child, support.failure, support.timed

describe("local exec's stop", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local function timeout(argv, options)
    local seconds, err = timed(failure, "SandboxExecTimeoutError", session.exec, session, argv,
      options)
    assert.is_true(seconds >= options.timeout_seconds, "early: " .. seconds .. " s")
    assert.is_true(seconds < options.timeout_seconds + 1.5, "late: " .. seconds .. " s")
    return err
  end

  describe("at the deadline", function()
    it("kills the command and tells what it gave", function()
      local err = timeout(child("spew", 100000, "spew-err", 70, "write-pid", "pid", "sleep", 60),
        { timeout_seconds = 0.4 })
      assert.equal(0.4, err.timeout_seconds)
      assert.equal(100000, err.stdout_len)
      assert.equal(70, err.stderr_len)
      assert.same({}, err.notes)
      assert.is_false(support.is_alive(support.read_pid(session, "pid")))
    end)

    it("never shows output or arguments but the program's name", function()
      local err = timeout({ "sh", "-c", "echo s3cr3t; echo s3cr3t >&2; sleep 60" },
        { timeout_seconds = 0.3, env = { T = sbx.secret("s3cr3t") } })
      assert.is_nil(tostring(err):find("s3cr3t", 1, true))
      assert.matches('"sh"', err.message)
    end)

    it("kills a command that ignores TERM, and one that is deaf to all it can be", function()
      timeout(child("ignore-term", "sleep", 60), { timeout_seconds = 0.3 })
      timeout(child("deaf-sleep", 60), { timeout_seconds = 0.3 })
    end)

    it("kills a command that has stopped itself or its group", function()
      timeout(child("stop-self"), { timeout_seconds = 0.3 })
      timeout(child("fork-bg", 60, "stop-group", "sleep", 60), { timeout_seconds = 0.3 })
    end)

    it("kills a command that has closed its output", function()
      local err = timeout(child("spew", 3, "close-stdout", "close-stderr", "sleep", 60),
        { timeout_seconds = 0.3 })
      assert.equal(3, err.stdout_len)
    end)

    it("kills a command that never reads its input", function()
      timeout(child("sleep", 60), { timeout_seconds = 0.3, stdin = ("x"):rep(4 * 1024 * 1024) })
    end)

    it("kills a command that floods, with every byte counted that was given", function()
      local err = timeout({ "yes" }, { timeout_seconds = 0.3 })
      assert.is_true(err.stdout_len > 0)
      assert.equal(0, err.stderr_len)
    end)

    it("kills the whole group", function()
      local options = { timeout_seconds = 0.5 }
      timeout(child("write-pid", "pid", "fork-bg", 60, "fork-bg-closed", 60, "sleep", 60), options)
      assert.same({}, support.group_members(support.read_pid(session, "pid")))
    end)

    it("kills a group that grows while it is killed", function()
      timeout(child("write-pid", "pid", "fork-bomb", 300, "sleep", 60), { timeout_seconds = 0.3 })
      assert.same({}, support.group_members(support.read_pid(session, "pid")))
    end)

    it("comes for a command that has exited while its group holds the output", function()
      local err = timeout(child("write-pid", "pid", "spew", 10, "fork-bg", 60),
        { timeout_seconds = 0.5 })
      assert.equal(10, err.stdout_len)
      assert.same({}, err.notes)
      assert.same({}, support.group_members(support.read_pid(session, "pid")))
    end)

    it("comes though a process outside the group holds the output, and says so", function()
      for _, last in ipairs { "sleep", "exit" } do
        local err = timeout(child("spew", 10, "setsid-bg", 2.2, last, last == "exit" and 0 or 60),
          { timeout_seconds = 0.4 })
        assert.equal(10, err.stdout_len)
        assert.equal(1, #err.notes)
        assert.matches("outside", err.notes[1])
        assert.matches("note: ", tostring(err))
      end
    end)

    it("is not in the way of a command that ends before it", function()
      for _ = 1, 10 do
        local r = session:exec(child("sleep", 0.05, "exit", 3), { timeout_seconds = 5 })
        assert.equal(3, r.exit_code)
      end
    end)

    it("may be shorter than the start takes", function()
      local ok, err = pcall(session.exec, session, child("sleep", 5), { timeout_seconds = 1e-9 })
      assert.is_false(ok)
      assert.equal("SandboxExecTimeoutError", err.class_name)
    end)

    it("is kept by each of many at once", function()
      local seconds = timed(sbx.run, function()
        local tasks = {}
        for i = 1, 30 do
          tasks[i] = sbx.spawn(function()
            return failure("SandboxExecTimeoutError", session.exec, session,
              child("spew", i, "sleep", 60), { timeout_seconds = 0.5 + i / 100 })
          end)
        end
        for i, err in ipairs(sbx.gather(tasks)) do
          assert.equal(i, err.stdout_len)
          assert.equal(0.5 + i / 100, err.timeout_seconds)
        end
      end)
      assert.is_true(seconds < 3, seconds .. " s")
    end)

    it("is kept while the program's Lua computes", function()
      local pid
      sbx.run(function()
        local task = sbx.spawn(function()
          failure("SandboxExecTimeoutError", session.exec, session,
            child("write-pid", "pid", "sleep", 60), { timeout_seconds = 0.5 })
        end)
        sbx.sleep(0.1)
        pid = support.read_pid(session, "pid")
        local until_ns, gone_ns = uv.hrtime() + 1.5e9, nil
        local began = uv.hrtime()
        while uv.hrtime() < until_ns do
          if not gone_ns and not support.is_alive(pid) then gone_ns = uv.hrtime() end
        end
        assert.is_truthy(gone_ns, "it lived through the busy time")
        assert.is_true((gone_ns - began) / 1e9 < 1, "it was killed late")
        task:await()
      end)
    end)
  end)

  describe("by a cancel", function()
    local function cancelled_after(seconds, argv, options)
      options = options or {}
      options.timeout_seconds = options.timeout_seconds or 60
      local took
      sbx.run(function()
        local task = sbx.spawn(session.exec, session, argv, options)
        sbx.sleep(seconds)
        took = timed(task.cancel, task)
        assert.equal("cancelled", task:status())
        failure("Cancelled", task.await, task)
      end)
      return took
    end

    it("has killed the whole group when the cancel returns", function()
      local took
      sbx.run(function()
        local task = sbx.spawn(session.exec, session,
          child("ignore-term", "write-pid", "pid", "fork-bg", 60, "fork-bg-closed", 60, "spew", 9,
            "sleep", 60), { timeout_seconds = 60 })
        while not uv.fs_stat(session.workspace_path .. "/pid") do sbx.sleep(0.01) end
        sbx.sleep(0.1)
        took = timed(task.cancel, task)
        assert.same({}, support.group_members(support.read_pid(session, "pid")))
        assert.is_nil(support.process_state(support.read_pid(session, "pid")))
      end)
      assert.is_true(took < 2, took .. " s")
    end)

    it("is prompt for a command that stopped itself, floods, or waits for input", function()
      assert.is_true(cancelled_after(0.2, child("stop-self")) < 1)
      assert.is_true(cancelled_after(0.2, { "yes" }) < 1)
      assert.is_true(cancelled_after(0.2, child("sleep", 60),
        { stdin = ("x"):rep(1024 * 1024) }) < 1)
    end)

    it("is prompt though a process outside the group holds the output", function()
      assert.is_true(cancelled_after(0.2, child("setsid-bg", 1.2, "sleep", 60)) < 0.8)
      sbx.sleep(1.1)
    end)

    it("at any moment gives Cancelled or the result, and leaves no process", function()
      for i = 1, 40 do
        sbx.run(function()
          local task = sbx.spawn(session.exec, session, child("sleep", 0.01, "exit", 5),
            { timeout_seconds = 60 })
          sbx.sleep(i / 1500)
          task:cancel()
          local ok, r = pcall(task.await, task)
          if ok then assert.equal(5, r.exit_code) else assert.equal("Cancelled", r.class_name) end
        end)
      end
    end)

    it("comes from sbx.timeout just as well", function()
      sbx.run(function()
        local seconds = timed(failure, "TimeoutError", sbx.timeout, 0.3, session.exec, session,
          child("write-pid", "pid", "sleep", 60), { timeout_seconds = 60 })
        assert.is_true(seconds > 0.29 and seconds < 1.5, seconds .. " s")
        assert.is_nil(support.process_state(support.read_pid(session, "pid")))
      end)
    end)
  end)

  describe("of input that somebody else holds", function()
    local big = ("x"):rep(1024 * 1024)

    it("is an error when the command has exited with input unwritten", function()
      local seconds, err = timed(failure, "SandboxError", session.exec, session,
        child("write-pid", "pid", "hold-stdin", 60, "exit", 0),
        { stdin = big, timeout_seconds = 30 })
      assert.is_true(seconds < 5, seconds .. " s")
      assert.equal("SandboxError", err.class_name)
      assert.matches("stdin", err.message)
      assert.same({}, support.group_members(support.read_pid(session, "pid")))
    end)

    it("is none when the pipe has taken all of it", function()
      local r = session:exec(child("hold-stdin", 0.3, "exit", 4),
        { stdin = "small", timeout_seconds = 30 })
      assert.equal(4, r.exit_code)
    end)

    it("is none when nobody holds it", function()
      local r = session:exec(child("exit", 4), { stdin = big, timeout_seconds = 30 })
      assert.equal(4, r.exit_code)
    end)
  end)

  describe("never", function()
    it("comes to a one-shot that completed: what it left runs on", function()
      local r = session:exec(child("write-pid", "pid", "fork-bg-closed", 60),
        { timeout_seconds = 30 })
      assert.equal(0, r.exit_code)
      local leader = support.read_pid(session, "pid")
      local members = support.group_members(leader)
      assert.equal(1, #members)
      assert.is_nil(support.process_state(leader), "the leader is reaped")
      session:destroy()
      assert.same(members, support.group_members(leader))
      uv.kill(members[1], "sigkill")
      support.assert_gone(members[1])
    end)

    it("comes to a one-shot whose session is destroyed", function()
      sbx.run(function()
        local task = sbx.spawn(session.exec, session, child("sleep", 0.6, "spew", 4, "exit", 9),
          { timeout_seconds = 30 })
        sbx.sleep(0.1)
        session:destroy()
        assert.equal("running", task:status())
        local r = task:await()
        assert.equal(9, r.exit_code)
        assert.equal(4, #r.stdout)
      end)
    end)

    it("misses a one-shot whose session is destroyed: its deadline holds", function()
      sbx.run(function()
        local task = sbx.spawn(session.exec, session, child("write-pid", "pid", "sleep", 60),
          { timeout_seconds = 0.6 })
        sbx.sleep(0.3)
        local pid = support.read_pid(session, "pid")
        session:destroy()
        assert.is_true(support.is_alive(pid))
        failure("SandboxExecTimeoutError", task.await, task)
        assert.is_nil(support.process_state(pid))
      end)
    end)
  end)
end)
