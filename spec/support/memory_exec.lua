-- SPDX-License-Identifier: MIT
--
-- Simulated commands for the memory provider: processes, their group, what holds the output, the
-- stdin, the deadline and the stops of one exec. Time is virtual (spec.support.virtual_time).
--
-- A process is a coroutine that runs a Lua function and is resumed by events of the world; it never
-- calls sbx. It may be killed between two steps, which is all that a kill needs to be here. Every
-- provider gets classes of its own, so that a double changes a method of its own only.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local waits = require "sbx.waits"
local virtual_time = require "spec.support.virtual_time"

local M = {}

local STDIN_LIMIT = 128 * 1024
local EXIT_DRAIN_SECONDS = 0.05
local START_SECONDS = 0.001

local Exec, Process = {}, {}

-- Processes.

local function new_process(exec, body, group, dir)
  local process = setmetatable({ exec = exec, group = group, alive = true, holds_output = true,
    dir = dir, main = false }, exec.Process)
  process.co = coroutine.create(body)
  table.insert(exec.processes, process)
  return process
end

function Process:resume(...)
  if not self.alive then return end
  local ok, value = coroutine.resume(self.co, ...)
  if not ok then error(debug.traceback(self.co, value), 0) end
  if coroutine.status(self.co) == "dead" then
    self:die(value or 0)
  else
    value(function(...) self:resume(...) end)
  end
end

function Process:die(code)
  if not self.alive then return end
  self.alive, self.holds_output = false, false
  if self.main then self.exec:on_exit(code) end
  self.exec:check_end()
end

-- For a program: `arm` gets the function that ends the wait.
function Process.pause(_, arm)
  return coroutine.yield(arm)
end

function Process:sleep(seconds)
  self:pause(function(wake) virtual_time.at_world(tonumber(seconds), wake) end)
end

function Process:out(stream, data)
  if data ~= "" then self.exec:emit(stream, data) end
end

-- All that is there, waiting for it; nil at the end.
function Process:read()
  local exec = self.exec
  while #exec.stdin == 0 do
    if exec.stdin_closed then return nil end
    self:pause(function(wake) exec.stdin_reader = wake end)
  end
  local data = table.remove(exec.stdin, 1)
  exec.stdin_size = exec.stdin_size - #data
  exec:changed()
  return data
end

-- outside: it leaves the group.
function Process:fork(body, outside)
  local child = new_process(self.exec, body, outside and {} or self.group, self.dir)
  virtual_time.at_world(START_SECONDS, function() child:resume(child) end)
  return child
end

function Process:close_output()
  self.holds_output = false
  self.exec:check_end()
end

-- Execs.

---Starts an exec of a class.
function Exec.start(class, request, interactive, body, dir, env)
  local exec = setmetatable({
    request = request, interactive = interactive, env = env, processes = {}, group = {},
    items = {}, taken = 0, received = { stdout = 0, stderr = 0 },
    stdin = {}, stdin_size = 0, stdin_closed = not interactive,
    exited = false, ended = false, held = false, latch = waits.latch(),
  }, class)
  if request.stdin and request.stdin ~= "" then
    exec.stdin[1], exec.stdin_size = request.stdin, #request.stdin
  end
  local main = new_process(exec, body, exec.group, dir)
  main.main = true
  virtual_time.at_world(START_SECONDS, function() main:resume(main) end)
  exec:arm_deadline()
  return exec
end

function Exec:arm_deadline()
  self.disarm = virtual_time.at_world(self.request.timeout_seconds, function()
    self:on_deadline()
  end)
end

function Exec:changed()
  local latch = self.latch
  self.latch = waits.latch()
  latch:open()
end

function Exec:wait_change()
  self.latch:wait()
end

function Exec:emit(stream, data)
  if self.ended then return end
  self.received[stream] = self.received[stream] + #data
  table.insert(self.items, { stream = stream, data = data })
  self:changed()
end

function Exec:take()
  if self.taken >= #self.items then return nil end
  self.taken = self.taken + 1
  return self.items[self.taken]
end

function Exec:on_exit(code)
  self.exited, self.exit_code = true, code
  self:changed()
end

function Exec:is_held()
  for _, process in ipairs(self.processes) do
    if process.holds_output then return true end
  end
  return false
end

function Exec:finish(how)
  self.ended, self.how = true, how
  self.disarm()
  self:changed()
end

function Exec:check_end()
  if self.ended or not self.exited then return end
  if not self:is_held() then
    self:finish("exit")
  elseif self.request.wait == "exit" then
    virtual_time.at_world(EXIT_DRAIN_SECONDS, function()
      if not self.ended then self:finish("exit") end
    end)
  end
end

---Kills the group. `why` is kill, deadline or cancel.
function Exec:stop(_)
  for _, process in ipairs(self.processes) do
    if process.group == self.group and process.alive then
      process.alive, process.holds_output = false, false
      if process.main then self:on_exit(137) end
    end
  end
end

function Exec:on_deadline()
  if self.ended then return end
  self:stop("deadline")
  self.held = self:is_held()
  self:finish("timeout")
end

function Exec:kill()
  self:stop("kill")
  self.killed = true
  self:finish("exit")
end

function Exec:wait_end()
  while not self.ended do
    self:wait_change()
  end
end

function Exec:takes_input()
  return not (self.stdin_closed or self.exited or self.killed or self.ended)
end

-- Puts data in line, whole; then waits for room. False when the stdin is or gets closed.
function Exec:feed(data)
  if not self:takes_input() then return false end
  if data == "" then return true end
  table.insert(self.stdin, data)
  self.stdin_size = self.stdin_size + #data
  self:wake_stdin()
  while self.stdin_size > STDIN_LIMIT do
    self:wait_change()
    if not self:takes_input() then return false end
  end
  return true
end

function Exec:wake_stdin()
  local wake = self.stdin_reader
  self.stdin_reader = nil
  if wake then virtual_time.at_world(0, wake) end
end

function Exec:close_stdin()
  self.stdin_closed = true
  self:wake_stdin()
end

-- A class with the methods of a prototype.
local function class_of(prototype)
  local class = {}
  for name, method in pairs(prototype) do
    class[name] = method
  end
  class.__index = class
  return class
end

---@return table Exec a fresh class
---@return table Process a fresh class
function M.classes()
  local exec, process = class_of(Exec), class_of(Process)
  exec.Process = process
  return exec, process
end

return M
