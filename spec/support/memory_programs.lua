-- SPDX-License-Identifier: MIT
--
-- The programs of sbx.conformance.programs, played in Lua for the memory provider. Each is a
-- function (process, arguments) that returns the exit code; what it does not return is 0.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local memory_files = require "spec.support.memory_files"

local M = {}

local BEATS = 300
local PIECE = 64 * 1024
local SIGNALS = { TERM = 15, KILL = 9 }

local function find(process, path, options)
  return memory_files.find(process.exec.machine_root, process.dir, path, options)
end

local function write(process, path, data, append)
  return memory_files.write(process.exec.machine_root, process.dir, path, data, append)
end

local function complain(process, text)
  process:out("stderr", text .. "\n")
  return 1
end

local function beat(process, file, interval)
  for _ = 1, BEATS do
    if find(process, file .. ".stop") then return end
    write(process, file, "x", true)
    process:sleep(interval)
  end
end

local function wait_for(process, file)
  while not find(process, file) do
    process:sleep(0.05)
  end
end

local made_lines = {}

-- Made once for each shape; the pieces are what a command would write at a time.
local function pieces(count, filler)
  local key = count .. filler
  if not made_lines[key] then
    local text = require("sbx.conformance.programs").lines_text(count, filler)
    local list = {}
    for from = 1, #text, PIECE do
      list[#list + 1] = text:sub(from, from + PIECE - 1)
    end
    made_lines[key] = list
  end
  return made_lines[key]
end

local P = {}

function P.cat(p, args)
  if args[1] then
    local node, why = find(p, args[1])
    if not node then return complain(p, "cat: " .. args[1] .. ": " .. why) end
    p:out("stdout", node.data)
    return 0
  end
  local data = p:read()
  while data do
    p:out("stdout", data)
    data = p:read()
  end
end

function P.head(p)
  p:out("stdout", (p:read() or ""):sub(1, 1))
end

function P.sleep(p, args) p:sleep(args[1]) end

function P.mkdir(p, args)
  local made, why = memory_files.make_dirs(p.exec.machine_root, p.dir, args[2])
  if not made then return complain(p, "mkdir: " .. why) end
end

local function make(p, path, node)
  local found, why, parent, name = find(p, path, { keep_link = true })
  if found or not parent then return complain(p, path .. ": " .. (why or "it exists")) end
  parent.children[name] = node
end

function P.ln(p, args) return make(p, args[3], { kind = "link", target = args[2] }) end

function P.mkfifo(p, args) return make(p, args[1], { kind = "fifo", mode = "rw-r--r--" }) end

function P.chmod(p, args)
  local node = find(p, args[2])
  if not node then return complain(p, "chmod: " .. args[2]) end
  node.mode = "rwxr-xr-x"
end

function P.print(p, args)
  p:out("stdout", args[1])
  p:out("stderr", args[2])
  return tonumber(args[3])
end

function P.print_later(p, args)
  p:sleep(args[1])
  p:out("stdout", args[2])
  return tonumber(args[3])
end

function P.cat_to_stderr(p)
  local data = p:read()
  while data do
    p:out("stderr", data)
    data = p:read()
  end
end

function P.signal_self(_, args) return 128 + SIGNALS[args[1]] end

function P.lines(p, args)
  for _, piece in ipairs(pieces(tonumber(args[1]), args[2])) do
    p:out("stdout", piece)
  end
end

function P.lines_on_both(p, args)
  local count = tonumber(args[1])
  local out, err = pieces(count, "o" .. args[2]), pieces(count, "e" .. args[2])
  for i = 1, #out do
    p:out("stdout", out[i])
    p:out("stderr", err[i])
  end
end

function P.turn_by_turn(p, args)
  p:out("stdout", "a")
  p:sleep(args[1])
  p:out("stderr", "b")
  p:sleep(args[1])
  p:out("stdout", "c")
end

function P.print_ready_exit(p, args)
  p:out("stdout", args[1])
  write(p, args[2], "")
  return tonumber(args[3])
end

function P.print_ready_stay(p, args)
  p:out("stdout", args[1])
  p:out("stderr", args[2])
  write(p, args[3], "")
  p:sleep(30)
end

function P.close_output_exit(p, args)
  p:close_output()
  p:sleep(args[1])
  return tonumber(args[2])
end

function P.print_variable(p, args) p:out("stdout", p.exec.env[args[1]] or "unset") end

function P.write_file(p, args)
  local ok, why = write(p, args[1], args[2])
  if not ok then return complain(p, "sh: " .. why) end
end

P.write_here = P.write_file

function P.exists(p, args)
  return find(p, args[1], { keep_link = true }) and 0 or 1
end

function P.is_link(p, args)
  local node = find(p, args[1], { keep_link = true })
  return node and node.kind == "link" and 0 or 1
end

function P.list_mode(p, args)
  local node = find(p, args[1], { keep_link = true })
  if not node then return complain(p, "ls: " .. args[1]) end
  p:out("stdout", "-" .. node.mode .. " 1 root root 1 Jan 1 " .. args[1] .. "\n")
end

function P.read_opened(p, args)
  local node = find(p, args[1])
  p:out("stdout", "open")
  p:read()
  p:out("stdout", node.data)
end

function P.two_lines(p)
  p:out("stdout", "one")
  p:read()
  p:out("stdout", "two")
  p:read()
end

function P.close_stdin(p, args)
  p:sleep(args[1])
  p:out("stdout", "done")
end

function P.sleep_unread(p) p:sleep(30) end

function P.beat(p, args) beat(p, args[1], args[2]) end

function P.beat_closed(p, args)
  p:close_output()
  beat(p, args[1], args[2])
end

local function beat_beside(p, args)
  p:fork(function(child) beat(child, args[1], args[2]) end)
  wait_for(p, args[1])
  p:out("stdout", "out")
end

function P.beat_in_group(p, args)
  beat_beside(p, args)
  p:sleep(30)
end

function P.leave_beat(p, args)
  beat_beside(p, args)
  return 3
end

function P.hold_outside(p, args)
  p:fork(function(child)
    write(child, args[1], "")
    child:sleep(args[2])
  end, true)
  wait_for(p, args[1])
  p:out("stdout", "out")
  p:out("stderr", "er")
  p:sleep(30)
end

---@return table<string, fun(process: table, arguments: string[]): integer|nil> to be changed freely
function M.new()
  local programs = {}
  for name, program in pairs(P) do
    programs[name] = program
  end
  return programs
end

return M
