-- SPDX-License-Identifier: MIT
--
-- What the parts of spec.support.doubles are written with.

local errors = require "sbx.errors"

local M = { list = {} }

---@param case string the one case that fails
---@param name string what the double does wrong
---@param change fun(parts: table) see memory_provider.new
function M.double(case, name, change)
  table.insert(M.list, { case = case, name = name, change = change })
end

---Replaces a method by fn(original, self, ...).
function M.wrap(class, name, fn)
  local original = class[name]
  class[name] = function(...) return fn(original, ...) end
end

function M.raise(text)
  errors.raise(errors.SandboxError(text))
end

return M
