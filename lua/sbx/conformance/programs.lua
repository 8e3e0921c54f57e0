-- SPDX-License-Identifier: MIT
--
-- Every command that the conformance suite runs, in one table: name -> builder of an argv.
--
-- A session is assumed to have sh and what busybox has (cat, head, sleep, mkdir, ln, ls, chmod,
-- mkfifo, setsid), no more. A script carries its own name as its $0 (`sbx-NAME`) and its arguments
-- as $1, $2 …, so that an in-memory double can recognise what it is asked to play
-- (`programs.recognise`), and nothing has to be quoted.
--
-- Long-running ones end by themselves after half a minute or when `FILE.stop` appears: a provider
-- that fails to stop one must not leave it to the machine for ever. How a case knows that a
-- process is gone is the same for a host and a container: it writes one byte to a file every
-- INTERVAL seconds (a beat), and the file has stopped growing.

local M = {}

local PREFIX = "sbx-"

local function sh(name, script, ...)
  return { "sh", "-c", script, PREFIX .. name, ... }
end

-- $1 file, $2 interval.
local BEAT = 'i=0; while [ $i -lt 300 ] && [ ! -e "$1.stop" ]; do printf x >>"$1"; sleep "$2"; '
  .. "i=$((i+1)); done"
local UNTIL_IT_IS_THERE = 'while [ ! -e "$1" ]; do sleep 0.05; done; '

---@type table<string, fun(...): string[]>
M.build = {
  -- Plain programs.
  cat = function(...) return { "cat", ... } end,
  head_one = function() return { "head", "-c", "1" } end,
  sleep = function(seconds) return { "sleep", seconds } end,
  mkdir = function(path) return { "mkdir", "-p", path } end,
  link = function(target, name) return { "ln", "-s", target, name } end,
  mkfifo = function(path) return { "mkfifo", path } end,
  make_executable = function(path) return { "chmod", "755", path } end,
  file = function(path) return { path } end,

  -- Output and status.
  print = function(out, err, code)
    return sh("print", 'printf %s "$1"; printf %s "$2" >&2; exit "$3"', out, err, tostring(code))
  end,
  print_later = function(seconds, out, code)
    return sh("print_later", 'sleep "$1"; printf %s "$2"; exit "$3"', seconds, out, tostring(code))
  end,
  cat_to_stderr = function() return sh("cat_to_stderr", "cat >&2") end,
  signal_self = function(signal) return sh("signal_self", 'kill -"$1" $$; sleep 30', signal) end,
  -- Numbered lines on stdout.
  lines = function(count, filler)
    return sh("lines", 'i=0; while [ $i -lt "$1" ]; do printf "%06d %s\\n" $i "$2"; i=$((i+1)); '
      .. "done", tostring(count), filler)
  end,
  -- The same lines on stdout and stderr, turn by turn.
  lines_on_both = function(count, filler)
    return sh("lines_on_both", 'i=0; while [ $i -lt "$1" ]; do printf "%06d o%s\\n" $i "$2"; '
      .. 'printf "%06d e%s\\n" $i "$2" >&2; i=$((i+1)); done', tostring(count), filler)
  end,
  turn_by_turn = function(seconds)
    return sh("turn_by_turn", 'printf a; sleep "$1"; printf b >&2; sleep "$1"; printf c', seconds)
  end,
  -- Prints, says so in a file, exits.
  print_ready_exit = function(out, file, code)
    return sh("print_ready_exit", 'printf %s "$1"; : >"$2"; exit "$3"', out, file, tostring(code))
  end,
  -- Prints, says so in a file, goes on.
  print_ready_stay = function(out, err, file)
    return sh("print_ready_stay", 'printf %s "$1"; printf %s "$2" >&2; : >"$3"; sleep 30', out, err,
      file)
  end,

  -- Closes its output, and exits some time later.
  close_output_exit = function(seconds, code)
    return sh("close_output_exit", 'exec >&- 2>&-; sleep "$1"; exit "$2"', seconds, tostring(code))
  end,

  -- Environment, directory, files.
  print_variable = function(name)
    return sh("print_variable", 'printf %s "${' .. name .. '-unset}"', name)
  end,
  write_file = function(path, text) return sh("write_file", 'printf %s "$2" >"$1"', path, text) end,
  write_here = function(name, text) return sh("write_here", 'printf %s "$2" >"$1"', name, text) end,
  exists = function(path) return sh("exists", '[ -e "$1" ] || [ -L "$1" ]', path) end,
  is_link = function(path) return sh("is_link", '[ -L "$1" ]', path) end,
  list_mode = function(path) return sh("list_mode", 'ls -ld "$1"', path) end,
  -- Opens a file, waits for a line, then reads what it opened.
  read_opened = function(path)
    return sh("read_opened", 'exec 3<"$1"; printf open; read -r x; cat <&3', path)
  end,

  -- Stdin.
  two_lines = function()
    return sh("two_lines", "printf one; read -r x; printf two; read -r x")
  end,
  close_stdin = function(seconds)
    return sh("close_stdin", 'exec <&-; sleep "$1"; printf done', seconds)
  end,
  sleep_unread = function() return sh("sleep_unread", "sleep 30") end,

  -- Processes.
  beat = function(file, interval) return sh("beat", BEAT, file, interval) end,
  -- Beats with its stdout and stderr closed.
  beat_closed = function(file, interval)
    return sh("beat_closed", "exec >&- 2>&-; " .. BEAT, file, interval)
  end,
  -- A child in its group beats; the command itself prints and stays.
  beat_in_group = function(file, interval)
    return sh("beat_in_group", "( " .. BEAT .. " ) & " .. UNTIL_IT_IS_THERE .. "printf out; "
      .. "sleep 30", file, interval)
  end,
  -- A child in its group beats and holds the output; the command prints and exits with 3.
  leave_beat = function(file, interval)
    return sh("leave_beat", "( " .. BEAT .. " ) & " .. UNTIL_IT_IS_THERE .. "printf out; exit 3",
      file, interval)
  end,
  -- A process that has left the group holds the output for some seconds; the command prints on
  -- both streams and stays.
  hold_outside = function(file, seconds)
    return sh("hold_outside", 'setsid sh -c \': >"$1"; sleep "$2"\' ' .. PREFIX .. 'outside "$1" '
      .. '"$2" & ' .. UNTIL_IT_IS_THERE .. "printf out; printf er >&2; sleep 30", file, seconds)
  end,
}

---What the program `lines` prints.
---@param count integer
---@param filler string
---@return string
function M.lines_text(count, filler)
  local lines = {}
  for i = 1, count do
    lines[i] = ("%06d %s\n"):format(i - 1, filler)
  end
  return table.concat(lines)
end

---Tells which program an argv is, for doubles that play them.
---@param argv string[]
---@return string name of a builder's script, or argv[1] itself
---@return string[] arguments
function M.recognise(argv)
  local name = argv[1] == "sh" and (argv[4] or ""):sub(1, #PREFIX) == PREFIX
    and argv[4]:sub(#PREFIX + 1)
  local arguments = {}
  for i = name and 5 or 2, #argv do
    arguments[#arguments + 1] = argv[i]
  end
  return name or argv[1], arguments
end

return M
