-- SPDX-License-Identifier: MIT
--
-- For every case of the conformance suite at least one provider that breaks just that promise
-- (SPEC C2): the memory provider with one behaviour changed.
--
-- A double is { case, name, change }. `name` says what it does wrong. Where a fault would show in
-- several cases (a broken echo shows wherever something is echoed) it is narrowed to the one
-- program or the one condition that its case is about, so that exactly that case fails.

local tools = require "spec.support.doubles.tools"

for _, part in ipairs { "sessions", "files", "exec", "handle", "stops" } do
  require("spec.support.doubles." .. part)
end

---@type { case: string, name: string, change: fun(parts: table) }[]
return tools.list
