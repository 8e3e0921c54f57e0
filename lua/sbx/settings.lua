-- SPDX-License-Identifier: MIT
--- Owns where settings come from and what they may be (SPEC O1). Pure: the environment is a
--- function that is given, the manifest a table that is given.
--
-- Order: explicit argument > environment > manifest > default. Only the value that wins is
-- checked: what it overrides is not used, so it does not stop a start. An empty environment
-- variable counts as unset, since that is how compose files and unit files switch one off. Names
-- nobody knows are refused among the explicit arguments and in the manifest's sections, as a
-- mistyped limit would otherwise silently be no limit.
--
-- Types, the same text rules for every source (typed values are taken as well):
--   enum     one of `allowed`, exactly
--   boolean  true/false, 1/0, yes/no, in any case
--   number   finite and > 0; as text: decimal digits with an optional fraction
--   integer  1 to 2^53; as text: decimal digits. Digits that a double cannot keep are refused (A6)
--   string   not empty, no NUL byte
--   path     as string, and absolute: a relative one would be another place for each process

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local models = require "sbx.models"

local M = {}

local BOOLEANS = {
  ["true"] = true, ["1"] = true, yes = true,
  ["false"] = false, ["0"] = false, no = false,
}

local function got(value)
  if type(value) == "string" then return "got " .. errors.quote(value, 40) end
  if type(value) == "number" then return ("got %.17g"):format(value) end
  return "got a " .. type(value)
end

-- nil where the text is no plain decimal number or where reading it would change its digits.
local function decimal(text)
  local whole = text:match("^0*(%d+)$")
  if whole then
    local n = tonumber(whole)
    return ("%.0f"):format(n) == whole and n or nil
  end
  return text:find("^%d+%.%d+$") and tonumber(text) or nil
end

local function text_fault(value, what)
  if type(value) ~= "string" then return "must be a " .. what .. ", got a " .. type(value) end
  if value == "" then return "must not be empty" end
  if value:find("\0", 1, true) then return "must not hold a NUL byte" end
end

-- Each reader returns the value, or nil and what is wrong with it. A string or a path is not
-- shown: a provider's may be a token.
local READERS = {}

function READERS.enum(definition, value)
  for _, allowed in ipairs(definition.allowed) do
    if value == allowed then return value end
  end
  return nil, "must be one of " .. table.concat(definition.allowed, ", ") .. "; " .. got(value)
end

function READERS.boolean(_, value)
  if type(value) == "string" then
    local known = BOOLEANS[value:lower()]
    if known ~= nil then return known end
  elseif type(value) == "boolean" then
    return value
  end
  return nil, "must be one of true, false, 1, 0, yes, no; " .. got(value)
end

function READERS.number(_, value)
  local n = value
  if type(value) == "string" then n = decimal(value) end
  if type(n) == "number" and n > 0 and n < math.huge then return n end
  return nil, "must be a decimal number greater than 0; " .. got(value)
end

function READERS.integer(_, value)
  local n = value
  if type(value) == "string" then n = value:find("^%d+$") and decimal(value) end
  if type(n) == "number" and n >= 1 and n <= models.MAX_INTEGER and n % 1 == 0 then return n end
  return nil, "must be a whole number from 1 to 9007199254740992; " .. got(value)
end

function READERS.string(_, value)
  local fault = text_fault(value, "string")
  if fault then return nil, fault end
  return value
end

function READERS.path(_, value)
  local fault = text_fault(value, "path")
  if not fault and value:sub(1, 1) ~= "/" then fault = "must be an absolute path" end
  if fault then return nil, fault end
  return value
end

-- Reads a value as its definition wants it: type first, then the definition's own check.
local function read(definition, value)
  local result, fault = READERS[definition.type](definition, value)
  if fault == nil and definition.check then fault = definition.check(result) end
  if fault then return nil, fault end
  return result
end

local DEFINITION_KEYS = {
  name = true, env = true, type = true, allowed = true, default = true,
  required = true, check = true, manifest = true, description = true,
}

local function checked_definition(definition, seen)
  local function bad(text)
    error(("settings.define: %s: %s"):format(tostring(definition.name), text), 0)
  end
  for key in pairs(definition) do
    if not DEFINITION_KEYS[key] then bad("unknown key " .. tostring(key)) end
  end
  if type(definition.name) ~= "string" then bad("name must be a string") end
  if seen[definition.name] then bad("defined twice") end
  if not READERS[definition.type] then bad("unknown type " .. tostring(definition.type)) end
  if definition.type == "enum" and type(definition.allowed) ~= "table" then
    bad("an enum needs allowed")
  end
  seen[definition.name] = true
  local copy = {}
  for key, value in pairs(definition) do copy[key] = value end
  copy.manifest = definition.manifest or definition.name
  if copy.default ~= nil then
    local _, fault = read(copy, copy.default)
    if fault then bad("default " .. fault) end
  end
  return copy
end

---@class sbx.SettingDefinition
---@field name string key in the result and among the explicit arguments
---@field env string|nil environment variable
---@field type "enum"|"boolean"|"number"|"integer"|"string"|"path"
---@field allowed string[]|nil for an enum
---@field default any
---@field required boolean|nil a fault when no source gives it
---@field check nil|fun(value: any): string|nil returns what is wrong and what is allowed, or nil
---@field manifest string|nil key in the manifest, or `section.key`; the name unless told
---@field description string|nil for `--help` and `doctor`

---@class sbx.SettingsSchema
---@field definitions sbx.SettingDefinition[]
---@field open_manifest boolean the manifest's top level has keys of others too (sections never do)

---@class sbx.SettingSources
---@field explicit table|nil values by name
---@field getenv nil|fun(name: string): string|nil the environment; none unless given
---@field manifest table|nil as a manifest file gives it
---@field manifest_name string|nil what to call the manifest in faults, `manifest` unless told

--- Makes a schema (SPEC O1). Raises a plain Lua error for a definition that is wrong in itself.
---@param definitions sbx.SettingDefinition[]
---@param options { open_manifest: boolean|nil }|nil
---@return sbx.SettingsSchema
function M.define(definitions, options)
  local checked, seen = {}, {}
  for i, definition in ipairs(definitions) do checked[i] = checked_definition(definition, seen) end
  return { definitions = checked, open_manifest = options and options.open_manifest or false }
end

-- `section.key` -> "section", "key"; `key` -> nil, "key".
local function split(path)
  local section, key = path:match("^([^.]*)%.(.*)$")
  if section then return section, key end
  return nil, path
end

local function from_manifest(manifest, path)
  local section, key = split(path)
  if section then manifest = manifest[section] end
  if type(manifest) ~= "table" then return nil end
  return manifest[key]
end

local function report_unknown(faults, given, known, prefix)
  local names = {}
  for key in pairs(given) do
    if not known[key] then
      names[#names + 1] = type(key) == "string" and errors.quote(key):sub(2, -2) or tostring(key)
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    faults[#faults + 1] = { path = prefix .. name, message = "unknown setting" }
  end
end

-- The names a schema knows at the manifest's top level, and section by section.
local function manifest_names(schema)
  local top, sections = {}, {}
  for _, definition in ipairs(schema.definitions) do
    local section, key = split(definition.manifest)
    top[section or key] = true
    if section then
      sections[section] = sections[section] or {}
      sections[section][key] = true
    end
  end
  return top, sections
end

local function check_manifest_names(faults, schema, manifest, manifest_name)
  local top, sections = manifest_names(schema)
  if not schema.open_manifest then
    report_unknown(faults, manifest, top, manifest_name .. ".")
  end
  for section, known in pairs(sections) do
    local given, path = manifest[section], manifest_name .. "." .. section
    if type(given) == "table" then
      report_unknown(faults, given, known, path .. ".")
    elseif given ~= nil then
      faults[#faults + 1] = { path = path, message = "must be a table, got a " .. type(given) }
    end
  end
end

-- The winning source of one setting: its value, what to call it in a fault, and its kind.
local function pick(definition, sources)
  local value = sources.explicit[definition.name]
  if value ~= nil then return value, definition.name, "argument" end
  if definition.env and sources.getenv then
    value = sources.getenv(definition.env)
    if value ~= nil and value ~= "" then return value, definition.env, "environment" end
  end
  value = from_manifest(sources.manifest, definition.manifest)
  if value ~= nil then
    return value, sources.manifest_name .. "." .. definition.manifest, "manifest"
  end
  return definition.default, definition.env or definition.name, "default"
end

local function checked_sources(sources)
  sources = sources or {}
  local faults = {}
  local function table_or_empty(name)
    local value = sources[name]
    if value == nil then return {} end
    if type(value) == "table" then return value end
    faults[#faults + 1] = { path = name, message = "must be a table, got a " .. type(value) }
    return {}
  end
  return {
    explicit = table_or_empty("explicit"),
    manifest = table_or_empty("manifest"),
    manifest_name = sources.manifest_name or "manifest",
    getenv = sources.getenv,
  }, faults
end

--- Resolves every setting of a schema (SPEC O1). Raises SandboxValidationError with every fault at
--- once; each names the variable (or the argument, or the manifest's key), what is wrong and what
--- is allowed.
---@param schema sbx.SettingsSchema
---@param sources sbx.SettingSources|nil
---@return table<string, any> values by name; unset ones are absent
---@return table<string, string> origins by name: `argument`, `environment`, `manifest` or `default`
function M.resolve(schema, sources)
  local checked, faults = checked_sources(sources)
  local known, values, origins = {}, {}, {}
  for _, definition in ipairs(schema.definitions) do
    local name = definition.name
    local value, path, origin = pick(definition, checked)
    known[name] = true
    if value ~= nil then
      local fault
      values[name], fault = read(definition, value)
      if fault then faults[#faults + 1] = { path = path, message = fault } end
    elseif definition.required then
      faults[#faults + 1] = { path = path, message = "is required" }
    end
    origins[name] = origin
  end
  report_unknown(faults, checked.explicit, known, "")
  check_manifest_names(faults, schema, checked.manifest, checked.manifest_name)
  if #faults > 0 then errors.raise(errors.validation_error("settings", faults)) end
  return values, origins
end

local function ledger_fault(value)
  if value == "memory" or value == "sqlite" or value:find("^sqlite:.") then return nil end
  return "must be memory, sqlite or sqlite:PATH; got " .. errors.quote(value, 40)
end

--- The platform's settings (SPEC O1); policy settings stand in the manifest's section `policy`
--- (O2). `ledger` unset means: the default of whoever asks (P5).
---@type sbx.SettingsSchema
M.platform = M.define({
  { name = "sandbox_module", env = "TAI_MCP_SANDBOX", type = "string",
    description = "Lua module of the sandbox provider" },
  { name = "egress", env = "TAI_MCP_SANDBOX_EGRESS", manifest = "policy.egress",
    type = "enum", allowed = models.NETWORKS, default = "egress",
    description = "loosest network a session may have" },
  { name = "isolation", env = "TAI_MCP_SANDBOX_ISOLATION", manifest = "policy.isolation",
    type = "enum", allowed = models.ISOLATIONS, default = "container",
    description = "weakest isolation a session may have" },
  { name = "scrub_transcript", env = "TAI_MCP_SANDBOX_SCRUB_TRANSCRIPT",
    manifest = "policy.scrub_transcript", type = "boolean", default = false,
    description = "replace secret values in what the doors return and log" },
  { name = "durable", env = "TAI_MCP_SANDBOX_DURABLE", manifest = "policy.durable",
    type = "boolean", default = true,
    description = "whether persistent sessions are allowed" },
  { name = "ledger", env = "SBX_LEDGER", type = "string", check = ledger_fault,
    description = "where sessions are recorded: memory, sqlite or sqlite:PATH" },
}, { open_manifest = true })

--- The schema of a provider: the three settings all have (SPEC O1), then its own.
---@param prefix string of its environment variables, with the underscore: `SANDBOX_LOCAL_`
---@param extra sbx.SettingDefinition[]|nil
---@return sbx.SettingsSchema
function M.provider(prefix, extra)
  local definitions = {
    { name = "default_ttl_seconds", env = prefix .. "DEFAULT_TTL_SECONDS",
      type = "integer", default = 3600,
      description = "lifetime of a session whose maker names none" },
    { name = "reap_interval_seconds", env = prefix .. "REAP_INTERVAL_SECONDS",
      type = "number", default = 300,
      description = "time between two sweeps for expired sessions" },
    { name = "exec_default_timeout_seconds", env = prefix .. "EXEC_DEFAULT_TIMEOUT_SECONDS",
      type = "number", default = 300,
      description = "deadline of a command whose caller names none" },
  }
  for _, definition in ipairs(extra or {}) do definitions[#definitions + 1] = definition end
  return M.define(definitions)
end

return M
