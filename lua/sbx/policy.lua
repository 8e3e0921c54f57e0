-- SPDX-License-Identifier: MIT
--- Owns the operator's security policy: the ranks of the tiers (SPEC M4) and the check every
--- session passes before a provider sees it (SPEC P2, P3).
--
-- Invariants: `enforce` only ever tightens: its spec has a network at or below the ceiling, a
-- concrete isolation at or above the floor, and is persistent only if the policy lets it. It never
-- downgrades a request to make it fit: what does not fit is refused, with all reasons in one text.
-- Neither the policy nor the spec given is changed, and the spec is validated again, so one that
-- was tampered with after its making does not get through. `scrub_transcript` is carried for the
-- doors (SPEC T7) and decides nothing here.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local models = require "sbx.models"

local M = {}

--- The labels the kit itself writes: this one, and all that start with it and a dot.
M.LABEL_NAMESPACE = "tai42.sandbox"

local function ranker(tiers, what)
  local ranks, quoted = {}, {}
  for i, tier in ipairs(tiers) do ranks[tier], quoted[i] = i - 1, '"' .. tier .. '"' end
  local message = "must be one of " .. table.concat(quoted, ", ")
  return function(tier)
    local rank = type(tier) == "string" and ranks[tier]
    if rank then return rank end
    local got = type(tier) == "string" and errors.quote(tier) or type(tier)
    local fault = { path = "", message = message .. ", got " .. got }
    return errors.raise(errors.validation_error(what, { fault }))
  end, ranks, message
end

local openness, network_ranks, network_message = ranker(models.NETWORKS, "network tier")
local strength, isolation_ranks, isolation_message = ranker(models.ISOLATIONS, "isolation tier")

--- The openness of a network tier: none < internal < egress (SPEC M4). Raises
--- SandboxValidationError if unknown.
---@param network "none"|"internal"|"egress"
---@return integer rank 0 is the tightest
function M.network_openness(network)
  return openness(network)
end

--- The strength of an isolation tier: none < container < vm (SPEC M4). Raises
--- SandboxValidationError if unknown.
---@param isolation "none"|"container"|"vm"
---@return integer rank 0 is the weakest
function M.isolation_strength(isolation)
  return strength(isolation)
end

local function check_tier(ranks, message)
  return function(value)
    if type(value) ~= "string" or not ranks[value] then return message end
  end
end

local check_network = check_tier(network_ranks, network_message)
local check_isolation = check_tier(isolation_ranks, isolation_message)

local function check_boolean(value)
  if type(value) ~= "boolean" then return "must be true or false, got " .. type(value) end
end

local FIELDS = {
  { name = "egress", default = "egress", check = check_network },
  { name = "isolation", default = "container", check = check_isolation },
  { name = "scrub_transcript", default = false, check = check_boolean },
  { name = "durable", default = true, check = check_boolean },
}

local KNOWN = {}
for _, field in ipairs(FIELDS) do KNOWN[field.name] = true end

local Policy = { __name = "sbx.SandboxPolicy" }

function Policy:__tostring()
  return ("SandboxPolicy(egress=%s, isolation=%s, scrub_transcript=%s, durable=%s)"):format(
    self.egress, self.isolation, tostring(self.scrub_transcript), tostring(self.durable))
end

local function unknown_faults(given)
  local unknown = {}
  for key in pairs(given) do
    if not KNOWN[key] then
      local named = type(key) == "string"
      local path = named and errors.quote(key):sub(2, -2) or "[" .. tostring(key) .. "]"
      unknown[#unknown + 1] = { path = path, message = "unknown field" }
    end
  end
  table.sort(unknown, function(a, b) return a.path < b.path end)
  return unknown
end

---@class sbx.SandboxPolicy
---@field egress "none"|"internal"|"egress" network ceiling
---@field isolation "none"|"container"|"vm" isolation floor
---@field scrub_transcript boolean
---@field durable boolean whether a persistent session is allowed at all

--- Checks a table and returns it as a new policy; unset fields take the defaults of SPEC O1.
--- Raises SandboxValidationError with every fault at once.
---@param fields table|nil
---@return sbx.SandboxPolicy
function M.SandboxPolicy(fields)
  if fields == nil then fields = {} end
  if type(fields) ~= "table" then
    errors.raise(errors.validation_error("SandboxPolicy", {
      { path = "", message = "must be a table, got " .. type(fields) },
    }))
  end
  local made, faults = {}, {}
  for _, field in ipairs(FIELDS) do
    local value = fields[field.name]
    if value == nil then value = field.default end
    local message = field.check(value)
    if message then faults[#faults + 1] = { path = field.name, message = message } end
    made[field.name] = value
  end
  for _, fault in ipairs(unknown_faults(fields)) do faults[#faults + 1] = fault end
  if #faults > 0 then errors.raise(errors.validation_error("SandboxPolicy", faults)) end
  return setmetatable(made, Policy)
end

local function reserved_labels(labels)
  local found = {}
  local prefix = M.LABEL_NAMESPACE .. "."
  for name in pairs(labels) do
    if name == M.LABEL_NAMESPACE or name:sub(1, #prefix) == prefix then
      found[#found + 1] = errors.quote(name)
    end
  end
  table.sort(found)
  return found
end

local function network_violation(policy, spec)
  if openness(spec.network) <= openness(policy.egress) then return nil end
  local format = 'network "%s" is looser than the ceiling "%s": ask for network "%s" or tighter, '
    .. "or set TAI_MCP_SANDBOX_EGRESS to %s"
  return format:format(spec.network, policy.egress, policy.egress, spec.network)
end

local function isolation_violation(policy, isolation)
  if strength(isolation) >= strength(policy.isolation) then return nil end
  local format = 'isolation "%s" is below the floor "%s": leave isolation unset or ask for "%s" '
    .. "or stronger, or set TAI_MCP_SANDBOX_ISOLATION to %s"
  return format:format(isolation, policy.isolation, policy.isolation, isolation)
end

local function durability_violation(policy, spec)
  if spec.durability ~= "persistent" or policy.durable == true then return nil end
  return 'durability "persistent" is off here: ask for durability "ephemeral", '
    .. "or set TAI_MCP_SANDBOX_DURABLE to true"
end

local function label_violation(spec)
  local names = reserved_labels(spec.labels)
  if #names == 0 then return nil end
  local format = "labels in the namespace %s are the kit's own: rename or drop %s "
    .. "(no setting allows them)"
  return format:format(M.LABEL_NAMESPACE, table.concat(names, ", "))
end

--- Holds a spec against the policy (SPEC P2) and returns the effective spec, a new one with a
--- concrete isolation (P3). Raises SandboxSpecRejectedError, its text starting `policy refused:`
--- with every violation, the setting that refuses and the ways out; SandboxValidationError for a
--- spec that is none. No policy is a fault of the program, so a plain Lua error.
---@param policy sbx.SandboxPolicy
---@param spec sbx.SandboxSessionSpec
---@return sbx.SandboxSessionSpec effective
function M.enforce(policy, spec)
  if getmetatable(policy) ~= Policy then
    error("policy.enforce: no policy bound (wanted a SandboxPolicy, got " .. type(policy) .. ")", 2)
  end
  spec = models.SandboxSessionSpec(spec)
  local isolation = spec.isolation or policy.isolation
  local violations = {}
  local function note(violation) violations[#violations + 1] = violation end
  note(network_violation(policy, spec))
  note(isolation_violation(policy, isolation))
  note(durability_violation(policy, spec))
  note(label_violation(spec))
  if #violations > 0 then
    local message = "policy refused: " .. table.concat(violations, "; ")
    errors.raise(errors.SandboxSpecRejectedError(message))
  end
  -- The copy made above is ours; a spec lets no absent field be set, isolation may be one.
  rawset(spec, "isolation", isolation)
  return spec
end

return M
