-- SPDX-License-Identifier: MIT
--
-- Conformance cases: the interactive handle's output and stdin.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local programs = require "sbx.conformance.programs"
local task = require "sbx.task"
local build = programs.build

local cases = {}

local function case(name, ids, promise, run)
  cases[#cases + 1] = { name = "handle." .. name, ids = ids, promise = promise, run = run }
end

local ODD_BYTES = "\0\1\255\254\r\n\n\r\128\195(\0end\0"
local FILLER = ("filler "):rep(60)
local MiB = 1024 * 1024

-- A write that is refused must be refused with a typed error. Waits until the command is known to
-- have gone: until a write fails, whatever it fails with.
local function write_until_refused(t, handle)
  local refused, err
  t:within(10, "the wait for a write that is refused", function()
    while not refused do
      local ok, why = pcall(handle.write_stdin, handle, "x")
      refused, err = not ok, why
      if ok then task.sleep(0.02) end
    end
  end)
  return err
end

case("conversation", "X10, X11", "what is written reaches the command at once and what it answers "
  .. "is read while its stdin stays open, until close_stdin ends it", function(t)
  local handle = t:start(t:session(), build.cat())
  for _, word in ipairs { "ping\n", "pong\n" } do
    handle:write_stdin(word)
    t:equal(word, t:read_until(handle, word), "what cat answered")
    t:sleep(0.1)
  end
  handle:close_stdin()
  local got = t:collect_all(handle)
  t:equal("", got.stdout, "what came after")
  t:equal(0, got.exit_code, "exit_code")
end)

case("one_exit_item", "X10", "the output ends with exactly one exit item, carrying the command's "
  .. "status, and nothing follows it", function(t)
  local handle = t:start(t:session(), build.print("out", "err", 7))
  local after, exits = 0, 0
  local reader = t:items(handle)
  t:within(30, "the output", function()
    for item in reader do
      if exits > 0 then after = after + 1 end
      if item.exit_code then
        exits = exits + 1
        t:equal(7, item.exit_code, "exit_code")
      end
    end
  end)
  t:equal(1, exits, "the number of exit items")
  t:equal(0, after, "the number of items after the exit")
  t:equal(nil, reader(), "the item after the end")
end)

case("one_stream", "X10", "asking for the output again gives the same stream, not a second one",
  function(t)
    local handle = t:start(t:session(), build.two_lines())
    t:read_until(handle, "one")
    local again = handle:output()
    handle:write_stdin("\n")
    local item = t:within(10, "the second iterator", again)
    t:check(item and not item.exit_code, "the second iterator ended")
    t:equal("two", item.data, "what the second iterator gave first")
    handle:write_stdin("\n")
    t:equal(0, t:collect_all(handle).exit_code, "exit_code")
  end)

case("chunks", "X10", "a chunk names its stream, stdout or stderr, and is never empty", function(t)
  local handle = t:start(t:session(), build.print("out", "err", 0))
  t:within(30, "the output", function()
    for item in t:items(handle) do
      if not item.exit_code then
        t:check(item.stream == "stdout" or item.stream == "stderr", "its stream is %s",
          tostring(item.stream))
        t:check(type(item.data) == "string" and #item.data > 0, "its data is empty")
      end
    end
  end)
end)

case("streams", "X10, X12", "stdout and stderr come whole, each in order", function(t)
  local handle = t:start(t:session(), build.lines_on_both(4000, FILLER))
  local got = t:collect_all(handle)
  t:equal(programs.lines_text(4000, "o" .. FILLER), got.stdout, "stdout")
  t:equal(programs.lines_text(4000, "e" .. FILLER), got.stderr, "stderr")
end)

case("arrival_order", "X10", "chunks of stdout and stderr are interleaved as they arrived, however "
  .. "late they are read", function(t)
  local handle = t:start(t:session(), build.turn_by_turn(t:text_seconds(0.3)))
  write_until_refused(t, handle)
  local order = {}
  for item in t:items(handle) do
    if item.data and item.data ~= "" then order[#order + 1] = item.stream .. " " .. item.data end
  end
  t:equal("stdout a, stderr b, stdout c", table.concat(order, ", "), "the chunks")
end)

case("bytes", "A5", "stdin and both output streams pass every byte unchanged", function(t)
  local session = t:session()
  for stream, argv in pairs { stdout = build.cat(), stderr = build.cat_to_stderr() } do
    local handle = t:start(session, argv)
    handle:write_stdin(ODD_BYTES)
    handle:close_stdin()
    t:equal(ODD_BYTES, t:collect_all(handle)[stream], stream)
  end
end)

local BLOCK = 64 * 1024

-- Block n of writer w: all its bytes are the writer's letter, but for the number at its head.
local function block(w, n)
  local head = ("<%03d>"):format(n)
  return head .. string.char(96 + w):rep(BLOCK - #head)
end

case("concurrent_writes", "X11", "writes of several tasks at once: each call's bytes arrive "
  .. "together, those of one task in order, while the output is read", function(t)
  local handle = t:start(t:session(), build.cat())
  local writers = {}
  for w = 1, 4 do
    writers[w] = t:spawn(function()
      for n = 1, 8 do
        handle:write_stdin(block(w, n))
      end
    end)
  end
  local closer = t:spawn(function()
    for w = 1, 4 do
      t:await(writers[w], "a writer")
    end
    handle:close_stdin()
  end)
  local got = t:collect_all(handle)
  t:await(closer, "the writers")
  t:equal(4 * 8 * BLOCK, #got.stdout, "the number of bytes that came back")
  local next_of = { 1, 1, 1, 1 }
  for from = 1, #got.stdout, BLOCK do
    local piece = got.stdout:sub(from, from + BLOCK - 1)
    local w = piece:byte(-1) - 96
    t:check(next_of[w] and piece == block(w, next_of[w]),
      "the bytes from %d on are no whole write, or not the next of their task", from)
    next_of[w] = next_of[w] + 1
  end
end)

case("unread_echo", "X11, X12", "a write is not held up by output that nobody reads, and the "
  .. "output is there in full afterwards", function(t)
  local handle = t:start(t:session(), build.cat())
  local data = ("0123456789abcdef"):rep(4 * MiB / 16)
  t:within(20, "a large write", handle.write_stdin, handle, data)
  handle:close_stdin()
  t:equal(data, t:collect_all(handle).stdout, "what came back")
end)

case("write_after_exit", "X11", "a write after the command has exited raises "
  .. "SandboxError", function(t)
  local handle = t:start(t:session(), build.print("", "", 0))
  t:collect_all(handle)
  local err = write_until_refused(t, handle)
  t:raises_plain("a write after the exit", error, err, 0)
end)

case("write_after_close", "X11", "a write after close_stdin raises SandboxError", function(t)
  local handle = t:start(t:session(), build.cat())
  handle:close_stdin()
  t:raises_plain("a write after close_stdin", handle.write_stdin, handle, "x")
end)

case("write_after_kill", "X11", "a write after kill() raises SandboxError", function(t)
  local handle = t:start(t:session(), build.sleep_unread())
  handle:kill()
  t:raises_plain("a write after kill()", handle.write_stdin, handle, "x")
end)

case("waiting_write", "X11", "a write that waits for the command to read raises SandboxError when "
  .. "the command is killed", function(t)
  local handle = t:start(t:session(), build.sleep_unread())
  local writing = t:spawn(handle.write_stdin, handle, ("x"):rep(16 * MiB))
  t:sleep(0.3)
  t:equal("running", writing:status(), "the state of a write of 16 MiB that nobody reads")
  handle:kill()
  t:raises_plain("the waiting write", t.await, t, writing, "the waiting write", 10)
end)

case("close_stdin_again", "X11", "close_stdin may be called again, also after the exit and a kill",
  function(t)
    local handle = t:start(t:session(), build.cat())
    for _, what in ipairs { "the first", "the second", "after the exit", "after a kill" } do
      if what == "after the exit" then t:collect_all(handle) end
      if what == "after a kill" then handle:kill() end
      local ok, err = pcall(handle.close_stdin, handle)
      t:check(ok, "close_stdin (%s) raised %s", what, tostring(err))
    end
  end)

case("not_found", "X4", "an interactive command that is not found ends with 127 and a line on "
  .. "stderr that names it", function(t)
  local got = t:collect_all(t:start(t:session(), build.file("sbx-no-such-command")))
  t:equal(127, got.exit_code, "exit_code")
  t:check(got.stderr:find("sbx-no-such-command", 1, true), "stderr does not name the command")
end)

case("wait_exit", "X18", "with wait=\"exit\" an interactive exec ends at the command's exit, "
  .. "though what it left holds its output", function(t)
  local session = t:session()
  local handle = t:start(session, build.leave_beat("beat", t.beat_interval),
    { wait = "exit", timeout_seconds = t:seconds(20) })
  local got = t:collect_all(handle, "the output", 10)
  t:equal(3, got.exit_code, "exit_code")
  t:equal("out", got.stdout, "stdout")
  t:check_goes_on(session, "beat", "what the command left in the background")
  t:end_beat(session, "beat")
end)

return cases
