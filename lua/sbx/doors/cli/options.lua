-- SPDX-License-Identifier: MIT
--
-- The options of a sub-command: declared in a list, read from the command line, and shown by
-- --help from the same list. Pure.
--
--   --name VALUE, --name=VALUE   an option with a value; the last one wins, `many` collects them
--   --name                       a flag
--   --                           ends the options; the first word that is no option does too
--
-- A fault is told, not raised. Its text never shows a value: a value may be a secret.

local errors = require "sbx.errors"

local M = {}

---@class sbx.CliOption
---@field name string without the dashes
---@field value string|nil what --help calls its value; nil: a flag
---@field many boolean|nil may be given several times: its result is a list
---@field read nil|fun(text: string): any, string|nil the value, or nil and what it must be
---@field help string

---@class sbx.CliSpec
---@field usage string
---@field about string what --help says below the usage
---@field options sbx.CliOption[]
---@field notes string|nil what --help says at the end

local HELP = { name = "help", help = "print this text" }

local function find(spec, name)
  for _, option in ipairs(spec.options) do
    if option.name == name then return option end
  end
  return name == HELP.name and HELP or nil
end

---@param spec sbx.CliSpec
---@return string text of --help
function M.help(spec)
  local lines = { "usage: " .. spec.usage, "", spec.about, "", "options:" }
  local names, width = {}, 0
  local all = { unpack(spec.options) }
  all[#all + 1] = HELP
  for i, option in ipairs(all) do
    names[i] = "--" .. option.name .. (option.value and " " .. option.value or "")
    width = math.max(width, #names[i])
  end
  for i, option in ipairs(all) do
    local text = option.help:gsub("\n", "\n" .. (" "):rep(width + 4))
    lines[#lines + 1] = ("  %s%s  %s"):format(names[i], (" "):rep(width - #names[i]), text)
  end
  if spec.notes then
    lines[#lines + 1] = ""
    lines[#lines + 1] = spec.notes
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Reads the value of one option into values; the fault, if any.
local function take(values, option, text)
  local value, fault = text, nil
  if option.read then value, fault = option.read(text) end
  if value == nil then return ("--%s %s"):format(option.name, fault) end
  if option.many then
    values[option.name] = values[option.name] or {}
    table.insert(values[option.name], value)
  else
    values[option.name] = value
  end
end

-- Reads the option at args[i]; the index of its last word, or nil and the fault.
local function read_option(spec, values, args, i)
  local word = args[i]
  local name, text = word:match("^%-%-([^=]+)=(.*)$")
  if not name then name = word == "-h" and "help" or word:match("^%-%-(.+)$") end
  local option = name and find(spec, name)
  if not option then
    local shown = name and "--" .. name or word:sub(1, 2)
    return nil, ("unknown option %s: --help lists them"):format(errors.quote(shown))
  end
  if not option.value then
    if text then return nil, ("--%s takes no value"):format(name) end
    values[name] = true
    return i
  end
  if not text then
    i = i + 1
    text = args[i]
    if text == nil or text == "--" then
      return nil, ("--%s needs a value: --%s %s"):format(name, name, option.value)
    end
  end
  local fault = take(values, option, text)
  if fault then return nil, fault end
  return i
end

---The words of a list from a place on. There may be more of them than a call takes values.
---@param words string[]
---@param first integer
---@return string[]
function M.from(words, first)
  local rest = {}
  for i = first, #words do
    rest[#rest + 1] = words[i]
  end
  return rest
end

---Reads a command line.
---@param spec sbx.CliSpec
---@param args string[]
---@return table|nil values by the options' names; `help` is true when asked for
---@return string[]|string rest the words after the options, or the fault when values is nil
function M.parse(spec, args)
  local values, i = {}, 1
  while i <= #args do
    local word = args[i]
    if word == "--" then
      i = i + 1
      break
    end
    if word:sub(1, 1) ~= "-" or word == "-" then break end
    local last, fault = read_option(spec, values, args, i)
    if not last then return nil, fault end
    i = last + 1
  end
  return values, M.from(args, i)
end

return M
