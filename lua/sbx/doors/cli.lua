-- SPDX-License-Identifier: MIT
--
-- The command line door: finds the sub-command that the first word names and gives its exit code
-- (SPEC O3).
--
-- A sub-command is a module below sbx.doors.cli with `summary`, a line for the list, and
-- `main(args) -> exit code`; it is loaded when used. What it raises is told here, in one line, so
-- that nobody who uses the command line meets a traceback.

local options = require "sbx.doors.cli.options"
local stdio = require "sbx.doors.cli.stdio"

local M = {}

---Failures of sbxlua itself, wrong usage included: no code that a command is likely to give.
M.EXIT_FAILURE = 125

local COMMANDS = { "run", "conformance" }

local function command_list()
  local lines = { "usage: sbxlua COMMAND [OPTIONS]", "", "commands:" }
  for _, name in ipairs(COMMANDS) do
    lines[#lines + 1] = ("  %-12s %s"):format(name, require("sbx.doors.cli." .. name).summary)
  end
  lines[#lines + 1] = ""
  lines[#lines + 1] = "sbxlua COMMAND --help tells more."
  return table.concat(lines, "\n") .. "\n"
end

local function find(name)
  for _, known in ipairs(COMMANDS) do
    if known == name then return require("sbx.doors.cli." .. name) end
  end
  return nil
end

local function dispatch(args)
  local name = args[1]
  if name == nil or name == "--help" or name == "-h" then
    io.stdout:write(command_list())
    return name and 0 or M.EXIT_FAILURE
  end
  local command = find(name)
  if not command then
    stdio.complain(("unknown command %q: there is %s"):format(name, table.concat(COMMANDS, ", ")))
    return M.EXIT_FAILURE
  end
  return command.main(options.from(args, 2))
end

---Runs a sub-command. Raises nothing.
---@param args string[] the command line, the sub-command's name first
---@return integer exit code, 0 to 255
function M.main(args)
  local ok, code = xpcall(dispatch, stdio.failure, args)
  if ok then return code end
  stdio.complain(code)
  return M.EXIT_FAILURE
end

return M
