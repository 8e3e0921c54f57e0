-- SPDX-License-Identifier: MIT
--
-- Conformance cases: one-shot exec, and what both kinds of exec take.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local secret = require "sbx.secret"
local programs = require "sbx.conformance.programs"
local build = programs.build

local cases = {}

local function case(name, ids, promise, run, needs)
  cases[#cases + 1] = { name = "exec." .. name, ids = ids, promise = promise, run = run,
    needs = needs }
end

-- Larger than any pipe, socket or frame buffer on the way. Made once.
local large
local function large_input()
  large = large or ("0123456789abcdef"):rep(1024 * 1024)
  return large
end

local ODD_BYTES = "\0\1\255\254\r\n\n\r\128\195(\0end\0"
local FILLER = ("filler "):rep(60)

case("status", "X4", "the result's exit_code is the command's own", function(t)
  local session = t:session()
  for _, code in ipairs { 0, 7, 255 } do
    t:equal(code, t:exec(session, build.print("", "", code)).exit_code, "exit_code")
  end
end)

case("not_found", "X4", "a command that is not found gives 127 and a line on stderr that names it",
  function(t)
    local result = t:exec(t:session(), build.file("sbx-no-such-command"))
    t:equal(127, result.exit_code, "exit_code")
    t:check(result.stderr:find("sbx-no-such-command", 1, true), "stderr does not name the command")
  end)

case("not_executable", "X4", "a command that cannot be executed gives 126 and a line on stderr "
  .. "that names it", function(t)
  local session = t:session()
  session:put_file("plain", "no program\n")
  local result = t:exec(session, build.file("./plain"))
  t:equal(126, result.exit_code, "exit_code")
  t:check(result.stderr:find("plain", 1, true), "stderr does not name the command")
end)

case("signalled", "X4", "a command killed by signal N gives 128 + N", function(t)
  local session = t:session()
  for name, number in pairs { TERM = 15, KILL = 9 } do
    t:equal(128 + number, t:exec(session, build.signal_self(name)).exit_code,
      "exit_code of a command killed by SIG" .. name)
  end
end)

case("arguments", "X1, A5", "every argument reaches the command as it is, an empty one "
  .. "too", function(t)
  local session = t:session()
  for _, argument in ipairs { "two  words", "", "-n", "a\nb", "$HOME `id` * \\ \"'", "\195\169" } do
    local result = t:exec(session, build.print(argument, "after", 0))
    t:equal(argument, result.stdout, "the first argument")
    t:equal("after", result.stderr, "the second argument")
  end
end)

case("own_path", "X4", "a name without a slash is looked up in the command's own PATH", function(t)
  local result = t:exec(t:session(), build.cat(), { env = { PATH = "/nowhere" } })
  t:equal(127, result.exit_code, "exit_code of cat with PATH=/nowhere")
end)

case("closed_output", "X18", "an exec whose command closes its output ends with the command's exit "
  .. "and its status, not before", function(t)
  local session = t:session()
  local argv = build.close_output_exit(t:text_seconds(0.3), 4)
  t:equal(4, t:exec(session, argv).exit_code, "exit_code, one-shot")
  t:equal(4, t:collect_all(t:start(session, argv)).exit_code, "exit_code, interactive")
end)

case("no_stdin", "X6", "without stdin the command reads end-of-file", function(t)
  local result = t:exec(t:session(), build.cat(), { timeout_seconds = t:seconds(10) })
  t:equal("", result.stdout, "stdout of cat")
  t:equal(0, result.exit_code, "exit_code of cat")
end)

case("large_stdin", "X6, X7", "a stdin far larger than any buffer is echoed back whole by cat",
  function(t)
    local result = t:exec(t:session(), build.cat(), { stdin = large_input() })
    t:equal(large_input(), result.stdout, "stdout of cat")
    t:equal(0, result.exit_code, "exit_code of cat")
  end)

case("head_of_stdin", "X6", "`head -c 1` of a large stdin gives its result within the timeout; the "
  .. "rest of the input is dropped", function(t)
  local result = t:exec(t:session(), build.head_one(), { stdin = large_input() })
  t:equal("0", result.stdout, "stdout of head")
  t:equal(0, result.exit_code, "exit_code of head")
end)

case("closed_stdin", "X6", "a command that closes its stdin, or never reads it, still gives its "
  .. "result", function(t)
  local session = t:session()
  local result = t:exec(session, build.close_stdin(t:text_seconds(0.3)), { stdin = large_input() })
  t:equal("done", result.stdout, "stdout of a command that closed its stdin")
  result = t:exec(session, build.print("out", "", 5), { stdin = large_input() })
  t:equal("out", result.stdout, "stdout of a command that did not read its stdin")
  t:equal(5, result.exit_code, "exit_code of a command that did not read its stdin")
end)

case("streams", "X7", "stdout and stderr come back whole, apart, each in order", function(t)
  local result = t:exec(t:session(), build.lines_on_both(4000, FILLER))
  t:equal(programs.lines_text(4000, "o" .. FILLER), result.stdout, "stdout")
  t:equal(programs.lines_text(4000, "e" .. FILLER), result.stderr, "stderr")
end)

case("bytes", "A5", "stdin, stdout and stderr pass every byte unchanged", function(t)
  local session = t:session()
  local result = t:exec(session, build.cat(), { stdin = ODD_BYTES })
  t:equal(ODD_BYTES, result.stdout, "stdout")
  result = t:exec(session, build.cat_to_stderr(), { stdin = ODD_BYTES })
  t:equal(ODD_BYTES, result.stderr, "stderr")
end)

case("spec_env", "X2", "spec.env is a credential channel: its values reach every command, "
  .. "one-shot and interactive, unchanged", function(t)
  local value = "s3cr3t $HOME `id` \"q\" 'r'\n\\second=line \195\169"
  local session = t:session { env = { SBX_TOKEN = secret.new(value), SBX_PLAIN = "" } }
  local argv = build.print_variable("SBX_TOKEN")
  t:equal(value, t:exec(session, argv).stdout, "the variable, one-shot")
  t:equal("", t:exec(session, build.print_variable("SBX_PLAIN")).stdout, "an empty variable")
  t:equal(value, t:collect_all(t:start(session, argv)).stdout, "the variable, interactive")
end)

case("call_env", "X2", "the call's env, secrets or plain strings, outweighs spec.env for that call "
  .. "only", function(t)
  local session = t:session { env = { SBX_LEVEL = "spec" } }
  local argv = build.print_variable("SBX_LEVEL")
  t:equal("call", t:exec(session, argv, { env = { SBX_LEVEL = "call" } }).stdout, "a plain string")
  t:equal("hidden", t:exec(session, argv, { env = { SBX_LEVEL = secret.new("hidden") } }).stdout,
    "a secret")
  t:equal("spec", t:exec(session, argv).stdout, "the next call")
end)

-- Variables that this program may well have and no image sets.
local HOST_VARIABLES = { "LUA_PATH", "LUA_CPATH", "TMPDIR", "USER", "LOGNAME", "SSH_AUTH_SOCK",
  "XDG_RUNTIME_DIR", "TAI_MCP_SANDBOX", "SANDBOX_LOCAL_ROOT", "SANDBOX_DOCKER_HOST" }

local function no_host_variable()
  for _, name in ipairs(HOST_VARIABLES) do
    if os.getenv(name) then return nil end
  end
  return "this program has none of the variables that are looked for"
end

case("host_env", "X2", "nothing of the host program's environment reaches a command", function(t)
  local session = t:session()
  for _, name in ipairs(HOST_VARIABLES) do
    local value = os.getenv(name)
    if value then
      t:check(t:exec(session, build.print_variable(name)).stdout ~= value,
        "the command has the host program's %s", name)
    end
  end
end, no_host_variable)

case("relative_cwd", "X3", "a relative cwd is below the workspace", function(t)
  local session = t:session()
  session:put_file("a/b/f", "content")
  t:equal("content", t:exec(session, build.cat("f"), { cwd = "a/b" }).stdout,
    "what cat read of a file in its cwd")
end)

case("absolute_cwd", "X3", "an absolute cwd is the caller's own affair", function(t)
  local session = t:session()
  local result = t:exec(session, build.exists("bin"), { cwd = "/" })
  t:equal(0, result.exit_code, "exit_code of a look for `bin` in `/`")
end)

case("missing_cwd", "X3", "a cwd that does not exist raises SandboxError", function(t)
  local session = t:session()
  t:raises("SandboxError", "exec in a missing cwd", t.exec, t, session, build.print("", "", 0),
    { cwd = "missing" })
end)

case("file_as_cwd", "X3", "a cwd that is no directory raises SandboxError", function(t)
  local session = t:session()
  session:put_file("file", "x")
  t:raises("SandboxError", "exec in a file as cwd", t.exec, t, session, build.print("", "", 0),
    { cwd = "file" })
end)

case("cwd_outside", "X3", "a relative cwd does not lead outside of the workspace, by `..` or by a "
  .. "symlink that a command made: SandboxError", function(t)
  local session = t:session()
  t:prepare(session, build.link("..", "up"))
  for _, cwd in ipairs { "..", "up" } do
    t:raises("SandboxError", "exec in cwd " .. cwd, t.exec, t, session, build.print("", "", 0),
      { cwd = cwd })
  end
end)

local function invalid_calls(argv)
  local seconds = { timeout_seconds = 30 }
  local function with(name, value)
    return { timeout_seconds = 30, [name] = value }
  end
  return {
    ["no timeout_seconds"] = { argv, {} },
    ["no options"] = { argv },
    ["timeout_seconds 0"] = { argv, { timeout_seconds = 0 } },
    ["timeout_seconds infinite"] = { argv, { timeout_seconds = math.huge } },
    ["timeout_seconds not a number"] = { argv, { timeout_seconds = 0 / 0 } },
    ["timeout_seconds a string"] = { argv, { timeout_seconds = "30" } },
    ["an empty argv"] = { {}, seconds },
    ["an argv that is a string"] = { "true", seconds },
    ["a number in argv"] = { { "sh", "-c", 5 }, seconds },
    ["NUL in argv"] = { { argv[1], argv[2], argv[3] .. "\0", argv[4], argv[5], argv[6] }, seconds },
    ["NUL in cwd"] = { argv, with("cwd", ".\0") },
    ["NUL in an env value"] = { argv, with("env", { A = "b\0c" }) },
    ["NUL in an env name"] = { argv, with("env", { ["A\0B"] = "c" }) },
    ["an env name with ="] = { argv, with("env", { ["A=B"] = "c" }) },
    ["an empty env name"] = { argv, with("env", { [""] = "c" }) },
    ["an unknown option"] = { argv, with("timeout", 3) },
  }
end

case("validation", "X1", "bad arguments (no timeout_seconds, an empty argv, a NUL byte, a bad env "
  .. "name, an unknown option …) raise SandboxValidationError before anything starts", function(t)
  local session = t:session()
  local argv = build.write_file("started", "x")
  for what, call in pairs(invalid_calls(argv)) do
    t:raises("SandboxValidationError", "exec with " .. what, session.exec, session, call[1],
      call[2])
    t:raises("SandboxValidationError", "exec_start with " .. what, session.exec_start, session,
      call[1], call[2])
  end
  t:raises("SandboxValidationError", "exec_start with stdin", session.exec_start, session, argv,
    { timeout_seconds = 30, stdin = "x" })
  t:sleep(0.2)
  t:check(not t:exists(session, "started"), "a command was started")
end)

case("timeout", "X8", "a command that runs past its deadline is stopped then, and the call raises "
  .. "SandboxExecTimeoutError with its timeout_seconds and the bytes that it gave", function(t)
  local session = t:session()
  local seconds = t:seconds(1)
  local before = t.now()
  local err = t:raises("SandboxExecTimeoutError", "exec past its deadline", session.exec, session,
    build.print_ready_stay("12345", "678", "ready"), { timeout_seconds = seconds })
  local took = t.now() - before
  t:check(took >= seconds * 0.99, "it was raised after %g s, the deadline was %g s", took, seconds)
  t:check(took < seconds + t:seconds(10), "it was raised after %g s, the deadline was %g s", took,
    seconds)
  t:equal(seconds, err.timeout_seconds, "timeout_seconds")
  t:equal(5, err.stdout_len, "stdout_len")
  t:equal(3, err.stderr_len, "stderr_len")
end)

case("long_timeout", "X1", "a timeout_seconds of more than a year, or with a fraction, is kept as "
  .. "any other", function(t)
  local session = t:session()
  for _, seconds in ipairs { 400 * 86400, 86400.25 } do
    local result = t:exec(session, build.print_later(t:text_seconds(0.2), "out", 0),
      { timeout_seconds = seconds })
    t:equal("out", result.stdout, "stdout")
  end
end)

case("closed_output_timeout", "X8", "a one-shot command that closed its output and runs on meets "
  .. "its deadline", function(t)
  local session = t:session()
  t:raises("SandboxExecTimeoutError", "exec past its deadline", session.exec, session,
    build.beat_closed("beat", t.beat_interval), { timeout_seconds = t:seconds(1) })
  t:check_stops(session, "beat", "a command past its deadline")
end)

case("timeout_group", "X8, X16", "the deadline of a one-shot exec stops its whole "
  .. "group", function(t)
  local session = t:session()
  t:raises("SandboxExecTimeoutError", "exec past its deadline", session.exec, session,
    build.beat_in_group("beat", t.beat_interval), { timeout_seconds = t:seconds(1) })
  t:check_stops(session, "beat", "a process of the command's group")
end)

case("timeout_held_outside", "X8", "a one-shot exec whose output a process outside its group holds "
  .. "raises the timeout all the same: it counts what was received, and a note says so", function(t)
  local session = t:session()
  local before = t.now()
  local err = t:raises("SandboxExecTimeoutError", "exec past its deadline", session.exec, session,
    build.hold_outside("held", t:text_seconds(6)), { timeout_seconds = t:seconds(1.5) })
  t:check(t.now() - before < t:seconds(5), "it waited for the process outside the group")
  t:equal(3, err.stdout_len, "stdout_len")
  t:equal(2, err.stderr_len, "stderr_len")
  t:check(#err.notes > 0, "the error has no note")
end)

case("left_in_group", "X8, X18", "a one-shot command that has exited while a process of its group "
  .. "holds its output meets the deadline, which stops what it left", function(t)
  local session = t:session()
  local err = t:raises("SandboxExecTimeoutError", "exec whose output is held", session.exec,
    session, build.leave_beat("beat", t.beat_interval), { timeout_seconds = t:seconds(1.5) })
  t:equal(3, err.stdout_len, "stdout_len")
  t:check_stops(session, "beat", "a process that the command left in its group")
end)

case("wait_exit", "X18", "with wait=\"exit\" a one-shot exec ends at the command's exit, with what "
  .. "it gave, and what it left in the background goes on", function(t)
  local session = t:session()
  local result = t:exec(session, build.leave_beat("beat", t.beat_interval),
    { wait = "exit", timeout_seconds = t:seconds(10) })
  t:equal(3, result.exit_code, "exit_code")
  t:equal("out", result.stdout, "stdout")
  t:check_goes_on(session, "beat", "what the command left in the background")
  t:end_beat(session, "beat")
end)

case("cancel", "X9, A3", "a one-shot exec that is cancelled raises Cancelled, its group stopped",
  function(t)
    local session = t:session()
    local running = t:spawn(function()
      return t:exec(session, build.beat_in_group("beat", t.beat_interval))
    end)
    t:wait_for_file(session, "beat")
    t:within(10, "the cancel", running.cancel, running)
    t:check_stops(session, "beat", "a process of the cancelled command's group")
    t:raises("Cancelled", "the cancelled exec", t.await, t, running, "the cancelled exec")
  end)

case("quiet_errors", "E2", "no error holds a secret's value or the command's output", function(t)
  local session = t:session { env = { SBX_TOKEN = "hush-spec" } }
  local options = { timeout_seconds = t:seconds(0.7), env = { SBX_CALL = secret.new("hush-call") } }
  local texts = {}
  local function note(what, class, argv)
    local err = t:raises(class, what, session.exec, session, argv, options)
    local parts = { tostring(err), err.message }
    for _, value in pairs(err) do
      parts[#parts + 1] = tostring(value)
    end
    texts[what] = table.concat(parts, " ")
  end
  note("a timeout", "SandboxExecTimeoutError", build.print_ready_stay("hush-out", "hush-err", "f"))
  options.cwd = "missing"
  note("a missing cwd", "SandboxError", build.print("hush-out", "", 0))
  for what, text in pairs(texts) do
    for _, hidden in ipairs { "hush-spec", "hush-call", "hush-out", "hush-err" } do
      t:check(not text:find(hidden, 1, true), "the error of %s holds %s", what, hidden)
    end
  end
end)

case("side_by_side", "A1", "commands of one session run side by side, and each call gets its own "
  .. "result", function(t)
  local session = t:session()
  local before = t.now()
  local running = {}
  for i = 1, 8 do
    running[i] = t:spawn(t.exec, t, session, build.print_later(t:text_seconds(1), "out " .. i, i))
  end
  for i = 1, 8 do
    local result = t:await(running[i], "a command beside others")
    t:equal("out " .. i, result.stdout, "stdout of command " .. i)
    t:equal(i, result.exit_code, "exit_code of command " .. i)
  end
  local took = t.now() - before
  t:check(took < t:seconds(6), "8 commands of 1 s each took %g s", took)
end)

case("cancelled_start", "A3, X9", "an exec_start that is cancelled leaves no command running",
  function(t)
    local session = t:session()
    local starting = t:spawn(t.start, t, session, build.beat("beat", t.beat_interval))
    t:sleep(0.01)
    t:within(10, "the cancel", starting.cancel, starting)
    local ok, result = pcall(t.await, t, starting, "the cancelled start")
    if ok then
      result:kill()
    elseif not errors.is(result, "Cancelled") then
      error(result, 0)
    end
    t:check_stops(session, "beat", "the command of a cancelled start")
  end)

return cases
