-- SPDX-License-Identifier: MIT
--
-- Time that passes by itself: while virtual_time.run(fn) runs, sbx's loop has a clock of its own,
-- and a wait costs nothing. When every task waits, the clock jumps to the next event.
--
-- There are two kinds of events, as in the real thing: those of the program's loop (timers of
-- tasks), which stand still while the program is blocked, and those of the world outside
-- (`at_world`: simulated processes, deadlines), which do not. Nothing real may be waited for
-- meanwhile: no op of the engine, no descriptor.

local loop = require "sbx.loop"

local M = {}

local EPOCH = 1.7e9

local now, sequence, events

local function add(seconds, fn, of_world)
  sequence = sequence + 1
  local event = { at = now + seconds, order = sequence, fn = fn, of_world = of_world }
  events[#events + 1] = event
  return event
end

local function before(a, b)
  if a.at ~= b.at then return a.at < b.at end
  return a.order < b.order
end

-- Few events wait at a time: a plain search will do.
local function take_next(until_time, world_only)
  local best
  for i, event in ipairs(events) do
    if event.at <= until_time and (event.of_world or not world_only)
      and (not best or before(event, events[best])) then
      best = i
    end
  end
  return best and table.remove(events, best)
end

local function drop(event)
  for i, candidate in ipairs(events) do
    if candidate == event then
      table.remove(events, i)
      return
    end
  end
end

local function fire(event)
  now = math.max(now, event.at)
  event.fn()
end

---Calls fn after seconds of virtual time, also while the program is blocked.
---@param seconds number
---@param fn function
---@return function stop
function M.at_world(seconds, fn)
  local event = add(seconds, fn, true)
  return function() drop(event) end
end

---Virtual UTC time in epoch seconds.
---@return number
function M.now()
  return EPOCH + now
end

local fake = { now = M.now }

function fake.monotonic()
  return now
end

function fake.after(seconds, fn)
  local event = add(seconds, fn, false)
  return function() drop(event) end
end

function fake.block(seconds)
  local until_time = now + seconds
  local event = take_next(until_time, true)
  while event do
    fire(event)
    event = take_next(until_time, true)
  end
  now = until_time
end

function fake.turn(wait)
  local event = take_next(wait and math.huge or now)
  if event then fire(event) end
  return event ~= nil or #events > 0
end

---Runs fn in virtual time.
---@param fn function
---@return any ... its results
function M.run(fn, ...)
  local real = {}
  now, sequence, events = 0, 0, {}
  for name, replacement in pairs(fake) do
    real[name], loop[name] = loop[name], replacement
  end
  local out = { pcall(fn, ...) }
  for name, original in pairs(real) do
    loop[name] = original
  end
  if not out[1] then error(out[2], 0) end
  return unpack(out, 2, table.maxn(out))
end

return M
