-- SPDX-License-Identifier: MIT
--
-- The library's face: `local sbx = require "sbx"` (SPEC A).
--
-- Submodules are loaded when first used, so a program pays only for what it touches.

local task = require "sbx.task"
local waits = require "sbx.waits"

---@class sbx
---@field run fun(fn: function, ...): ... runs fn as the first task (SPEC A2)
---@field spawn fun(fn: function, ...): sbx.Task
---@field sleep fun(seconds: number)
---@field gather fun(tasks: sbx.Task[]): any[]
---@field timeout fun(seconds: number, fn: function, ...): ...
---@field errors table sbx.errors
---@field models table sbx.models
---@field policy table sbx.policy
---@field sandboxes table sbx.sandboxes
---@field events table sbx.events
---@field kit table sbx.kit
---@field conformance table sbx.conformance
local M = {
  _VERSION = "0.1.0-dev",
  run = task.run,
  spawn = task.spawn,
  sleep = task.sleep,
  gather = waits.gather,
  timeout = waits.timeout,
}

---Wraps a value so that nothing but `:reveal()` shows it (SPEC M3).
---@param value string
---@return sbx.Secret
function M.secret(value)
  return require("sbx.secret").new(value)
end

local SUBMODULES = {
  conformance = true, errors = true, events = true, kit = true, models = true, policy = true,
  sandboxes = true,
}

return setmetatable(M, {
  __index = function(self, name)
    if not SUBMODULES[name] then return nil end
    local module = require("sbx." .. name)
    rawset(self, name, module)
    return module
  end,
})
