-- SPDX-License-Identifier: MIT
--
-- `sbxlua run`: one command in a session of its own, its streams joined to ours (SPEC O3).
--
-- The session's work is one task, so whatever ends it early (a signal, a closed output, a failure)
-- ends in the same place: the session is destroyed, which stops the command and removes its
-- workspace, before an exit code is given.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local loop = require "sbx.loop"
local models = require "sbx.models"
local options = require "sbx.doors.cli.options"
local sandboxes = require "sbx.sandboxes"
local stdio = require "sbx.doors.cli.stdio"
local task = require "sbx.task"

local M = { summary = "run a command in a session of its own" }

local EXIT_DEADLINE = 124
local EXIT_FAILURE = 125
local EXIT_OUTPUT_CLOSED = 128 + 13 -- as if SIGPIPE had ended us
local SIGNALS = { sigint = 2, sigterm = 15, sighup = 1 }
-- A session outlives its command's deadline by this.
local TTL_MARGIN_SECONDS = 60

local OutputClosed = errors.subclass(errors.Error, "OutputClosed")

local function read_env(text)
  local name, value = text:match("^([^=]+)=(.*)$")
  if not name then return nil, "must be NAME=VALUE" end
  return { name = name, value = value }
end

local function read_timeout(text)
  local seconds = text:find("^%d+%.?%d*$") and tonumber(text)
  if not seconds or seconds <= 0 or seconds == math.huge then
    return nil, "must be a number of seconds greater than 0, such as 2.5"
  end
  return seconds
end

local function one_of(allowed)
  return function(text)
    for _, known in ipairs(allowed) do
      if known == text then return text end
    end
    return nil, "must be one of " .. table.concat(allowed, ", ")
  end
end

M.spec = {
  usage = "sbxlua run [OPTIONS] [--] COMMAND [ARGUMENT]...",
  about = "Runs COMMAND in a new ephemeral session, passes its output on as it comes, and ends\n"
    .. "with its exit code. The session and its workspace are gone afterwards, however it ends.",
  options = {
    { name = "provider", value = "NAME",
      help = "local, docker or a provider's Lua module (default: TAI_MCP_SANDBOX)" },
    { name = "image", value = "IMAGE", help = "image of the session (default: busybox:1)" },
    { name = "env", value = "NAME=VALUE", many = true, read = read_env,
      help = "set a variable of the command's environment; may be repeated" },
    { name = "cwd", value = "DIR",
      help = "directory of the command, below the workspace (default: the workspace)" },
    { name = "timeout", value = "SECONDS", read = read_timeout,
      help = "deadline of the command (default: the provider's setting)" },
    { name = "stdin",
      help = "pass our standard input to the command (default: it reads end-of-file)" },
    { name = "network", value = "TIER", read = one_of(models.NETWORKS),
      help = "none, internal or egress (default: egress)" },
    { name = "isolation", value = "TIER", read = one_of(models.ISOLATIONS),
      help = "none, container or vm (default: the operator's floor)" },
  },
  notes = "Options ask; the operator's policy (TAI_MCP_SANDBOX_ISOLATION, TAI_MCP_SANDBOX_EGRESS) "
    .. "still\nrefuses what it does not allow.\n\n"
    .. "exit codes: the command's own (126 cannot be executed, 127 not found, 128+N killed by\n"
    .. "signal N), 124 stopped at its deadline, 125 sbxlua itself failed, 130 interrupted, 143\n"
    .. "terminated, 129 hung up, 141 nobody reads our output any more",
}

local SHORT_NAMES = { ["local"] = true, docker = true }

local function configure(values)
  local name = values.provider
  if not name then return end
  if SHORT_NAMES[name] then name = "sbx.providers." .. name end
  sandboxes.configure { sandbox_module = name }
end

local function session_spec(values, timeout_seconds)
  local env = {}
  for _, pair in ipairs(values.env or {}) do
    env[pair.name] = pair.value
  end
  return {
    image = values.image or "busybox:1",
    workspace_key = "run",
    durability = "ephemeral",
    env = env,
    network = values.network or "egress",
    isolation = values.isolation,
    ttl_seconds = math.min(math.ceil(timeout_seconds) + TTL_MARGIN_SECONDS, models.MAX_INTEGER),
  }
end

-- Gives our input to the command. What it does not want is dropped, and no more is read.
local function feed(handle)
  for data in stdio.read do
    local ok, err = pcall(handle.write_stdin, handle, data)
    if not ok then
      if errors.is(err, "SandboxError") and err.message:find("(EPIPE)", 1, true) then return end
      error(err, 0)
    end
  end
  handle:close_stdin()
end

local function copy_output(handle)
  for item in handle:output() do
    if item.exit_code then return item.exit_code end
    if not stdio.write(item.stream, item.data) then errors.raise(OutputClosed("output closed")) end
  end
end

-- Joins the streams until the command's end. A failure to feed it stops it, and is what is raised.
local function join(handle, with_stdin)
  if not with_stdin then
    handle:close_stdin()
    return copy_output(handle)
  end
  local feed_error
  local feeder = task.spawn(function()
    local ok, err = pcall(feed, handle)
    if ok or errors.is(err, "Cancelled") then return end
    feed_error = err
    handle:kill()
  end)
  local ok, result = pcall(copy_output, handle)
  task.shield(feeder.cancel, feeder)
  if feed_error then error(feed_error, 0) end
  if not ok then error(result, 0) end
  return result
end

local function run_command(session, command, values, timeout_seconds)
  local handle = session:exec_start(command,
    { cwd = values.cwd, timeout_seconds = timeout_seconds })
  return join(handle, values.stdin)
end

-- Raises what ended the command; a clean-up that fails is told all the same.
local function with_session(command, values)
  local sandbox = sandboxes.require_sandbox()
  local timeout_seconds = values.timeout or sandbox.exec_default_timeout_seconds
  local session = sandbox:create_session(session_spec(values, timeout_seconds))
  local ok, result = pcall(run_command, session, command, values, timeout_seconds)
  local destroyed, err = pcall(task.shield, session.destroy, session)
  if not destroyed then
    stdio.complain(stdio.failure(err))
    if ok then return EXIT_FAILURE end
  end
  if not ok then error(result, 0) end
  return result
end

-- nohup's wish is kept. An ignored SIGINT is not: a shell gives that to every background job.
local function is_hangup_ignored()
  local file = io.open("/proc/self/status", "r")
  if not file then return false end
  local mask = file:read("*a"):match("SigIgn:%s*%x*(%x)%s")
  file:close()
  return mask ~= nil and tonumber(mask, 16) % 2 == 1
end

---For every sub-command: runs fn in a task that a signal cancels.
---@param fn function
---@return boolean ok
---@return any result fn's first, or what it raised
---@return integer|nil signal the number of the one received
function M.interruptible(fn, ...)
  local worker = task.spawn(fn, ...)
  local received
  -- Caught, so that a write to a closed output fails instead of ending us.
  local stops = { loop.on_signal("sigpipe", function() end) }
  for name, number in pairs(SIGNALS) do
    if name ~= "sighup" or not is_hangup_ignored() then
      stops[#stops + 1] = loop.on_signal(name, function()
        received = received or number
        task.spawn(worker.cancel, worker)
      end)
    end
  end
  local ok, result = pcall(worker.await, worker)
  for _, stop in ipairs(stops) do
    stop()
  end
  return ok, result, received
end

local function exit_code(ok, result, signal)
  if ok then return result end
  if errors.is(result, "Cancelled") and signal then return 128 + signal end
  if errors.is(result, OutputClosed) then return EXIT_OUTPUT_CLOSED end
  local text = stdio.failure(result)
  if errors.is(result, "SandboxExecTimeoutError") then
    stdio.complain(text .. "; --timeout sets another deadline")
    return EXIT_DEADLINE
  end
  if errors.is(result, "SandboxUnavailableError") then
    text = text .. "; or name it with --provider"
  end
  stdio.complain(text)
  return EXIT_FAILURE
end

---@param args string[] what follows `run` on the command line
---@return integer exit code
function M.main(args)
  local values, command = options.parse(M.spec, args)
  if not values then
    stdio.complain("run: " .. command)
    return EXIT_FAILURE
  end
  if values.help then
    io.stdout:write(options.help(M.spec))
    return 0
  end
  if #command == 0 then
    stdio.complain("run: no command given: write it after the options, sbxlua run -- COMMAND")
    return EXIT_FAILURE
  end
  configure(values)
  local ok, result, signal = task.run(M.interruptible, with_session, command, values)
  stdio.close()
  return exit_code(ok, result, signal)
end

return M
