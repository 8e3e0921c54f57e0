-- SPDX-License-Identifier: MIT
--
-- The manifest: a deployment's settings in one file (SPEC O2).
--
-- A Lua file that returns a table, or the same as JSON. The Lua is data: it runs as text only, with
-- no globals and a bound on its work, so that reading a manifest can neither do anything nor hang.
-- Which names stand at the top is decided here; what is in them, by whoever they are for.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local json = require "sbx.json"

local M = {}

local MAX_BYTES = 4 * 1024 * 1024
local MAX_INSTRUCTIONS = 10 * 1000 * 1000

local TOP = {
  sandbox_module = "string", ledger = "string", policy = "table", provider = "table",
  presets = "table",
}

local function refuse(path, text)
  errors.raise(errors.SandboxValidationError(("manifest %s: %s"):format(
    errors.quote(path, 200), text), { faults = { { path = path, message = text } } }))
end

local function read(path)
  local file, why = io.open(path, "rb")
  if not file then refuse(path, "cannot be read: " .. why) end
  local text, fault = file:read(MAX_BYTES + 1)
  file:close()
  if not text and fault then refuse(path, "cannot be read: " .. fault) end
  text = text or ""
  if #text > MAX_BYTES then refuse(path, ("is longer than %d bytes"):format(MAX_BYTES)) end
  return text
end

local function too_much()
  error("does too much work for a manifest", 0)
end

-- Resumes thread within a bound: a hook counts its instructions, and strings have no methods, of
-- which one call could take for ever. Both are the whole program's in LuaJIT, hence taken back.
local function resume_bounded(thread)
  local strings = debug.getmetatable("")
  local methods = strings.__index
  local hook, mask, count = debug.gethook()
  strings.__index = nil
  debug.sethook(too_much, "", MAX_INSTRUCTIONS)
  local ok, value = coroutine.resume(thread)
  debug.sethook(hook, mask, count)
  strings.__index = methods
  return ok, value
end

-- The hook sees only interpreted code, so the chunk is kept from the compiler.
local function run_lua(path, text)
  if text:byte(1) == 27 then refuse(path, "is compiled Lua; a manifest is text") end
  local chunk, why = loadstring(text, "=" .. (path:match("[^/]*$")))
  if not chunk then refuse(path, "is no Lua: " .. why) end
  setfenv(chunk, {})
  if jit then jit.off(chunk, true) end
  local thread = coroutine.create(chunk)
  local ok, value = resume_bounded(thread)
  if not ok then refuse(path, tostring(value)) end
  if coroutine.status(thread) ~= "dead" then refuse(path, "yields; a manifest returns a table") end
  return value
end

local function run_json(path, text)
  local ok, value = pcall(json.decode, text)
  if not ok then refuse(path, value) end
  return value
end

local function is_names(value)
  return type(value) == "table" and value ~= json.null and not json.is_array(value)
end

local function check_top(path, manifest)
  if not is_names(manifest) then
    refuse(path, "must be a table of names, got a " .. type(manifest))
  end
  local names = {}
  for name in pairs(manifest) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local wanted = TOP[name]
    if not wanted then refuse(path, "has an unknown name, " .. errors.quote(name)) end
    if type(manifest[name]) ~= wanted then
      refuse(path, ("%s must be a %s, got a %s"):format(name, wanted, type(manifest[name])))
    elseif wanted == "table" and not is_names(manifest[name]) then
      refuse(path, name .. " must be a table of names")
    end
  end
end

---@class sbx.Manifest
---@field sandbox_module string|nil the provider's Lua module
---@field ledger string|nil memory, sqlite or sqlite:PATH
---@field policy table|nil egress, isolation, scrub_transcript, durable
---@field provider table|nil the provider's own settings
---@field presets table|nil

---Reads a manifest; one whose name ends in `.json` is JSON, any other is Lua.
---@param path string
---@return sbx.Manifest
---Raises SandboxValidationError naming the file and the fault.
function M.load(path)
  local text = read(path)
  local manifest = path:find("%.json$") and run_json(path, text) or run_lua(path, text)
  check_top(path, manifest)
  return manifest
end

return M
