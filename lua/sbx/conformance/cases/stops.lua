-- SPDX-License-Identifier: MIT
--
-- Conformance cases: kills and deadlines of interactive execs, late and slow readers.

local loop = require "sbx.loop"
local programs = require "sbx.conformance.programs"
local task = require "sbx.task"
local build = programs.build

local cases = {}

local function case(name, ids, promise, run)
  cases[#cases + 1] = { name = "stops." .. name, ids = ids, promise = promise, run = run }
end

local LINE = ("filler "):rep(140)
local LINES = 3000 -- about 3 MB: more than any transport keeps for a reader
local DEADLINE = 1.5

-- Waits until a command is known to have exited, without reading: until a write is refused.
local function wait_for_exit(t, handle)
  t:within(10, "the command's exit", function()
    while pcall(handle.write_stdin, handle, "x") do
      task.sleep(0.02)
    end
  end)
end

local function sleep_past(t, started, seconds)
  local left = started + t:seconds(seconds) - t.now()
  if left > 0 then task.sleep(left) end
end

case("kill_after_exit", "X14", "kill() after the exit never raises, however often, and the status "
  .. "stays the command's own", function(t)
  local session = t:session()
  local handle = t:start(session, build.print_ready_exit("out", "ready", 7))
  wait_for_exit(t, handle)
  for _ = 1, 3 do
    local ok, err = pcall(handle.kill, handle)
    t:check(ok, "a kill after the exit raised %s", tostring(err))
  end
  local got = t:collect_all(handle)
  t:equal("out", got.stdout, "stdout")
  t:equal(7, got.exit_code, "exit_code")
  local ok, err = pcall(handle.kill, handle)
  t:check(ok, "a kill after the end of the output raised %s", tostring(err))
end)

case("received_output", "X14", "output received before a kill is still yielded after it, in order, "
  .. "then exactly one exit item", function(t)
  local session = t:session()
  local handle = t:start(session, build.print_ready_stay("out", "err", "ready"))
  t:wait_for_file(session, "ready")
  t:sleep(0.5)
  handle:kill()
  local got = t:collect_all(handle)
  t:equal("out", got.stdout, "stdout")
  t:equal("err", got.stderr, "stderr")
  t:equal(1, got.exits, "the number of exit items")
end)

case("kill_status", "X4, X14", "a kill of a running command ends its output promptly with the exit "
  .. "status of SIGKILL, 137", function(t)
  local handle = t:start(t:session(), build.sleep_unread())
  t:within(10, "the kill", handle.kill, handle)
  t:equal(137, t:collect_all(handle, "the output after a kill", 5).exit_code, "exit_code")
end)

case("kill_at_once", "X14, X16", "kills from several tasks at once all return, none "
  .. "raises", function(t)
  local handle = t:start(t:session(), build.sleep_unread())
  local killers = {}
  for i = 1, 3 do
    killers[i] = t:spawn(handle.kill, handle)
  end
  for i = 1, 3 do
    t:await(killers[i], "a kill beside others", 10)
  end
  t:equal(1, t:collect_all(handle, "the output", 5).exits, "the number of exit items")
end)

case("kill_wakes_reader", "X14", "a kill ends the wait of a task that reads the output", function(t)
  local handle = t:start(t:session(), build.sleep_unread())
  local reading = t:spawn(t.collect_all, t, handle, "the output that is being read", 20)
  t:sleep(0.2)
  handle:kill()
  local got = t:await(reading, "the reader of a killed command", 5)
  t:equal(1, got.exits, "the number of exit items")
end)

case("kill_past_deadline", "X14", "a kill past the deadline, before any read, leaves no timeout: "
  .. "the output received is yielded and ends with one exit item", function(t)
  local session = t:session()
  local handle = t:start(session, build.print_ready_stay("out", "", "ready"),
    { timeout_seconds = t:seconds(DEADLINE) })
  t:sleep(DEADLINE + 0.5)
  handle:kill()
  local got = t:collect_all(handle, "the output after a kill past the deadline", 5)
  t:equal("out", got.stdout, "stdout")
  t:equal(1, got.exits, "the number of exit items")
end)

case("kill_held_outside", "X14", "after a kill the output ends promptly though a process outside "
  .. "the group still holds it", function(t)
  local session = t:session()
  local handle = t:start(session, build.hold_outside("held", t:text_seconds(8)))
  t:read_until(handle, "out")
  local before = t.now()
  handle:kill()
  local got = t:collect_all(handle, "the output that is held outside", 20)
  t:check(t.now() - before < t:seconds(6), "the output ended only with the process that held it")
  t:equal(1, got.exits, "the number of exit items")
end)

case("kill_group", "X16", "a kill stops the whole group of a running command", function(t)
  local session = t:session()
  local handle = t:start(session, build.beat_in_group("beat", t.beat_interval))
  t:wait_for_file(session, "beat")
  handle:kill()
  t:check_stops(session, "beat", "a process of the killed command's group")
end)

case("kill_left_in_group", "X14, X16", "a kill after the command's own exit stops what it left in "
  .. "its group holding its output; the status stays its own", function(t)
  local session = t:session()
  local handle = t:start(session, build.leave_beat("beat", t.beat_interval))
  t:read_until(handle, "out")
  t:sleep(0.5)
  handle:kill()
  t:check_stops(session, "beat", "what the command left in its group")
  t:equal(3, t:collect_all(handle, "the output", 5).exit_code, "exit_code")
end)

case("late_read", "X12", "a command that ended within its deadline gives its full output, more "
  .. "than any transport's buffer, to a first read past the deadline", function(t)
  local started = t.now()
  local handle = t:start(t:session(), build.lines(LINES, LINE), { timeout_seconds = t:seconds(3) })
  sleep_past(t, started, 3.5)
  local got = t:collect_all(handle, "the output that is read late")
  t:equal(programs.lines_text(LINES, LINE), got.stdout, "stdout")
  t:equal(0, got.exit_code, "exit_code")
end)

case("slow_read", "X12", "a command that ended within its deadline gives its full output to a "
  .. "reader that is slow and ends past the deadline", function(t)
  local started = t.now()
  local handle = t:start(t:session(), build.lines(LINES, LINE), { timeout_seconds = t:seconds(3) })
  local reader, parts = t:items(handle), {}
  for i = 1, 5 do
    parts[i] = t:within(20, "a chunk", reader).data
    t:check(parts[i], "the output ended after %d chunks", i - 1)
    sleep_past(t, started, i * 0.7)
  end
  local got = t:collect_all(handle, "the output that is read slowly")
  t:equal(programs.lines_text(LINES, LINE), table.concat(parts) .. got.stdout, "stdout")
  t:equal(0, got.exit_code, "exit_code")
end)

case("unread_deadline", "X13", "a command whose output nobody reads is killed at its deadline",
  function(t)
    local session = t:session()
    local handle = t:start(session, build.beat("beat", t.beat_interval),
      { timeout_seconds = t:seconds(DEADLINE) })
    t:sleep(DEADLINE)
    local beats = t:check_stops(session, "beat", "a command past its deadline")
    t:check(beats < 60, "it was stopped after %d beats, its deadline is worth 15", beats)
    t:collect_timeout(handle, "the output of a command stopped at its deadline", 5)
  end)

case("closed_output_deadline", "X13", "a command that closed its output is killed at its deadline, "
  .. "and the read raises the timeout", function(t)
  local session = t:session()
  local handle = t:start(session, build.beat_closed("beat", t.beat_interval),
    { timeout_seconds = t:seconds(DEADLINE) })
  t:collect_timeout(handle, "the output of a command that closed it", 10)
  t:check_stops(session, "beat", "a command past its deadline")
end)

case("group_deadline", "X13, X16", "the deadline of an interactive exec stops its whole group",
  function(t)
    local session = t:session()
    local handle = t:start(session, build.beat_in_group("beat", t.beat_interval),
      { timeout_seconds = t:seconds(DEADLINE) })
    t:collect_timeout(handle, "the output of a command past its deadline", 10)
    t:check_stops(session, "beat", "a process of the command's group")
  end)

case("left_in_group_deadline", "X13, X18", "the deadline also stops what a command left in its "
  .. "group past its own exit, holding its output, and the read raises the timeout", function(t)
  local session = t:session()
  local handle = t:start(session, build.leave_beat("beat", t.beat_interval),
    { timeout_seconds = t:seconds(DEADLINE) })
  local err = t:collect_timeout(handle, "the output that is held past the exit", 10)
  t:equal(3, err.stdout_len, "stdout_len")
  t:check_stops(session, "beat", "what the command left in its group")
end)

case("blocked_program_deadline", "X13", "the deadline is kept while the program's own Lua code is "
  .. "blocked", function(t)
  local session = t:session()
  local handle = t:start(session, build.beat("beat", t.beat_interval),
    { timeout_seconds = t:seconds(DEADLINE) })
  local reading = t:spawn(t.collect_timeout, t, handle, "the output of a stopped command", 20)
  t:wait_for_file(session, "beat")
  loop.block(t:seconds(4))
  local beats = t:check_stops(session, "beat", "a command past its deadline")
  t:check(beats < 30, "it had beaten %d times when the program went on, its deadline is worth 15",
    beats)
  t:await(reading, "the reader")
end)

case("timeout_counts", "X13", "the timeout of an interactive exec carries its timeout_seconds and "
  .. "counts every byte that the command gave, read or not", function(t)
  local session = t:session()
  local handle = t:start(session, build.print_ready_stay("12345", "678", "ready"),
    { timeout_seconds = t:seconds(DEADLINE) })
  t:sleep(DEADLINE + 0.5)
  local err = t:collect_timeout(handle, "the output past the deadline", 10)
  t:equal(t:seconds(DEADLINE), err.timeout_seconds, "timeout_seconds")
  t:equal(5, err.stdout_len, "stdout_len")
  t:equal(3, err.stderr_len, "stderr_len")
end)

case("unread_output", "X13", "the first read past the deadline raises the timeout: output that "
  .. "nobody had read is not yielded any more", function(t)
  local session = t:session()
  local handle = t:start(session, build.print_ready_stay("out", "err", "ready"),
    { timeout_seconds = t:seconds(DEADLINE) })
  t:sleep(DEADLINE + 0.5)
  local _, before = t:collect_timeout(handle, "the output past the deadline", 10)
  t:equal("", before.stdout .. before.stderr, "what was yielded before the timeout")
  local after = t:collect(handle, "the output after the timeout", 10)
  t:equal("", after.stdout .. after.stderr, "what was yielded after the timeout")
end)

case("timeout_held_outside", "X13, X8", "an interactive exec whose output a process outside its "
  .. "group holds raises the timeout all the same: it counts what was received, and a note says so",
  function(t)
    local session = t:session()
    local handle = t:start(session, build.hold_outside("held", t:text_seconds(8)),
      { timeout_seconds = t:seconds(DEADLINE) })
    local before = t.now()
    local err = t:collect_timeout(handle, "the output that is held outside", 20)
    t:check(t.now() - before < t:seconds(6), "it waited for the process outside the group")
    t:equal(3, err.stdout_len, "stdout_len")
    t:equal(2, err.stderr_len, "stderr_len")
    t:check(#err.notes > 0, "the error has no note")
  end)

return cases
