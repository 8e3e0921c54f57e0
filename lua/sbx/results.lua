-- SPDX-License-Identifier: MIT
--
-- The results that cross the contract (SPEC M1); `sbx.models` has them too.
--
-- They are on the hot path and check nothing. They carry no `__index`, so `item.exit_code` tells a
-- chunk from the exit.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local M = {}

-- Their tostring shows lengths, never content (SPEC E2).

local ExecResult = { __name = "sbx.ExecResult" }

function ExecResult:__tostring()
  return ("ExecResult(exit_code=%d, stdout=%d bytes, stderr=%d bytes)"):format(
    self.exit_code, #self.stdout, #self.stderr)
end

--- What is known of an exec that has ended (an extension to the contract). On the exit item and on
--- the result; a provider that cannot tell a figure leaves it nil.
---@class sbx.ExecRecord
---@field cause string|nil what ended it: `exited`, `signaled`, `killed`, `session_destroyed`, or,
---where the provider knows, `oom` (SPEC D8); in events also `timeout`, `cancelled`, `output_limit`
---and `failed`
---@field wall_seconds number|nil from the start to the end
---@field user_seconds number|nil CPU time of the command and of the children it waited for
---@field system_seconds number|nil
---@field peak_memory_bytes number|nil largest resident size of any of those; nil where it is not
---known (`local`: when it is no larger than this program has been)
---@field stdin_bytes number|nil bytes the command's stdin has taken
---@field stdout_bytes number|nil bytes received
---@field stderr_bytes number|nil

local RECORD_FIELDS = {
  "cause", "wall_seconds", "user_seconds", "system_seconds", "peak_memory_bytes", "stdin_bytes",
  "stdout_bytes", "stderr_bytes",
}

local function with_record(item, record)
  if record then
    for i = 1, #RECORD_FIELDS do
      local field = RECORD_FIELDS[i]
      item[field] = record[field]
    end
  end
  return item
end

---@class sbx.ExecResult : sbx.ExecRecord
---@field exit_code integer
---@field stdout string bytes, whole
---@field stderr string bytes, whole

--- The result of a one-shot exec (SPEC M1). Checks nothing.
---@param fields table exit_code, stdout, stderr and those of sbx.ExecRecord
---@return sbx.ExecResult
function M.ExecResult(fields)
  return setmetatable(with_record({
    exit_code = fields.exit_code,
    stdout = fields.stdout,
    stderr = fields.stderr,
  }, fields), ExecResult)
end

local SessionInfo = { __name = "sbx.SandboxSessionInfo" }

function SessionInfo:__tostring()
  local format = "SandboxSessionInfo(id=%s, workspace_key=%s, durability=%s, expires_at=%.3f)"
  return format:format(self.id, self.workspace_key, self.durability, self.expires_at)
end

---@class sbx.SandboxSessionInfo
---@field id string
---@field image string
---@field workspace_key string
---@field workspace_path string absolute
---@field durability "ephemeral"|"persistent"
---@field created_at number UTC epoch seconds with a fraction
---@field expires_at number UTC epoch seconds with a fraction
---@field labels table<string, string> the consumer's own, no others

--- The observable state of a session (SPEC M1). Checks nothing; labels are copied.
---@param fields table
---@return sbx.SandboxSessionInfo
function M.SandboxSessionInfo(fields)
  local labels = {}
  for name, value in pairs(fields.labels) do labels[name] = value end
  return setmetatable({
    id = fields.id,
    image = fields.image,
    workspace_key = fields.workspace_key,
    workspace_path = fields.workspace_path,
    durability = fields.durability,
    created_at = fields.created_at,
    expires_at = fields.expires_at,
    labels = labels,
  }, SessionInfo)
end

local StreamChunk = { __name = "sbx.SandboxStreamChunk" }

function StreamChunk:__tostring()
  return ("SandboxStreamChunk(stream=%s, data=%d bytes)"):format(self.stream, #self.data)
end

---@class sbx.SandboxStreamChunk
---@field stream "stdout"|"stderr"
---@field data string bytes, never empty (SPEC X10)

--- One piece of an interactive exec's output (SPEC M1). Checks nothing.
---@param stream "stdout"|"stderr"
---@param data string
---@return sbx.SandboxStreamChunk
function M.SandboxStreamChunk(stream, data)
  return setmetatable({ stream = stream, data = data }, StreamChunk)
end

local StreamExit = { __name = "sbx.SandboxStreamExit" }

function StreamExit:__tostring()
  return ("SandboxStreamExit(exit_code=%d)"):format(self.exit_code)
end

---@class sbx.SandboxStreamExit : sbx.ExecRecord
---@field exit_code integer

--- The last item of an interactive exec's output (SPEC M1). Checks nothing.
---@param exit_code integer
---@param record sbx.ExecRecord|nil
---@return sbx.SandboxStreamExit
function M.SandboxStreamExit(exit_code, record)
  return setmetatable(with_record({ exit_code = exit_code }, record), StreamExit)
end

return M
