-- SPDX-License-Identifier: MIT
--
-- Doubles that break what a provider owes about one-shot execs (see spec.support.doubles).

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local task = require "sbx.task"
local waits = require "sbx.waits"
local tools = require "spec.support.doubles.tools"
local virtual_time = require "spec.support.virtual_time"

local double, wrap, raise = tools.double, tools.wrap, tools.raise

local LARGE = 8 * 1024 * 1024

-- Changes the results of one-shot execs: fn(result, exec).
local function change_result(parts, fn)
  wrap(parts.Session, "_result", function(original, self, exec)
    local result = original(self, exec)
    fn(result, exec)
    return result
  end)
end

local function changed_result(case, name, fn)
  double(case, name, function(parts) change_result(parts, fn) end)
end

-- Raises instead of a one-shot exec of a program.
local function refuse_exec(case, name, program, text)
  double(case, name, function(parts)
    wrap(parts.Session, "_launch", function(original, self, request, interactive)
      local exec = original(self, request, interactive)
      if not interactive and exec.name == program and (not request.stdin or #request.stdin > LARGE)
      then
        exec:stop("cancel")
        raise(text)
      end
      return exec
    end)
  end)
end

-- One-shot.

changed_result("exec.status", "every failure is 1", function(result, exec)
  if result.exit_code == 7 and exec.name == "print" then result.exit_code = 1 end
end)

refuse_exec("exec.not_found", "a command that is not found raises", "sbx-no-such-command",
  "no such command")

changed_result("exec.not_executable", "not executable is 127", function(result, exec)
  if exec.name == "./plain" then result.exit_code = 127 end
end)

changed_result("exec.signalled", "a signal is a negative status", function(result)
  if result.exit_code == 143 then result.exit_code = -15 end
end)

double("exec.arguments", "a line end in an argument is a space", function(parts)
  wrap(parts.programs, "print", function(original, process, arguments)
    return original(process, { arguments[1]:gsub("\n", " "), arguments[2], arguments[3] })
  end)
end)

double("exec.own_path", "a name is looked up in the provider's PATH", function(parts)
  function parts.Session._is_in_path() return true end
end)

double("exec.closed_output", "the end of the output is taken for the exit", function(parts)
  wrap(parts.Exec, "check_end", function(original, self)
    original(self)
    if not self.ended and self.name == "close_output_exit" and not self:is_held() then
      self.exit_code = 0
      self:finish("exit")
    end
  end)
end)

double("exec.long_timeout", "a long timeout overflows", function(parts)
  wrap(parts.Exec, "arm_deadline", function(original, self)
    if self.request.timeout_seconds * 1000 < 2 ^ 31 then return original(self) end
    self.disarm = virtual_time.at_world(0.01, function() self:on_deadline() end)
  end)
end)

double("exec.closed_output_timeout", "a one-shot that closed its output has no deadline",
  function(parts)
    wrap(parts.Exec, "check_end", function(original, self)
      original(self)
      if not self.ended and not self.interactive and not self:is_held() then self.disarm() end
    end)
  end)

double("exec.no_stdin", "without stdin nothing ends it", function(parts)
  wrap(parts.Exec, "start", function(original, class, request, interactive, ...)
    local exec = original(class, request, interactive, ...)
    if not interactive and not request.stdin then exec.stdin_closed = false end
    return exec
  end)
end)

double("exec.large_stdin", "a large stdin loses its end", function(parts)
  wrap(parts.Process, "read", function(original, self)
    local data = original(self)
    if data and #data > LARGE and self.exec.name == "cat" then return data:sub(1, LARGE) end
    return data
  end)
end)

refuse_exec("exec.head_of_stdin", "unread input is an error", "head", "broken pipe")
refuse_exec("exec.closed_stdin", "a closed stdin is an error", "close_stdin", "broken pipe")

double("exec.closed_stdin", "a command that does not read waits for ever", function(parts)
  wrap(parts.Exec, "on_exit", function(original, self, code)
    if self.name == "print" and #(self.request.stdin or "") > LARGE and code ~= 137 then
      self.disarm()
      return
    end
    return original(self, code)
  end)
end)

changed_result("exec.streams", "stderr is in stdout", function(result, exec)
  if exec.name == "lines_on_both" then
    result.stdout, result.stderr = result.stdout .. result.stderr, ""
  end
end)

changed_result("exec.streams", "a large output is cut", function(result)
  if #result.stderr > 1024 * 1024 then result.stderr = result.stderr:sub(1, 1024 * 1024) end
end)

changed_result("exec.bytes", "stdout ends at NUL", function(result)
  result.stdout = result.stdout:match("^%Z*")
end)

changed_result("exec.bytes", "stderr has no CR", function(result)
  result.stderr = result.stderr:gsub("\r", "")
end)

double("exec.spec_env", "an interactive command has no spec.env", function(parts)
  wrap(parts.Session, "exec_start", function(original, self, argv, options)
    local spec_env = self._spec_env
    self._spec_env = {}
    local handle = original(self, argv, options)
    self._spec_env = spec_env
    return handle
  end)
end)

double("exec.spec_env", "an empty variable is unset", function(parts)
  wrap(parts.Session, "_environment", function(original, self, request)
    local env = original(self, request)
    for name, value in pairs(env) do
      if value == "" then env[name] = nil end
    end
    return env
  end)
end)

double("exec.call_env", "spec.env outweighs the call's", function(parts)
  wrap(parts.Session, "_environment", function(original, self, request)
    local level = self._spec_env.SBX_LEVEL
    local env = original(self, request)
    if level then env.SBX_LEVEL = level:reveal() end
    return env
  end)
end)

double("exec.call_env", "the call's env stays", function(parts)
  wrap(parts.Session, "_environment", function(original, self, request)
    for name, value in pairs(request.env) do
      if name == "SBX_LEVEL" then self._spec_env[name] = require("sbx.secret").new(value) end
    end
    return original(self, request)
  end)
end)

double("exec.host_env", "the program's environment is handed on", function(parts)
  local program = parts.programs.print_variable
  function parts.programs.print_variable(process, arguments)
    local value = os.getenv(arguments[1])
    if value then
      process:out("stdout", value)
      return 0
    end
    return program(process, arguments)
  end
end)

-- Changes where a command starts: fn(session, cwd) gives a directory, or nothing.
local function other_directory(case, name, fn)
  double(case, name, function(parts)
    wrap(parts.Session, "_directory", function(original, self, request)
      return request.cwd and fn(self, request.cwd) or original(self, request)
    end)
  end)
end

other_directory("exec.relative_cwd", "a relative cwd is one of the host", function(session, cwd)
  if cwd == "a/b" then return session._root end
end)
other_directory("exec.absolute_cwd", "an absolute cwd is the workspace", function(session, cwd)
  if cwd == "/" then return session._dir end
end)
other_directory("exec.missing_cwd", "a missing cwd is the workspace", function(session, cwd)
  if cwd == "missing" and not session._spec_env.SBX_TOKEN then return session._dir end
end)
other_directory("exec.file_as_cwd", "a file as cwd is the workspace", function(session, cwd)
  if cwd == "file" then return session._dir end
end)
other_directory("exec.cwd_outside", "`..` leads outside", function(session, cwd)
  if cwd == ".." then return session._dir.parent end
end)
other_directory("exec.cwd_outside", "a link leads outside", function(session, cwd)
  if cwd == "up" then return session._dir.parent end
end)

double("exec.validation", "timeout_seconds has a default", function(parts)
  wrap(parts.Session, "exec", function(original, self, argv, options)
    if type(options) == "table" and options.timeout_seconds == nil and type(argv) == "table" then
      options.timeout_seconds = 300
    end
    return original(self, argv, options)
  end)
end)

double("exec.validation", "it is checked after the start", function(parts)
  wrap(parts.Session, "exec_start", function(original, self, argv, options)
    local ok, result = pcall(original, self, argv, options)
    if ok then return result end
    pcall(original, self, argv, { timeout_seconds = 30 })
    error(result, 0)
  end)
end)

-- Changes the timeouts of one kind of exec: fn(err, exec).
local function changed_timeout(case, name, interactive, fn)
  double(case, name, function(parts)
    local make = parts.timeout_error
    function parts.timeout_error(exec)
      local err = make(exec)
      if exec.interactive == interactive then err = fn(err, exec) or err end
      return err
    end
  end)
end

tools.changed_timeout = changed_timeout

changed_timeout("exec.timeout", "a one-shot timeout counts nothing", false, function(err, exec)
  if exec.name == "print_ready_stay" then err.stdout_len, err.stderr_len = 0, 0 end
end)

double("exec.timeout", "the deadline comes early", function(parts)
  wrap(parts.Exec, "arm_deadline", function(original, self)
    local request = self.request
    if request.timeout_seconds ~= 1 then return original(self) end
    request.timeout_seconds = 0.5
    original(self)
    request.timeout_seconds = 1
  end)
end)

-- A stop of a reason, for execs that match, kills the command alone.
local function stops_alone(case, name, matches)
  double(case, name, function(parts)
    wrap(parts.Exec, "stop", function(original, self, why)
      if not matches(self, why) then return original(self, why) end
      for _, process in ipairs(self.processes) do
        if process.main and process.alive then
          process.alive, process.holds_output = false, false
          self:on_exit(137)
        else
          process.holds_output = false
        end
      end
    end)
  end)
end

tools.stops_alone = stops_alone

stops_alone("exec.timeout_group", "the deadline stops the command alone", function(exec, why)
  return why == "deadline" and not exec.interactive and exec.name == "beat_in_group"
end)

changed_timeout("exec.timeout_held_outside", "no note on a one-shot timeout", false, function(err)
  err.notes = {}
end)

double("exec.left_in_group", "a one-shot ends at the exit", function(parts)
  wrap(parts.Session, "exec", function(original, self, argv, options)
    local changed = {}
    for name, value in pairs(type(options) == "table" and options or {}) do
      changed[name] = value
    end
    if argv[4] == "sbx-leave_beat" then changed.wait = "exit" end
    return original(self, argv, next(changed) and changed or options)
  end)
end)

-- wait = "exit" is not looked at.
local function waits_for_output(case, name, interactive)
  double(case, name, function(parts)
    wrap(parts.Session, "_launch", function(original, self, request, of_handle)
      if of_handle == interactive then request.wait = "output" end
      return original(self, request, of_handle)
    end)
  end)
end

tools.waits_for_output = waits_for_output

waits_for_output("exec.wait_exit", "a one-shot does not know wait=exit", false)

double("exec.wait_exit", "wait=exit stops what the command left", function(parts)
  wrap(parts.Exec, "finish", function(original, self, how)
    if self.request.wait == "exit" and not self.interactive then self:stop("exit") end
    return original(self, how)
  end)
end)

double("exec.cancel", "a cancelled exec runs on", function(parts)
  wrap(parts.Exec, "stop", function(original, self, why)
    if why ~= "cancel" then return original(self, why) end
  end)
end)

changed_timeout("exec.quiet_errors", "a timeout shows what was printed", false, function(_, exec)
  local text = "timed out after: " .. (exec.items[1] and exec.items[1].data or "")
  return errors.SandboxExecTimeoutError(text, {
    timeout_seconds = exec.request.timeout_seconds,
    stdout_len = exec.received.stdout, stderr_len = exec.received.stderr,
  }):add_note("held")
end)

double("exec.side_by_side", "one command at a time", function(parts)
  local before
  wrap(parts.Session, "exec", function(original, self, ...)
    local last, mine = before, waits.latch()
    before = mine
    if last then last:wait() end
    local out = { pcall(original, self, ...) }
    mine:open()
    if not out[1] then error(out[2], 0) end
    return out[2]
  end)
end)

double("exec.cancelled_start", "a cancelled start leaves the command", function(parts)
  wrap(parts.Session, "exec_start", function(original, self, argv, options)
    local handle = original(self, argv, options)
    if argv[4] == "sbx-beat" and options.timeout_seconds > 10 then task.sleep(0.5) end
    return handle
  end)
end)
