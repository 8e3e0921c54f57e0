-- SPDX-License-Identifier: MIT
--
-- What the project has to say when nobody asked: one line an event, on stderr unless a program sets
-- a sink of its own. Callers keep secrets and output out of it (SPEC E2).

local M = {}

local function to_stderr(level, message)
  io.stderr:write("sbx: ", level == "info" and "" or level .. ": ", message, "\n")
end

local sink = to_stderr

---Sets where log lines go; nil restores stderr.
---@param fn? fun(level: "info"|"warning", message: string)
function M.set_sink(fn)
  sink = fn or to_stderr
end

---@param message string
function M.info(message) sink("info", message) end

---@param message string
function M.warning(message) sink("warning", message) end

return M
