-- SPDX-License-Identifier: MIT
--
-- The ledger in memory: the sessions of one program (SPEC P5).
--
-- A ledger stores rows and nothing else; what a row's state means is the sandbox's affair. The
-- interface is the methods below; every ledger passes the same specs. Rows go in and out as copies,
-- so that nobody changes a row but through the ledger.
--
-- A row: id, provider, image, workspace_key, workspace_path, durability, created_at, expires_at,
-- ttl_seconds, labels (the consumer's), has_env (its spec has variables, which no ledger keeps),
-- state ("creating", "live", "destroying", or "removing" for the mark of a workspace's removal),
-- owner (whose it is), claimed_by (the process that makes or ends it, or nil).

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local M = {}

---@class sbx.Ledger
local Ledger = {}
Ledger.__index = Ledger

local function copy(row)
  local out = {}
  for key, value in pairs(row) do
    out[key] = value
  end
  if row.labels then
    out.labels = {}
    for key, value in pairs(row.labels) do
      out.labels[key] = value
    end
  end
  return out
end

---@return sbx.Ledger
function M.new()
  return setmetatable({ _rows = {} }, Ledger)
end

---Adds a row, unless there is one with its id.
---@param row table
---@return boolean added
function Ledger:insert(row)
  if self._rows[row.id] then return false end
  self._rows[row.id] = copy(row)
  return true
end

---@param id string
---@return table|nil row
function Ledger:get(id)
  local row = id ~= nil and self._rows[id]
  return row and copy(row) or nil
end

---Sets fields of a row, not its labels, if it is there and in state `from`; `false` unsets one.
---@param id string
---@param from string
---@param fields table
---@return boolean changed
function Ledger:update(id, from, fields)
  local row = self._rows[id]
  if not row or row.state ~= from then return false end
  for key, value in pairs(fields) do
    row[key] = value or nil
  end
  return true
end

-- Whether a row is there and its state and claimant are those of `before`.
local function is_unchanged(row, before)
  return row ~= nil and row.state == before.state and row.claimed_by == before.claimed_by
end

---Takes a row for its end: sets state "destroying" and the claimant, if its state and claimant are
---still those of `before`.
---@param id string
---@param claimant string
---@param before table the row as it was read
---@return boolean claimed
function Ledger:claim(id, claimant, before)
  local row = self._rows[id]
  if not is_unchanged(row, before) then return false end
  row.state, row.claimed_by = "destroying", claimant
  return true
end

---Gives a claim back, for somebody to try again.
---@param id string
---@param state string the row's state from now on
function Ledger:release(id, state)
  local row = self._rows[id]
  if row then row.state, row.claimed_by = state, nil end
end

---Removes a row; with `before` only if its state and claimant are still those.
---@param id string
---@param before table|nil the row as it was read
function Ledger:delete(id, before)
  if before and not is_unchanged(self._rows[id], before) then return end
  self._rows[id] = nil
end

---@return table[] rows in the order of their creation
function Ledger:list()
  local rows = {}
  for _, row in pairs(self._rows) do
    rows[#rows + 1] = copy(row)
  end
  table.sort(rows, function(a, b)
    if a.created_at ~= b.created_at then return a.created_at < b.created_at end
    return a.id < b.id
  end)
  return rows
end

return M
