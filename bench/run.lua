-- SPDX-License-Identifier: MIT
--
-- Runs every benchmark, each in a process of its own: `make bench`, or
--
--   sbxlua bench/run.lua [--json]

local lib = dofile((arg[0]:match("^(.*/)") or "") .. "lib.lua")

local options = lib.options {}
local failed = false
for i, name in ipairs { "startup", "exec", "stream", "handles" } do
  if not options.json then print((i > 1 and "\n" or "") .. "==== " .. name) end
  io.stdout:flush()
  local status = os.execute(("'%s/sbxlua' '%s/%s.lua'%s"):format(lib.build, lib.here, name,
    options.json and " --json" or ""))
  failed = failed or status ~= 0
end
if failed then os.exit(1) end
