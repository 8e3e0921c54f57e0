-- SPDX-License-Identifier: MIT
--
-- The one module that touches luv: timers, the clock, signals, the program's standard streams, and
-- the descriptor through which the engine tells of completed ops.
--
-- luv keeps the Lua state that loads it and calls back on it, so one loaded from a coroutine
-- crashes when that coroutine is collected. A coroutine that only loads luv and is kept for ever
-- makes `require "sbx"` safe anywhere. An error inside a luv callback ends the process, so luv is
-- given one kind of callback: a trampoline that catches.

local engine = require "_sbx.engine"

local loader = coroutine.create(require)
local _, uv = assert(coroutine.resume(loader, "luv"))

local M = { _loader = loader }

-- Timers at rest. They are used again rather than closed: luv 1.44 frees a handle that is closing
-- when the Lua state ends before the loop has turned once more, and libuv then walks freed memory.
local idle_timers = {}

-- How many of our own callbacks are running: the loop cannot be pumped from within one.
local callback_depth = 0

-- libuv runs the timers that are due and then waits for something more to happen, in the same turn.
-- While this handle is active it does not wait.
local no_wait
local turning = false

local function nothing() end

local function trampoline(fn)
  return function()
    callback_depth = callback_depth + 1
    local ok, err = xpcall(fn, debug.traceback)
    callback_depth = callback_depth - 1
    M.hasten()
    if not ok then io.stderr:write("sbx: error in a loop callback: ", tostring(err), "\n") end
  end
end

---False in a process that was forked after the library was loaded.
---@return boolean
function M.is_usable()
  return engine.usable()
end

---UTC time in epoch seconds with a fraction (SPEC M1).
---@return number
function M.now()
  local seconds, microseconds = uv.gettimeofday()
  return seconds + microseconds / 1e6
end

---Monotonic time in seconds.
---@return number
function M.monotonic()
  return uv.hrtime() / 1e9
end

---@param bytes integer
---@return string random bytes of the system's generator
function M.random(bytes)
  return assert(uv.random(bytes))
end

---Blocks the program, tasks included.
---@param seconds number
function M.block(seconds)
  -- libuv takes an unsigned int of milliseconds.
  while seconds > 1e6 do
    uv.sleep(1e9)
    seconds = seconds - 1e6
  end
  uv.sleep(math.ceil(seconds * 1000))
end

---Calls fn once after seconds.
---@param seconds number >= 0
---@param fn function
---@param background? boolean true: does not keep the loop alive
---@return function stop idempotent; after it fn is not called
function M.after(seconds, fn, background)
  local timer = table.remove(idle_timers) or assert(uv.new_timer())
  local function stop()
    if timer then
      timer:stop()
      idle_timers[#idle_timers + 1] = timer
      timer, fn = nil, nil -- luv keeps the callback of a timer at rest
    end
  end
  -- libuv counts from a cached time, which is old when Lua has been busy: the timer would be early.
  -- It also cuts that time to whole milliseconds, hence the one more.
  uv.update_time()
  timer:start(seconds > 0 and math.ceil(seconds * 1000) + 1 or 0, 0, trampoline(function()
    local run = fn
    stop()
    run()
  end))
  if background then timer:unref() else timer:ref() end
  return stop
end

-- Signal handles at rest: stopped rather than closed, as timers are.
local idle_signals = {}

---Calls fn on the loop each time the program gets the signal. Does not keep the loop alive.
---@param name string as luv has it: "sigint"
---@param fn function
---@return function stop idempotent; after it the signal acts on the program as before
function M.on_signal(name, fn)
  local handle = table.remove(idle_signals) or assert(uv.new_signal())
  handle:unref()
  assert(handle:start(name, trampoline(fn)))
  return function()
    if not handle then return end
    handle:stop()
    idle_signals[#idle_signals + 1] = handle
    handle = nil
  end
end

---@class sbx.Stdio one of the program's own standard streams, read or written without blocking
---@field _standard integer the number it was opened for
---@field _stream userdata|nil nil: a file, which makes nobody wait
---@field _shared boolean the stream is on the standard descriptor itself
local Stdio = {}
Stdio.__index = Stdio

local READ_BYTES = 32 * 1024
local RETRY_SECONDS = 0.01

-- O_NONBLOCK belongs to what a descriptor refers to, and the program shares that with others (the
-- shell, the jobs of one make), so it is set on a new opening of the same pipe or terminal. What
-- cannot be opened again (a socket, another user's pipe) is shared; close() puts it back.
-- A stream rather than a poll handle: for a pipe without a reader luv prints on stderr by itself.
---@param standard integer 0, 1 or 2
---@return sbx.Stdio
function M.stdio(standard)
  local self = setmetatable({ _standard = standard, _shared = false }, Stdio)
  local kind = uv.guess_handle(standard)
  if kind ~= "pipe" and kind ~= "tty" and kind ~= "tcp" then return self end
  local flags = uv.constants.O_NONBLOCK + uv.constants.O_NOCTTY
    + (standard == 0 and uv.constants.O_RDONLY or uv.constants.O_WRONLY)
  local fd = uv.fs_open("/proc/self/fd/" .. standard, flags, 0)
  self._shared = fd == nil
  self._stream = assert(uv.new_pipe(false))
  assert(self._stream:open(fd or standard))
  return self
end

-- Calls try() until it gives something else than EAGAIN, then fn with that.
local function retry(try, fn)
  local stop
  local function attempt()
    local result, text, name = try()
    if name == "EAGAIN" then
      stop = M.after(RETRY_SECONDS, attempt)
    else
      stop = nil
      fn(result, text, name)
    end
  end
  attempt()
  return function()
    if stop then stop() end
  end
end

---Reads what there is, or what comes next. fn is called once, maybe before this returns.
---@param fn fun(data: string|nil, text: string|nil, name: string|nil) data is empty at end-of-file
---@return function stop idempotent; after it fn is not called
function Stdio:read(fn)
  local stream = self._stream
  if not stream then
    return retry(function() return uv.fs_read(self._standard, READ_BYTES, -1) end, fn)
  end
  local data, name
  local deliver = trampoline(function()
    stream:read_stop()
    if name then fn(nil, name, name) else fn(data or "") end
  end)
  local ok, text, code = stream:read_start(function(err, chunk)
    data, name = chunk, err
    deliver()
  end)
  if not ok then fn(nil, text, code) end
  return function() stream:read_stop() end
end

---Writes all of data. fn is called once, maybe before this returns.
---@param data string
---@param fn fun(ok: boolean|nil, text: string|nil, name: string|nil)
---@return function stop idempotent; after it fn is not called, though data may still be written
function Stdio:write(data, fn)
  local stream = self._stream
  if not stream then
    return retry(function()
      local bytes, text, name = uv.fs_write(self._standard, data, -1)
      if not bytes then return nil, text, name end
      data = data:sub(bytes + 1)
      if #data > 0 then return nil, nil, "EAGAIN" end
      return true
    end, fn)
  end
  local bytes, text, code = stream:try_write(data)
  if bytes == #data or (not bytes and code ~= "EAGAIN") then
    fn(bytes and true, text, code)
    return nothing
  end
  local name
  local deliver = trampoline(function()
    if fn then fn(name == nil or nil, name, name) end
  end)
  stream:write(data:sub((bytes or 0) + 1), function(err)
    name = err
    deliver()
  end)
  return function() fn = nil end
end

---Leaves the stream as it was found. Not to be called from a callback.
function Stdio:close()
  local stream = self._stream
  if not stream then return end
  self._stream = nil
  if self._shared then stream:set_blocking(true) end
  stream:close()
  uv.run("nowait") -- luv 1.44: a handle that is still closing when the Lua state ends is a crash
end

---@class sbx.Inbox the program's end of the engine: where completed ops are announced
---@field port userdata
---@field hold fun(self: sbx.Inbox) ops are awaited: the loop stays alive for them
---@field release fun(self: sbx.Inbox)
local Inbox = {}
Inbox.__index = Inbox

---@param on_ready function called, on the loop, when the port has something
---@return sbx.Inbox
function M.inbox(on_ready)
  local port, name, text = engine.port()
  if not port then error(("sbx: cannot make a completion port: %s (%s)"):format(text, name), 0) end
  local poll = assert(uv.new_poll(port:fd()))
  assert(poll:start("r", trampoline(on_ready)))
  poll:unref()
  return setmetatable({ port = port, _poll = poll }, Inbox)
end

function Inbox:hold() self._poll:ref() end

function Inbox:release() self._poll:unref() end

---@class sbx.Kick runs a function on the next turn of the loop, from wherever it is called
---@param fn function
---@return function kick
function M.kick(fn)
  local pending = false
  local function run()
    pending = false
    fn()
  end
  return function()
    if pending then return end
    pending = true
    M.after(0, run)
  end
end

---Something is to be done now: a turn that is under way ends without a wait.
function M.hasten()
  if turning and not no_wait:is_active() then no_wait:start(nothing) end
end

---Runs one turn of the loop.
---@param wait boolean whether to wait until something happens
---@return boolean alive false: nothing is left that could happen
function M.turn(wait)
  if not no_wait then
    no_wait = assert(uv.new_idle())
    no_wait:unref()
  end
  turning = true
  local alive = uv.run(wait and "once" or "nowait")
  turning = false
  no_wait:stop()
  return alive and true or false
end

---Whether the caller runs inside one of our callbacks, where the loop must not be pumped.
---@return boolean
function M.in_callback()
  return callback_depth > 0
end

return M
