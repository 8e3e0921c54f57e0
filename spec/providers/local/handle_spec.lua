-- SPDX-License-Identifier: MIT
-- proves: A1, A5, X1, X10, X11, X12, X15, X18, L5
-- An interactive exec: its stream, its stdin, its end by itself. Its stops are in handle_stop_spec.

local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, collect = support.child, support.collect
local failure, timed = support.failure, support.timed

describe("local exec_start", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local function start(argv, options)
    options = options or {}
    options.timeout_seconds = options.timeout_seconds or 30
    return session:exec_start(argv, options)
  end

  it("checks its arguments as exec does, and takes no stdin", function()
    failure("SandboxValidationError", session.exec_start, session, {}, { timeout_seconds = 1 })
    failure("SandboxValidationError", session.exec_start, session, { "true" }, {})
    local err = failure("SandboxValidationError", session.exec_start, session, { "cat" },
      { timeout_seconds = 1, stdin = "x" })
    assert.matches("stdin", err.message)
    failure("SandboxError", start, { "true" }, { cwd = ".." })
  end)

  it("has env, cwd and exit code as exec has", function()
    uv.fs_mkdir(session.workspace_path .. "/d", 493)
    local handle = start({ "sh", "-c", "echo $A; pwd; exit 9" },
      { env = { A = sbx.secret("v") }, cwd = "d" })
    local got = collect(handle)
    assert.equal("v\n" .. session.workspace_path .. "/d\n", got.stdout)
    assert.equal(9, got.exit_code)
    handle:kill()
  end)

  describe("output", function()
    it("gives chunks, then exactly one exit item, then nothing more", function()
      local handle = start(child("spew", 10, "spew-err", 5, "exit", 3))
      local got = collect(handle)
      assert.equal(1, got.exits)
      assert.equal(3, got.exit_code)
      assert.equal(3, got.items[#got.items].exit_code)
      assert.equal(10, #got.stdout)
      assert.equal(5, #got.stderr)
      for _ = 1, 3 do assert.is_nil(handle:output()()) end
      handle:kill()
      assert.is_nil(handle:output()())
    end)

    it("keeps the order of streams as it came", function()
      local handle = start({ "sh", "-c",
        "for i in 1 2 3 4 5; do echo o$i; sleep 0.02; echo e$i >&2; sleep 0.02; done" })
      local seen = {}
      for item in handle:output() do
        if item.data then
          for line in item.data:gmatch("[^\n]+") do seen[#seen + 1] = item.stream .. line end
        end
      end
      assert.equal("stdouto1 stderre1 stdouto2 stderre2 stdouto3 stderre3 stdouto4 stderre4 "
        .. "stdouto5 stderre5", table.concat(seen, " "))
      handle:kill()
    end)

    it("asked again gives the same stream, not a second one", function()
      local handle = start(child("alternate", 300))
      local first, second = handle:output(), handle:output()
      local parts = { stdout = {}, stderr = {} }
      local turn, item = 0
      repeat
        turn = turn + 1
        if turn % 3 == 0 then
          item = handle:output()()
        else
          item = (turn % 2 == 0 and first or second)()
        end
        if item.data then table.insert(parts[item.stream], item.data) end
      until item.exit_code
      local _, out = table.concat(parts.stdout):gsub("\n", "")
      local _, err = table.concat(parts.stderr):gsub("\n", "")
      assert.equal(300, out)
      assert.equal(300, err)
      assert.is_nil(first())
      handle:kill()
    end)

    it("can be left and taken up again", function()
      local handle = start({ "sh", "-c", "echo a; read x; echo b; read x; echo c" })
      assert.equal("a\n", support.read_until(handle, "a"))
      handle:write_stdin("\n")
      assert.equal("b\n", support.read_until(handle, "b"))
      handle:write_stdin("\n")
      assert.equal("c\n", collect(handle).stdout)
      handle:kill()
    end)

    it("read by several tasks gives each chunk once and the exit once", function()
      sbx.run(function()
        local handle = start(child("spew", 3000000))
        local size, exits, tasks = 0, 0, {}
        for i = 1, 5 do
          tasks[i] = sbx.spawn(function()
            for item in handle:output() do
              if item.exit_code then exits = exits + 1 else size = size + #item.data end
              sbx.sleep(0)
            end
          end)
        end
        sbx.gather(tasks)
        assert.equal(3000000, size)
        assert.equal(1, exits)
        handle:kill()
      end)
    end)

    it("passes every byte of both streams", function()
      local handle = start({ "sh", "-c", [[i=0
        while [ $i -lt 256 ]; do printf "\\$(printf %o $i)"; i=$((i+1)); done
        printf '\0\377\r\n' >&2]] })
      local all = {}
      for byte = 0, 255 do all[byte + 1] = string.char(byte) end
      local got = collect(handle)
      assert.equal(table.concat(all), got.stdout)
      assert.equal("\0\255\r\n", got.stderr)
      handle:kill()
    end)

    it("lets tasks go on while it is waited for", function()
      sbx.run(function()
        local handle = start(child("sleep", 0.4, "spew", 1))
        local ticks = 0
        local ticker = sbx.spawn(function()
          while true do
            sbx.sleep(0.02)
            ticks = ticks + 1
          end
        end)
        assert.equal(1, #collect(handle).stdout)
        ticker:cancel()
        assert.is_true(ticks >= 5, ticks .. " ticks")
        handle:kill()
      end)
    end)

    it("is whole however large and however slowly it is read, in order", function()
      local size = 24 * 1024 * 1024
      local handle = start(child("spew", size, "spew-err", 3))
      uv.sleep(300)
      local slow = 0
      local got = { stdout = {}, stderr = {} }
      for item in handle:output() do
        if item.data then table.insert(got[item.stream], item.data) end
        slow = slow + 1
        if slow % 50 == 0 then uv.sleep(5) end
      end
      assert.is_true(table.concat(got.stdout) == support.pattern(size))
      assert.equal(3, #table.concat(got.stderr))
      handle:kill()
    end)

    it("does not stall the command when nobody reads", function()
      local handle = start(child("spew", 20 * 1024 * 1024, "write-pid", "done", "sleep", 30))
      assert.is_number(support.read_pid(session, "done", 10))
      handle:kill()
    end)

    it("of a command that ended in time is whole though read past its deadline", function()
      local handle = start(child("spew", 2000000, "spew-err", 7, "exit", 2),
        { timeout_seconds = 0.5 })
      uv.sleep(900)
      local got = collect(handle)
      assert.is_true(got.stdout == support.pattern(2000000))
      assert.equal(7, #got.stderr)
      assert.equal(2, got.exit_code)
      handle:kill()
    end)

    it("waited for can be cancelled, and loses nothing by that", function()
      sbx.run(function()
        local handle = start(child("sleep", 0.4, "spew", 50))
        local reader = sbx.spawn(collect, handle)
        sbx.sleep(0.1)
        local took = timed(reader.cancel, reader)
        assert.is_true(took < 0.2, took .. " s")
        failure("Cancelled", reader.await, reader)
        local got = collect(handle)
        assert.equal(50, #got.stdout)
        assert.equal(0, got.exit_code)
        handle:kill()
      end)
    end)

    it("does not end before what holds it in the group has closed it", function()
      local handle = start(child("fork-bg", 0.5, "exit", 3))
      local seconds, got = timed(collect, handle)
      assert.is_true(seconds > 0.3, seconds .. " s")
      assert.equal(3, got.exit_code)
      handle:kill()
    end)

    it("ends at the exit with wait = exit, and what runs on runs on until kill", function()
      local handle = start(child("write-pid", "pid", "fork-bg", 60, "spew", 60000, "exit", 3),
        { wait = "exit" })
      local seconds, got = timed(collect, handle)
      assert.is_true(seconds < 5, seconds .. " s")
      assert.equal(60000, #got.stdout)
      assert.equal(3, got.exit_code)
      local leader = support.read_pid(session, "pid")
      assert.equal(1, #support.group_members(leader))
      handle:kill()
      assert.same({}, support.group_members(leader))
    end)
  end)

  describe("stdin", function()
    it("is a pipe that stays open until it is closed", function()
      local handle = start({ "cat" })
      handle:write_stdin("ping\n")
      assert.equal("ping\n", support.read_until(handle, "\n"))
      handle:write_stdin("")
      handle:write_stdin("pong\n")
      assert.equal("pong\n", support.read_until(handle, "\n"))
      handle:close_stdin()
      handle:close_stdin()
      assert.equal(0, collect(handle).exit_code)
      handle:close_stdin()
      handle:kill()
      handle:close_stdin()
    end)

    it("passes every byte", function()
      local all = {}
      for byte = 0, 255 do all[byte + 1] = string.char(byte) end
      local data = table.concat(all):rep(300)
      local handle = start({ "cat" })
      handle:write_stdin(data)
      handle:close_stdin()
      assert.is_true(collect(handle).stdout == data)
      handle:kill()
    end)

    it("takes what was written before it was closed, to the last byte", function()
      for _, size in ipairs { 1, 65535, 65536, 65537, 131073 } do
        local handle = start({ "sh", "-c", "sleep 0.1; wc -c" })
        sbx.run(function()
          local writer = sbx.spawn(function()
            handle:write_stdin(("x"):rep(size))
            handle:close_stdin()
          end)
          assert.equal(size, tonumber(collect(handle).stdout))
          writer:await()
        end)
        handle:kill()
      end
    end)

    it("echoes megabytes written while its output is read", function()
      sbx.run(function()
        local data = support.pattern(8 * 1024 * 1024)
        local handle = start({ "cat" })
        local writer = sbx.spawn(function()
          for at = 1, #data, 1000003 do handle:write_stdin(data:sub(at, at + 1000002)) end
          handle:close_stdin()
        end)
        assert.is_true(collect(handle).stdout == data)
        writer:await()
        handle:kill()
      end)
    end)

    it("echoes megabytes written before anything is read, from plain code", function()
      local data = support.pattern(3 * 1024 * 1024)
      local handle = start({ "cat" })
      handle:write_stdin(data)
      handle:close_stdin()
      assert.is_true(collect(handle).stdout == data)
      handle:kill()
    end)

    it("keeps the writes of several tasks whole and each task's in order", function()
      sbx.run(function()
        local handle = start({ "cat" })
        local writers = {}
        for w = 1, 6 do
          writers[w] = sbx.spawn(function()
            for i = 1, 40 do
              handle:write_stdin(("%d %d %s\n"):format(w, i, ("abcdef"):sub(w, w):rep(w * i * 90)))
              if i % 7 == 0 then sbx.sleep(0) end
            end
          end)
        end
        local reader = sbx.spawn(collect, handle)
        sbx.gather(writers)
        handle:close_stdin()
        local last, lines = {}, 0
        for w, i, text in reader:await().stdout:gmatch("(%d) (%d+) (%a*)\n") do
          w, i = tonumber(w), tonumber(i)
          assert.equal((last[w] or 0) + 1, i)
          assert.is_true(text == ("abcdef"):sub(w, w):rep(w * i * 90))
          last[w], lines = i, lines + 1
        end
        assert.equal(240, lines)
        handle:kill()
      end)
    end)

    it("is buffered up to a bound, then a write waits", function()
      sbx.run(function()
        local handle = start(child("sleep", 0.5, "read-all"))
        local writer = sbx.spawn(function()
          for _ = 1, 64 do handle:write_stdin(("x"):rep(32 * 1024)) end
          handle:close_stdin()
        end)
        sbx.sleep(0.2)
        assert.equal("running", writer:status())
        assert.equal("2097152\n", collect(handle).stdout)
        writer:await()
        handle:kill()
      end)
    end)

    it("does not lose the begun part of a write that is cancelled", function()
      sbx.run(function()
        local handle = start(child("sleep", 0.4, "read-all"))
        local big = sbx.spawn(handle.write_stdin, handle, ("a"):rep(300000))
        sbx.sleep(0.1)
        local behind = sbx.spawn(handle.write_stdin, handle, ("b"):rep(300000))
        sbx.sleep(0.05)
        behind:cancel()
        big:cancel()
        handle:write_stdin("end")
        handle:close_stdin()
        -- The first had begun to go out: it goes out whole. The second had not: nothing of it.
        assert.equal("300003\n", collect(handle).stdout)
        handle:kill()
      end)
    end)

    it("is refused once it is closed, by whom ever", function()
      local handle = start({ "cat" })
      handle:close_stdin()
      failure("SandboxError", handle.write_stdin, handle, "x")
      handle:kill()
      handle = start(child("close-stdin", "spew", 1, "sleep", 30))
      support.read_until(handle, "0")
      failure("SandboxError", handle.write_stdin, handle, "x")
      handle:kill()
    end)

    it("is refused once the command has exited", function()
      local handle = start({ "true" })
      collect(handle)
      failure("SandboxError", handle.write_stdin, handle, "x")
      failure("SandboxError", handle.write_stdin, handle, "x")
      handle:kill()
      failure("SandboxError", handle.write_stdin, handle, "x")
      handle:close_stdin()
    end)

    it("is refused in a write that waits when the command closes it or exits", function()
      for _, last in ipairs { "close-stdin", "head" } do
        sbx.run(function()
          local handle = start(child("sleep", 0.2, last, last == "head" and 1 or "sleep",
            last == "head" and "exit" or 0.5, last == "head" and 0 or nil))
          local writer = sbx.spawn(handle.write_stdin, handle, ("x"):rep(1024 * 1024))
          sbx.sleep(0.05)
          assert.equal("running", writer:status())
          local seconds = timed(failure, "SandboxError", writer.await, writer)
          assert.is_true(seconds < 3, seconds .. " s")
          handle:kill()
        end)
      end
    end)

    it("takes strings only", function()
      local handle = start({ "cat" })
      for _, data in ipairs { 1, true, {} } do
        failure("SandboxValidationError", handle.write_stdin, handle, data)
      end
      failure("SandboxValidationError", handle.write_stdin, handle)
      handle:kill()
    end)
  end)

  describe("input taken but never delivered", function()
    local function holder()
      local handle = start(child("write-pid", "pid", "spew", 4, "hold-stdin", 60, "sleep", 0.6,
        "exit", 0))
      support.read_until(handle, "0")
      failure("SandboxError", function()
        -- More than the pipe and the buffer hold: some of it is taken, the rest is refused.
        for _ = 1, 40 do handle:write_stdin(("x"):rep(16 * 1024)) end
      end)
      return handle
    end

    it("ends the output with an error in place of the exit, each time", function()
      sbx.run(function()
        local handle = holder()
        local err = failure("SandboxError", collect, handle)
        assert.equal("SandboxError", err.class_name)
        assert.matches("stdin", err.message)
        failure("SandboxError", collect, handle)
        handle:kill()
      end)
    end)

    it("is not cleared by a kill", function()
      sbx.run(function()
        local handle = holder()
        handle:kill()
        assert.same({}, support.group_members(support.read_pid(session, "pid")))
        failure("SandboxError", collect, handle)
        handle:kill()
        failure("SandboxError", collect, handle)
      end)
    end)
  end)
end)
