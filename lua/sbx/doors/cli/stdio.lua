-- SPDX-License-Identifier: MIT
--
-- The program's standard streams as tasks see them, and what the command line door says of itself
-- on stderr.
--
-- Reads and writes wait as sbx calls do, so a reader that has stopped reading, or a terminal where
-- nobody types, keeps neither the other direction nor a signal waiting. Bytes pass unchanged
-- (SPEC A5).

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local loop = require "sbx.loop"
local task = require "sbx.task"
local waits = require "sbx.waits"

local M = {}

-- A task that never has to wait would let nobody else run: signals, the other direction.
local TURN_SECONDS = 0.005

local streams = {}
local last_turn = 0

local function stream(number)
  streams[number] = streams[number] or loop.stdio(number)
  return streams[number]
end

local function give_way()
  if loop.monotonic() - last_turn < TURN_SECONDS then return end
  task.sleep(0)
  last_turn = loop.monotonic()
end

-- Calls a method of a stream and waits for what it gives.
local function await(method, ...)
  give_way()
  local latch = waits.latch()
  local result, text, name
  local arguments = { ... }
  arguments[#arguments + 1] = function(...)
    result, text, name = ...
    latch:open()
  end
  local stop = method(unpack(arguments))
  local ok, err = pcall(latch.wait, latch)
  if not ok then
    stop()
    error(err, 0)
  end
  return result, text, name
end

---Reads what stdin has; waits while it has nothing.
---@return string|nil data nil at end-of-file
---Raises SandboxError when it cannot be read.
function M.read()
  local from = stream(0)
  local data, text = await(from.read, from)
  if not data then
    errors.raise(errors.SandboxError("cannot read standard input: " .. text))
  end
  return data ~= "" and data or nil
end

local NUMBERS = { stdout = 1, stderr = 2 }

---Writes all of data; waits while the stream takes nothing.
---@param name "stdout"|"stderr"
---@param data string
---@return boolean open false: nobody reads the stream any more
---Raises SandboxError when it cannot be written.
function M.write(name, data)
  local to = stream(NUMBERS[name])
  local ok, text, code = await(to.write, to, data)
  if not ok and code ~= "EPIPE" and code ~= "ECONNRESET" then
    errors.raise(errors.SandboxError(("cannot write to standard %s: %s"):format(
      name == "stdout" and "output" or "error", text)))
  end
  return ok == true
end

---Leaves the streams as they were found. Not to be called in a task.
function M.close()
  for _, open in pairs(streams) do
    open:close()
  end
  streams = {}
end

---Says on stderr what went wrong, in one line.
---@param text string
function M.complain(text)
  io.stderr:write("sbxlua: ", (text:gsub("%s*\n%s*", "; ")), "\n")
end

-- Lua's account of the places where a module is not; the module's name is told before it.
local function without_search_list(text)
  return (text:gsub("\n\tno field package%.preload%['[^'\n]*'%]", "")
    :gsub("\n\tno file '[^'\n]*'", "")
    :gsub(" not found:: ", " not found: "))
end

---What an error says, for people. One that is no error of sbx is a fault in sbxlua.
---@param err any
---@return string text
function M.failure(err)
  if errors.is(err, "Error") then
    local parts = { without_search_list(err.message) }
    for _, note in ipairs(err.notes) do
      parts[#parts + 1] = "note: " .. note
    end
    return table.concat(parts, "\n")
  end
  local text = "internal error, please report it: " .. tostring(err)
  return os.getenv("SBXLUA_TRACEBACK") and debug.traceback(text, 2) or text
end

return M
