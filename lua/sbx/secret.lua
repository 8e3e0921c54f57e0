-- SPDX-License-Identifier: MIT
--- Owns the values of secrets (SPEC M3, E2): a secret is an empty table, its value is kept here
--- and leaves through `:reveal()` alone.
--
-- Invariants: nothing of the value is in the object or its metatable, so no dump (pairs, next,
-- rawget, a pretty printer, a JSON encoder) can show it; what prints a secret prints the mask. The
-- private table has weak keys, so a secret goes as soon as nobody holds it; its values are
-- strings, which cannot refer back to the key and keep it alive. What `getmetatable` gives is a
-- stand-in: a copy that some library makes with it still prints as the mask, holds nothing, and
-- changing the stand-in changes no secret.

local errors = require "sbx.errors"

local M = {}

--- What is shown in place of a value.
M.MASK = "**********"

local values = setmetatable({}, { __mode = "k" })

---@class sbx.Secret
local methods = {}

local function masked() return M.MASK end

local function invalid(message)
  return errors.validation_error("secret", { { path = "", message = message } })
end

--- The value (SPEC M3). Raises SandboxValidationError on a table that only looks like a secret (a
--- copy of one).
---@return string
function methods:reveal()
  local value = values[self]
  if value == nil then
    errors.raise(invalid("not a secret, or a copy of one: it holds no value"))
  end
  return value
end

local Secret = {
  __name = "sbx.Secret",
  __index = methods,
  __tostring = masked,
  __metatable = { __name = "sbx.Secret", __tostring = masked },
}

function Secret.__concat()
  errors.raise(invalid("a secret cannot be concatenated; :reveal() gives its value"))
end

function Secret.__newindex()
  errors.raise(invalid("a secret cannot be changed"))
end

function Secret.__eq(a, b)
  return values[a] == values[b]
end

--- `sbx.json` calls a `__tojson` metamethod with the object and takes what it returns as finished
--- JSON text. It is on the stand-in too, which is all that an encoder written in Lua is shown.
---@return string
function Secret.__tojson()
  return '"' .. M.MASK .. '"'
end

Secret.__metatable.__tojson = Secret.__tojson

--- Wraps a string (SPEC M3). A secret is returned as it is. Two secrets are equal when their
--- values are. Raises SandboxValidationError for anything else, naming its type only.
---@param value string|sbx.Secret
---@return sbx.Secret
function M.new(value)
  if M.is(value) then return value end
  if type(value) ~= "string" then
    errors.raise(invalid("must be a string, got " .. type(value)))
  end
  local object = setmetatable({}, Secret)
  values[object] = value
  return object
end

--- Tells whether a value is a secret (SPEC M3).
---@param value any
---@return boolean
function M.is(value)
  return value ~= nil and values[value] ~= nil
end

--- The plain string behind a secret or a plain string (SPEC X1: a call's env takes both).
--- Raises SandboxValidationError for anything else, naming its type only.
---@param value string|sbx.Secret
---@return string
function M.unwrap(value)
  if type(value) == "string" then return value end
  if M.is(value) then return values[value] end
  return errors.raise(invalid("must be a string or a secret, got " .. type(value)))
end

return M
