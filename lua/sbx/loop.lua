-- SPDX-License-Identifier: MIT
--
-- The one module that touches luv: timers, the clock, and the descriptor through which the engine
-- tells of completed ops.
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

local function trampoline(fn)
  return function()
    callback_depth = callback_depth + 1
    local ok, err = xpcall(fn, debug.traceback)
    callback_depth = callback_depth - 1
    if not ok then io.stderr:write("sbx: error in a loop callback: ", tostring(err), "\n") end
  end
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
      timer = nil
    end
  end
  -- libuv counts from a cached time, which is old when Lua has been busy: the timer would be early.
  uv.update_time()
  timer:start(math.ceil(seconds * 1000), 0, trampoline(function()
    stop()
    fn()
  end))
  if background then timer:unref() else timer:ref() end
  return stop
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

---Runs one turn of the loop.
---@param wait boolean whether to wait until something happens
---@return boolean alive false: nothing is left that could happen
function M.turn(wait)
  return uv.run(wait and "once" or "nowait") and true or false
end

---Whether the caller runs inside one of our callbacks, where the loop must not be pumped.
---@return boolean
function M.in_callback()
  return callback_depth > 0
end

return M
