-- SPDX-License-Identifier: MIT
--
-- Several sbxlua programs at once, for what only shows between processes. They begin together: each
-- has loaded what it needs when the first one goes on.

local helper = require "spec.helper"
local uv = require "luv"

local M = {}

local READY_SECONDS = 20

---Code for programs that share a ledger and a root of provider `local` below `directory`: gives
---them sandboxes, spec(changes), made(changes, options) -> session, and die().
M.DEPLOYMENT = [[
local sandboxes = sbx.sandboxes
sandboxes.configure { sandbox_module = "sbx.providers.local", isolation = "none",
  ledger = "sqlite:" .. directory .. "/ledger.db", provider = { root = directory .. "/root" } }
local function spec(changes)
  local fields = { image = "host", workspace_key = "w", durability = "ephemeral",
    network = "egress", ttl_seconds = 300 }
  for name, value in pairs(changes or {}) do fields[name] = value end
  return fields
end
local function made(changes, options)
  return sandboxes.require_sandbox():create_session(spec(changes), options)
end
local function die()
  io.stdout:flush()
  uv.kill(uv.os_getpid(), "sigkill")
end
]]

local PRELUDE = [[
local uv = require "luv"
local sbx = require "sbx"
local directory, number = %q, tonumber(arg[1])
for _, name in ipairs { %s } do require(name) end
assert(io.open(directory .. "/ready." .. number, "w")):close()
while not uv.fs_access(directory .. "/go", "R") do uv.sleep(1) end
]]

local function count_ready(directory, count)
  for number = 1, count do
    if not uv.fs_access(directory .. "/ready." .. number, "R") then return false end
  end
  return true
end

---Runs `count` programs of the same code at once and waits for their end. The code finds uv, sbx,
---number (which of them it is) and directory (the test's, shared).
---@param count integer
---@param code string
---@param options { modules: string[]?, prefix: string?, directory: string? }|nil modules to load
---before the start
---@return { stdout: string, stderr: string, status: integer }[] of each
function M.run(count, code, options)
  options = options or {}
  local directory = options.directory or helper.tmpdir()
  local modules = {}
  for i, name in ipairs(options.modules or {}) do modules[i] = ("%q"):format(name) end
  local file = directory .. "/program.lua"
  helper.write_file(file, PRELUDE:format(directory, table.concat(modules, ", ")) .. code)
  local lines = {}
  for number = 1, count do
    os.remove(directory .. "/ready." .. number)
    lines[number] = ("{ %s %s %s %d >%s/out.%d 2>%s/err.%d; echo $? >%s/status.%d; } &"):format(
      options.prefix or "", helper.shell_quote(helper.sbxlua()), file, number, directory, number,
      directory, number, directory, number)
  end
  os.remove(directory .. "/go")
  local pipe = assert(io.popen(table.concat(lines, "\n") .. "\nwait", "r"))
  helper.wait_until(function() return count_ready(directory, count) end, READY_SECONDS)
  helper.write_file(directory .. "/go", "")
  pipe:read("*a")
  pipe:close()
  local ended = {}
  for number = 1, count do
    ended[number] = {
      stdout = helper.read_file(directory .. "/out." .. number),
      stderr = helper.read_file(directory .. "/err." .. number),
      status = tonumber(helper.read_file(directory .. "/status." .. number)),
    }
  end
  return ended
end

---As run; raises when one of them fails or says something on stderr. Returns what they printed,
---line by line.
---@return string[]
function M.lines(count, code, options)
  local list = {}
  for number, ended in ipairs(M.run(count, code, options)) do
    if ended.status ~= 0 or (ended.stderr ~= "" and not (options and options.stderr)) then
      error(("program %d ended with %d: %s%s"):format(number, ended.status, ended.stdout,
        ended.stderr), 0)
    end
    for line in (ended.stdout .. (options and options.stderr and ended.stderr or "")):gmatch(
      "[^\n]+") do
      list[#list + 1] = line
    end
  end
  return list
end

return M
