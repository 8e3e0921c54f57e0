-- SPDX-License-Identifier: MIT
--- Owns the shapes that cross the contract: the session spec and the exec request, which are
--- checked (SPEC M1, M2, X1). The results, which are only built, are in results.lua.
--
-- Invariants: a check reads the caller's table and never writes it; what it returns is new, down
-- to argv, env and labels, so a later change by the caller reaches nothing that runs. All faults
-- are collected and raised at once, each with its path; no text holds a value (a secret may sit in
-- any field by mistake), and of an env name only what stands before a `=`, since `TOKEN=value`
-- given as a name would otherwise show the value.
--
-- X1 is checked here once for all providers. Exec requests are on the hot path: no list of faults
-- is made until there is one.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local secret = require "sbx.secret"

local M = {}

--- Tiers, in order: tightest network first, weakest isolation first (`sbx.policy` ranks them by
--- this order).
M.NETWORKS = { "none", "internal", "egress" }
M.ISOLATIONS = { "none", "container", "vm" }
M.DURABILITIES = { "ephemeral", "persistent" }

--- Doubles count one by one up to here (SPEC A6).
M.MAX_INTEGER = 2 ^ 53

local find, huge = string.find, math.huge

local function add(faults, path, message)
  faults = faults or {}
  faults[#faults + 1] = { path = path, message = message }
  return faults
end

local function type_name(value)
  return secret.is(value) and "secret" or type(value)
end

local function is_table(value)
  return type(value) == "table" and not secret.is(value)
end

local function has_nul(text)
  return find(text, "\0", 1, true) ~= nil
end

-- How a key is written behind the name of its table. Cut at `=` and NUL: see the head of this file.
local function subscript(key)
  if type(key) == "number" then return ("[%.14g]"):format(key) end
  if type(key) ~= "string" then return "[" .. type_name(key) .. "]" end
  local shown = key:match("^[^=%z]*")
  if #shown <= 64 and find(shown, "^[%a_][%w_]*$") then return "." .. shown end
  return "[" .. errors.quote(shown) .. "]"
end

local function by_path(a, b)
  return a.path < b.path
end

-- pairs has no order; the report should.
local function append_sorted(faults, more)
  if not more then return faults end
  table.sort(more, by_path)
  for _, fault in ipairs(more) do faults = add(faults, fault.path, fault.message) end
  return faults
end

local function unknown_faults(faults, given, known, message)
  local unknown
  for key in pairs(given) do
    if not known[key] then
      local path = subscript(key)
      unknown = add(unknown, path:sub(1, 1) == "." and path:sub(2) or path, message)
    end
  end
  return append_sorted(faults, unknown)
end

-- Checks: each returns nil, or what is wrong.

local function text_fault(value)
  if type(value) ~= "string" then return "must be a string, got " .. type_name(value) end
  if value == "" then return "must not be empty" end
  if has_nul(value) then return "must not hold a NUL byte" end
end

local function workspace_key_fault(value)
  if type(value) ~= "string" then return "must be a string, got " .. type_name(value) end
  if #value > 64 or not find(value, "^[A-Za-z0-9_-]+$") then
    return "must match ^[A-Za-z0-9_-]{1,64}$"
  end
end

local function one_of(allowed)
  local set, quoted = {}, {}
  for i, value in ipairs(allowed) do
    set[value], quoted[i] = true, '"' .. value .. '"'
  end
  local message = "must be one of " .. table.concat(quoted, ", ")
  return function(value)
    if type(value) ~= "string" then return message .. ", got " .. type_name(value) end
    if not set[value] then return message end
  end
end

local function number_fault(value)
  if type(value) ~= "number" then return "must be a number, got " .. type_name(value) end
  if not (value > 0 and value < huge) then return "must be finite and greater than 0" end
end

local function integer_fault(value)
  if type(value) ~= "number" then return "must be an integer, got " .. type_name(value) end
  if not (value >= 1 and value <= M.MAX_INTEGER and value % 1 == 0) then
    return "must be an integer from 1 to 9007199254740992"
  end
end

local function name_fault(name, is_env)
  if type(name) ~= "string" then
    return "must be keyed by a name, got a " .. type_name(name) .. " (a map is wanted, not a list)"
  end
  if name == "" then return "must have a name that is not empty" end
  if has_nul(name) then return "must have a name without a NUL byte" end
  if is_env and find(name, "=", 1, true) then return "must have a name without '='" end
end

local function entry_value_fault(value, is_env)
  if is_env and secret.is(value) then
    value = secret.unwrap(value)
  elseif type(value) ~= "string" then
    return "must be a string" .. (is_env and " or a secret" or "") .. ", got " .. type_name(value)
  end
  if has_nul(value) then return "must not hold a NUL byte" end
end

local function copy_map(faults, field, map, is_env)
  if not is_table(map) then
    return nil, add(faults, field, "must be a table of names to values, got " .. type_name(map))
  end
  local copy, bad = {}, nil
  for name, value in pairs(map) do
    local of_name, of_value = name_fault(name, is_env), entry_value_fault(value, is_env)
    if of_name then bad = add(bad, field .. subscript(name), of_name) end
    if of_value then bad = add(bad, field .. subscript(name), of_value) end
    copy[name] = value
  end
  return copy, append_sorted(faults, bad)
end

local function spec_env(faults, map)
  local copy, found = copy_map(faults, "env", map, true)
  for name, value in pairs(copy or {}) do
    if type(value) == "string" then copy[name] = secret.new(value) end
  end
  return copy, found
end

local function spec_labels(faults, map)
  return copy_map(faults, "labels", map, false)
end

-- The session spec.

local SPEC_FIELDS = {
  { name = "image", required = true, check = text_fault },
  { name = "workspace_key", required = true, check = workspace_key_fault },
  { name = "durability", required = true, check = one_of(M.DURABILITIES) },
  { name = "env", copy = spec_env },
  { name = "network", default = "none", check = one_of(M.NETWORKS) },
  { name = "isolation", check = one_of(M.ISOLATIONS) },
  { name = "cpu", check = number_fault },
  { name = "memory_mb", check = integer_fault },
  { name = "ttl_seconds", required = true, check = integer_fault },
  { name = "labels", copy = spec_labels },
}

local SPEC_FIELD_NAMES = {}
for _, field in ipairs(SPEC_FIELDS) do SPEC_FIELD_NAMES[field.name] = true end

local function count(map)
  local n = 0
  for _ in pairs(map) do n = n + 1 end
  return n
end

local SessionSpec = { __name = "sbx.SandboxSessionSpec" }

function SessionSpec.__newindex(_, key)
  errors.raise(errors.validation_error("SandboxSessionSpec", {
    { path = tostring(key), message = "cannot be set: a spec is not changed, make a new one" },
  }))
end

function SessionSpec:__tostring()
  local format = "SandboxSessionSpec(image=%s, workspace_key=%s, durability=%s, network=%s, "
    .. "isolation=%s, ttl_seconds=%.17g, env=%d, labels=%d)"
  return format:format(errors.quote(self.image), self.workspace_key, self.durability, self.network,
    tostring(self.isolation), self.ttl_seconds, count(self.env), count(self.labels))
end

---@class sbx.SandboxSessionSpec
---@field image string
---@field workspace_key string
---@field durability "ephemeral"|"persistent"
---@field env table<string, sbx.Secret>
---@field network "none"|"internal"|"egress"
---@field isolation "none"|"container"|"vm"|nil nil: inherit the policy's floor
---@field cpu number|nil cores
---@field memory_mb integer|nil MiB
---@field ttl_seconds integer
---@field labels table<string, string>

--- Checks a table and returns it as a new session spec (SPEC M1, M2). A spec is taken too and
--- checked again. Plain strings in `env` become secrets. Raises SandboxValidationError with every
--- fault at once.
---@param fields table
---@return sbx.SandboxSessionSpec
function M.SandboxSessionSpec(fields)
  if not is_table(fields) then
    local faults = add(nil, "", "must be a table, got " .. type_name(fields))
    errors.raise(errors.validation_error("SandboxSessionSpec", faults))
  end
  local spec, faults = {}, nil
  for _, field in ipairs(SPEC_FIELDS) do
    local name, value = field.name, fields[field.name]
    if field.copy then
      if value == nil then value = {} end
      spec[name], faults = field.copy(faults, value)
    elseif value ~= nil then
      local message = field.check(value)
      if message then faults = add(faults, name, message) end
      spec[name] = value
    elseif field.required then
      faults = add(faults, name, "is required")
    else
      spec[name] = field.default
    end
  end
  faults = unknown_faults(faults, fields, SPEC_FIELD_NAMES, "unknown field")
  if faults then errors.raise(errors.validation_error("SandboxSessionSpec", faults)) end
  return setmetatable(spec, SessionSpec)
end

-- The exec request.

local WAITS = one_of { "output", "exit" }
local EXEC_OPTIONS = {
  cwd = true, env = true, max_output_bytes = true, stdin = true, timeout_seconds = true,
  wait = true,
}

local function copy_argv(argv)
  if not is_table(argv) then
    return nil, add(nil, "argv", "must be a list of strings, got " .. type_name(argv))
  end
  local copy, n, faults = {}, #argv, nil
  for i = 1, n do
    local argument = argv[i]
    if type(argument) ~= "string" then
      faults = add(faults, "argv[" .. i .. "]", "must be a string, got " .. type_name(argument))
    elseif find(argument, "\0", 1, true) then
      faults = add(faults, "argv[" .. i .. "]", "must not hold a NUL byte")
    end
    if i == 1 and argument == "" then faults = add(faults, "argv[1]", "must not be empty") end
    copy[i] = argument
  end
  local keys = count(argv)
  if keys == 0 then return nil, add(faults, "argv", "must not be empty") end
  if keys > n then
    faults = add(faults, "argv", "must be a list: it has a hole or a key that is no index")
  end
  return copy, faults
end

local function option_faults(faults, options, allowed)
  local cwd, stdin, wait = options.cwd, options.stdin, options.wait
  local timeout_seconds = options.timeout_seconds
  local message = timeout_seconds == nil and "is required" or number_fault(timeout_seconds)
  if message then faults = add(faults, "timeout_seconds", message) end
  message = cwd ~= nil and text_fault(cwd)
  if message then faults = add(faults, "cwd", message) end
  message = options.max_output_bytes ~= nil and integer_fault(options.max_output_bytes)
  if message then faults = add(faults, "max_output_bytes", message) end
  message = wait ~= nil and WAITS(wait)
  if message then faults = add(faults, "wait", message) end
  if stdin ~= nil then
    if not (allowed and allowed.stdin) then
      faults = add(faults, "stdin", "is no option of this call")
    elseif type(stdin) ~= "string" then
      faults = add(faults, "stdin", "must be a string, got " .. type_name(stdin))
    end
  end
  return unknown_faults(faults, options, EXEC_OPTIONS, "unknown option")
end

---@class sbx.ExecRequest
---@field argv string[]
---@field cwd string|nil
---@field env table<string, string|sbx.Secret> as given: a secret stays one until the command starts
---@field stdin string|nil
---@field timeout_seconds number
---@field wait "output"|"exit"

--- Checks the arguments of an exec call and returns them as a new request (SPEC X1, X18), before
--- anything starts. Raises SandboxValidationError with every fault at once.
---@param argv string[]
---@param options table `timeout_seconds` (required), `cwd`, `env`, `wait`, `stdin` where allowed
---@param allowed { stdin: boolean }|nil what only some calls take
---@return sbx.ExecRequest
function M.exec_request(argv, options, allowed)
  local args, faults = copy_argv(argv)
  local env
  if not is_table(options) then
    local message = "must be a table with timeout_seconds, got " .. type_name(options)
    faults = add(faults, "options", message)
  else
    faults = option_faults(faults, options, allowed)
    if options.env == nil then
      env = {}
    else
      env, faults = copy_map(faults, "env", options.env, true)
    end
  end
  if faults then errors.raise(errors.validation_error("exec", faults)) end
  return {
    argv = args,
    cwd = options.cwd,
    env = env,
    stdin = options.stdin,
    timeout_seconds = options.timeout_seconds,
    wait = options.wait or "output",
    max_output_bytes = options.max_output_bytes,
  }
end

--- Checks the path of a file call (SPEC X1) and returns it. Raises SandboxValidationError.
---@param path string
---@return string path
function M.file_path(path)
  local message = text_fault(path)
  if message then errors.raise(errors.validation_error("file path", add(nil, "path", message))) end
  return path
end

---Checks the options of a call that takes only booleans.
---@param subject string the call's name
---@param options table|nil
---@param known table<string, true>
---@return table options
---Raises SandboxValidationError.
function M.flags(subject, options, known)
  if options == nil then return {} end
  local faults = nil
  if not is_table(options) then
    faults = add(faults, "options", "must be a table, got " .. type_name(options))
  else
    faults = unknown_faults(faults, options, known, "unknown option")
    for name in pairs(known) do
      local value = options[name]
      if value ~= nil and type(value) ~= "boolean" then
        faults = add(faults, name, "must be true or false, got " .. type_name(value))
      end
    end
  end
  if faults then errors.raise(errors.validation_error(subject, faults)) end
  return options
end

---Checks a session's id.
---@param id string
---@return string id
---Raises SandboxValidationError.
function M.session_id(id)
  if type(id) ~= "string" then
    errors.raise(errors.validation_error("session", add(nil, "session_id",
      "must be a string, got " .. type_name(id))))
  end
  return id
end

---Checks a workspace's key (SPEC M1).
---@param key string
---@return string key
---Raises SandboxValidationError.
function M.workspace_key(key)
  local message = workspace_key_fault(key)
  if message then
    errors.raise(errors.validation_error("workspace", add(nil, "workspace_key", message)))
  end
  return key
end

-- The results are built elsewhere and belong to the models all the same.
for name, constructor in pairs(require "sbx.results") do
  M[name] = constructor
end

return M
