-- SPDX-License-Identifier: MIT
-- proves: X13, X14, X15, X16, X17, L3, L4
-- How an interactive exec is stopped: deadline, kill, teardown; and what is read after it.

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, collect = support.child, support.collect
local failure, timed = support.failure, support.timed

describe("local handle's stop", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local function start(argv, options)
    options = options or {}
    options.timeout_seconds = options.timeout_seconds or 30
    return session:exec_start(argv, options)
  end

  -- Starts a child that writes its pid first; returns the handle and the pid.
  local function start_known(timeout_seconds, ...)
    local handle = start(child("write-pid", "pid", ...), { timeout_seconds = timeout_seconds })
    return handle, support.read_pid(session, "pid")
  end

  describe("at the deadline", function()
    it("ends the output with the timeout, its counts, and nothing of the output", function()
      local handle = start(child("spew", 100000, "spew-err", 9, "sleep", 60),
        { timeout_seconds = 0.4 })
      uv.sleep(600)
      local err = failure("SandboxExecTimeoutError", handle:output())
      assert.equal(0.4, err.timeout_seconds)
      assert.equal(100000, err.stdout_len)
      assert.equal(9, err.stderr_len)
      assert.same({}, err.notes)
      err = failure("SandboxExecTimeoutError", handle:output())
      assert.equal(100000, err.stdout_len)
      handle:kill()
    end)

    it("wakes a reader that waits", function()
      sbx.run(function()
        local handle = start(child("spew", 5, "sleep", 60), { timeout_seconds = 0.4 })
        local seconds, err = timed(failure, "SandboxExecTimeoutError", collect, handle)
        assert.is_true(seconds > 0.3 and seconds < 1.5, seconds .. " s")
        assert.equal(5, err.stdout_len)
        handle:kill()
      end)
    end)

    it("counts what was read before it too", function()
      local handle = start(child("spew", 10, "sleep", 60), { timeout_seconds = 0.5 })
      support.read_until(handle, "0")
      local err = failure("SandboxExecTimeoutError", handle:output())
      assert.equal(10, err.stdout_len)
      handle:kill()
    end)

    it("comes though a process outside the group holds the output, and says so", function()
      local handle = start(child("spew", 10, "setsid-bg", 1.6, "sleep", 60),
        { timeout_seconds = 0.4 })
      local seconds, err = timed(failure, "SandboxExecTimeoutError", collect, handle)
      assert.is_true(seconds < 1.4, seconds .. " s")
      assert.equal(10, err.stdout_len)
      assert.equal(1, #err.notes)
      handle:kill()
    end)

    it("comes for a command that has exited while its group holds the output", function()
      local handle, pid = start_known(0.5, "fork-bg", 60, "exit", 0)
      failure("SandboxExecTimeoutError", collect, handle)
      assert.same({}, support.group_members(pid))
      handle:kill()
    end)

    it("is kept though nobody reads, while Lua computes for 3 seconds", function()
      local handle, pid = start_known(0.5, "spew", 3, "sleep", 60)
      local began, gone = uv.hrtime(), nil
      while uv.hrtime() - began < 3e9 do
        local s = 0
        for i = 1, 20000 do s = s + math.sqrt(i) end
        if not gone and not support.is_alive(pid) then gone = (uv.hrtime() - began) / 1e9 end
      end
      assert.is_truthy(gone, "it lived on")
      assert.is_true(gone < 0.9, "it was gone after " .. gone .. " s only")
      local err = failure("SandboxExecTimeoutError", collect, handle)
      assert.equal(3, err.stdout_len)
      handle:kill()
    end)

    it("is kept though the program blocks in C for 3 seconds", function()
      local handle, pid = start_known(0.5, "sleep", 60)
      -- The shell looks on while this program waits for it: when is the process gone?
      local began = uv.hrtime()
      local pipe = io.popen(("i=0; while kill -0 %d 2>/dev/null && ! grep -q '^State:.Z' "
        .. "/proc/%d/status 2>/dev/null; do sleep 0.02; i=$((i+1)); [ $i -gt 140 ] && break; done; "
        .. "date +%%s.%%N; sleep $(echo 3)"):format(pid, pid))
      local seconds, microseconds = uv.gettimeofday()
      local now = seconds + microseconds / 1e6
      local gone_at = tonumber(pipe:read("*l"))
      pipe:read("*a")
      pipe:close()
      assert.is_true((uv.hrtime() - began) / 1e9 > 2.9)
      assert.is_true(gone_at - now < 0.9, "gone after " .. gone_at - now .. " s only")
      failure("SandboxExecTimeoutError", collect, handle)
      handle:kill()
    end)

    it("refuses writes from then on, one that waits included", function()
      sbx.run(function()
        local handle = start(child("sleep", 60), { timeout_seconds = 0.4 })
        local writer = sbx.spawn(handle.write_stdin, handle, ("x"):rep(1024 * 1024))
        local seconds = timed(failure, "SandboxError", writer.await, writer)
        assert.is_true(seconds < 1.5, seconds .. " s")
        failure("SandboxError", handle.write_stdin, handle, "x")
        handle:close_stdin()
        handle:kill()
      end)
    end)

    it("stops what ignores TERM, is deaf, or has stopped itself and its group", function()
      for _, verbs in ipairs {
        { "ignore-term", "sleep", 60 }, { "deaf-sleep", 60 }, { "stop-self" },
        { "fork-bg", 60, "stop-group" }, { "fork-bomb", 200, "sleep", 60 },
      } do
        local handle, pid = start_known(0.4, unpack(verbs))
        failure("SandboxExecTimeoutError", collect, handle)
        assert.same({}, support.group_members(pid))
        handle:kill()
      end
    end)
  end)

  describe("by kill", function()
    it("gives 137 once, after the output received before it", function()
      local handle, pid = start_known(30, "spew", 200000, "write-pid", "spewed", "sleep", 60)
      support.read_pid(session, "spewed")
      uv.sleep(100)
      handle:kill()
      assert.is_nil(support.process_state(pid))
      local got = collect(handle)
      assert.is_true(got.stdout == support.pattern(200000))
      assert.equal(137, got.exit_code)
      assert.equal(1, got.exits)
      assert.is_nil(handle:output()())
    end)

    it("may come any number of times, at any time, from any task", function()
      sbx.run(function()
        local handle = start(child("sleep", 60))
        local tasks = {}
        for i = 1, 10 do tasks[i] = sbx.spawn(handle.kill, handle) end
        sbx.gather(tasks)
        handle:kill()
        assert.equal(137, collect(handle).exit_code)
        handle:kill()
        assert.is_nil(handle:output()())
      end)
    end)

    it("right after the start leaves nothing", function()
      for _ = 1, 30 do
        local handle = start(child("fork-bg", 60, "sleep", 60))
        handle:kill()
        assert.equal(137, collect(handle).exit_code)
      end
    end)

    it("after the exit never raises, and the status stays the command's own", function()
      for _, when in ipairs { "read", "unread" } do
        local handle = start(child("spew", 7, "exit", 5))
        if when == "read" then
          assert.equal(5, collect(handle).exit_code)
          handle:kill()
          assert.is_nil(handle:output()())
        else
          uv.sleep(150)
          handle:kill()
          local got = collect(handle)
          assert.equal(7, #got.stdout)
          assert.equal(5, got.exit_code)
        end
        handle:kill()
      end
    end)

    it("past the deadline and before any read: the output, the exit, no timeout", function()
      local handle = start(child("spew", 300000, "spew-err", 4, "sleep", 60),
        { timeout_seconds = 0.4 })
      uv.sleep(700)
      handle:kill()
      local got = collect(handle)
      assert.is_true(got.stdout == support.pattern(300000))
      assert.equal(4, #got.stderr)
      assert.equal(137, got.exit_code)
      assert.equal(1, got.exits)
    end)

    it("just around the deadline ends the output in one way or the other, once", function()
      for i = 1, 20 do
        local handle = start(child("spew", 5, "sleep", 60), { timeout_seconds = 0.08 })
        uv.sleep(70 + i)
        handle:kill()
        local got = collect(handle)
        assert.equal(137, got.exit_code)
        assert.equal(1, got.exits)
      end
    end)

    it("ends the output promptly though a process outside the group holds it", function()
      local handle = start(child("spew", 6, "setsid-bg", 1.6, "sleep", 60))
      support.read_until(handle, "0")
      local seconds, got = timed(function()
        handle:kill()
        return collect(handle)
      end)
      assert.is_true(seconds < 1, seconds .. " s")
      assert.equal(137, got.exit_code)
      sbx.sleep(1.2)
    end)

    it("keeps what was received before it, more than memory keeps, in order", function()
      local size = 12 * 1024 * 1024
      local handle = start(child("spew", size, "spew-err", 2, "write-pid", "spewed", "sleep", 60))
      support.read_pid(session, "spewed", 20)
      uv.sleep(100)
      handle:kill()
      local got = collect(handle)
      assert.is_true(got.stdout == support.pattern(size))
      assert.equal(2, #got.stderr)
      assert.equal(137, got.exit_code)
    end)

    it("wakes readers and writers that wait", function()
      sbx.run(function()
        local handle = start(child("sleep", 60))
        local reader = sbx.spawn(collect, handle)
        local writer = sbx.spawn(handle.write_stdin, handle, ("x"):rep(1024 * 1024))
        sbx.sleep(0.1)
        handle:kill()
        assert.equal(137, reader:await().exit_code)
        failure("SandboxError", writer.await, writer)
        failure("SandboxError", handle.write_stdin, handle, "x")
      end)
    end)

    it("stops what the command left in its group after its own exit", function()
      local handle, pid = start_known(30, "fork-bg-closed", 60, "ignore-term", "fork-bg-closed", 60)
      assert.equal(0, collect(handle).exit_code)
      assert.equal(2, #support.group_members(pid))
      handle:kill()
      assert.same({}, support.group_members(pid))
      assert.is_nil(handle:output()())
    end)

    it("spares what has left the group", function()
      local handle = start({ "sh", "-c", "setsid sh -c 'echo $$ >pid; exec sleep 60' "
        .. "</dev/null >/dev/null 2>&1 & wait" })
      local pid = support.read_pid(session, "pid")
      uv.sleep(50)
      handle:kill()
      assert.is_true(support.is_alive(pid))
      uv.kill(pid, "sigkill")
      support.assert_gone(pid)
    end)

    it("can only mean this group: its id is not given back before", function()
      local handle, pid = start_known(30, "exit", 0)
      collect(handle)
      for _ = 1, 5 do
        assert.equal("Z", support.process_state(pid))
        uv.sleep(20)
      end
      handle:kill()
      assert.is_nil(support.process_state(pid))
    end)

    it("ends what is stopped, deaf, or forks on", function()
      for _, verbs in ipairs {
        { "ignore-term", "fork-bg", 60, "sleep", 60 }, { "deaf-sleep", 60 }, { "stop-self" },
        { "fork-bg", 60, "stop-group" }, { "fork-bomb", 300, "sleep", 60 },
      } do
        local handle, pid = start_known(30, unpack(verbs))
        uv.sleep(30)
        local seconds = timed(handle.kill, handle)
        assert.is_true(seconds < 3, seconds .. " s")
        assert.same({}, support.group_members(pid))
        assert.equal(137, collect(handle).exit_code)
      end
    end)

    it("of a cancelled task is done all the same", function()
      sbx.run(function()
        local handle, pid = start_known(30, "fork-bomb", 100, "sleep", 60)
        local killer = sbx.spawn(handle.kill, handle)
        sbx.sleep(0)
        killer:cancel()
        assert.is_nil(support.process_state(pid))
        assert.same({}, support.group_members(pid))
        handle:kill()
      end)
    end)

    it("gives the resources back", function()
      local before = support.count_own("fd")
      local handles = {}
      for i = 1, 20 do
        handles[i] = start(child("spew", i))
        collect(handles[i])
      end
      for _, handle in ipairs(handles) do handle:kill() end
      assert.is_true(support.wait_blocking(function()
        return support.count_own("fd") == before
      end), "descriptors stay open")
    end)
  end)

  describe("by letting go", function()
    it("of the handle: the session keeps it, and its deadline holds", function()
      local pid = select(2, start_known(0.8, "sleep", 60))
      collectgarbage()
      collectgarbage()
      uv.sleep(100)
      assert.is_true(support.is_alive(pid))
      support.assert_gone(pid, 2)
    end)

    it("of the session: its interactive commands stop and end as after a kill", function()
      sbx.run(function()
        local handle, pid = start_known(30, "spew", 8, "fork-bg", 60, "sleep", 60)
        support.read_until(handle, "0")
        local reader = sbx.spawn(collect, handle)
        sbx.sleep(0.05)
        session:destroy()
        assert.same({}, support.group_members(pid))
        assert.is_nil(support.process_state(pid))
        assert.equal(137, reader:await().exit_code)
        handle:kill()
        failure("SandboxError", handle.write_stdin, handle, "x")
      end)
    end)

    it("of the session: what a command left in its group goes too", function()
      local handle, pid = start_known(30, "fork-bg-closed", 60)
      collect(handle)
      assert.equal(1, #support.group_members(pid))
      session:destroy()
      assert.same({}, support.group_members(pid))
    end)
  end)
end)
