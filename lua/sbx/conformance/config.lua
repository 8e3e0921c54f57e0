-- SPDX-License-Identifier: MIT
--
-- The conformance suite's config: what it takes, checked once; unknown keys are refused.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local models = require "sbx.models"

local M = {}

---@class sbx.ConformanceConfig
---@field image string|nil image of the sessions
---@field network "none"|"internal"|"egress"|nil default "egress"
---@field isolation "none"|"container"|"vm"|nil nil: inherit the policy's floor
---@field reject_specs { spec: table, why: string }[]|nil spec fields the provider cannot honour
---@field durabilities string[]|nil what it offers, default both
---@field timing_scale number|nil multiplies every wait and bound, default 1
---@field only string[]|nil names of the cases to run

local function one_of(values)
  return function(value)
    for _, allowed in ipairs(values) do
      if value == allowed then return nil end
    end
    return "must be one of " .. table.concat(values, ", ")
  end
end

local function list_of(check)
  return function(value)
    if type(value) ~= "table" then return "must be a list, got " .. type(value) end
    for i, item in ipairs(value) do
      local message = check(item)
      if message then return ("[%d] %s"):format(i, message) end
    end
  end
end

local function is_text(value)
  if type(value) ~= "string" or value == "" then return "must be a string that is not empty" end
end

local function is_rejected(value)
  if type(value) ~= "table" or type(value.spec) ~= "table" or type(value.why) ~= "string" then
    return "must be { spec = fields of a spec, why = text }"
  end
end

local function is_scale(value)
  if type(value) ~= "number" or not (value > 0 and value < math.huge) then
    return "must be a finite number greater than 0"
  end
end

local some_durabilities = list_of(one_of(models.DURABILITIES))

local FIELDS = {
  image = { default = "busybox:1", check = is_text },
  network = { default = "egress", check = one_of(models.NETWORKS) },
  isolation = { check = one_of(models.ISOLATIONS) },
  reject_specs = { default = {}, check = list_of(is_rejected) },
  durabilities = {
    default = models.DURABILITIES,
    check = function(value)
      return some_durabilities(value) or (#value == 0 and "must not be empty" or nil)
    end,
  },
  timing_scale = { default = 1, check = is_scale },
  only = { check = list_of(is_text) },
}

---Checks a config and returns it with its defaults, as a new table.
---@param given table|nil
---@param known table<string, boolean> names of the cases
---@return table
---Raises SandboxValidationError with every fault at once.
function M.check(given, known)
  local out, faults = {}, {}
  local function fault(path, message)
    faults[#faults + 1] = { path = path, message = message }
  end
  given = given or {}
  for key, value in pairs(given) do
    local field = FIELDS[key]
    local message = not field and "is no setting of the suite" or field.check(value)
    if message then fault(tostring(key), message) end
    out[key] = value
  end
  for key, field in pairs(FIELDS) do
    if out[key] == nil then out[key] = field.default end
  end
  for _, name in ipairs(type(given.only) == "table" and given.only or {}) do
    if not known[name] then fault("only", "there is no case " .. errors.quote(tostring(name))) end
  end
  table.sort(faults, function(a, b) return a.path < b.path end)
  if #faults > 0 then errors.raise(errors.validation_error("conformance config", faults)) end
  return out
end

---@param config table a checked config
---@param durability string
---@return boolean whether the provider offers it
function M.offers(config, durability)
  for _, offered in ipairs(config.durabilities) do
    if offered == durability then return true end
  end
  return false
end

return M
