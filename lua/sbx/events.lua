-- SPDX-License-Identifier: MIT
--
-- What happens, for whoever wants to know: sessions and execs, as facts without content.
--
--   session.created, session.destroyed, session.reaped, session.recovered
--       { session_id, provider, workspace_key, durability }
--   exec.ended
--       { session_id, provider, exit_code (nil if unknown), cause, wall_seconds, user_seconds,
--         system_seconds, peak_memory_bytes, stdin_bytes, stdout_bytes, stderr_bytes }
--
-- No event holds an argv, an environment, output or a path: any of them may hold a secret (SPEC
-- E2).
-- A handler that fails is told of in the log and stops neither the others nor what happened.

local log = require "sbx.log"

local M = {}

local NAMES = {
  ["session.created"] = true, ["session.destroyed"] = true, ["session.reaped"] = true,
  ["session.recovered"] = true, ["exec.ended"] = true,
}

local handlers = {}

---Calls fn with each event of that name from now on.
---@param name string one of those above
---@param fn fun(event: table)
---@return fun() off ends it; idempotent
function M.on(name, fn)
  if not NAMES[name] then error("sbx.events.on: there is no event " .. tostring(name), 2) end
  if type(fn) ~= "function" then error("sbx.events.on: a function is wanted", 2) end
  local entry = { fn = fn }
  handlers[name] = handlers[name] or {}
  table.insert(handlers[name], entry)
  return function()
    for i, other in ipairs(handlers[name]) do
      if other == entry then
        table.remove(handlers[name], i)
        return
      end
    end
  end
end

---Whether anybody listens: what costs something to tell need not be put together for nobody.
---@param name string
---@return boolean
function M.is_wanted(name)
  return handlers[name] ~= nil and #handlers[name] > 0
end

---For the kit: tells of an event.
---@param name string
---@param event table
function M.emit(name, event)
  if not M.is_wanted(name) then return end
  local list = {}
  for i, entry in ipairs(handlers[name]) do
    list[i] = entry
  end
  for _, entry in ipairs(list) do
    local ok, err = pcall(entry.fn, event)
    if not ok then log.warning(("a handler of %s failed: %s"):format(name, tostring(err))) end
  end
end

return M
