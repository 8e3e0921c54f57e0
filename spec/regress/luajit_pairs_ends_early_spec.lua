-- SPDX-License-Identifier: MIT
-- proves: X1, X2, P2
-- In some builds of LuaJIT 2.1 a compiled loop over pairs() ends early (LuaJIT/LuaJIT#827).

local helper = require "spec.helper"
local support = require "spec.support.sandbox"
local uv = require "luv"

describe("LuaJIT's compiled pairs()", function()
  local function files(directory, found)
    local request = uv.fs_scandir(directory)
    while true do
      local name, kind = uv.fs_scandir_next(request)
      if not name then return found end
      local path = directory .. "/" .. name
      if kind == "directory" then
        files(path, found)
      elseif name:find("%.lua$") then
        found[#found + 1] = path
      end
    end
  end

  -- Where hot loops over maps matter; what runs once need not care.
  local WATCHED = { "errors", "models", "policy", "settings", "sandboxes", "kit/" }

  it("is not used where a lost entry would be a lost variable or a lost refusal", function()
    local seen = 0
    for _, path in ipairs(files(helper.root .. "/lua/sbx", {})) do
      local name = path:sub(#helper.root + #"/lua/sbx/" + 1)
      for _, watched in ipairs(WATCHED) do
        local text = name:find(watched, 1, true) == 1 and helper.read_file(path) or ""
        if text:find("[^i]pairs%(") then
          seen = seen + 1
          assert.is_truthy(text:find("if jit then jit.off(true, true) end", 1, true), name)
        end
      end
    end
    assert.is_true(seen >= 8)
  end)

  it("cannot take an argument for none in a program that is hot #slow", function()
    support.assert_lua("4000\n", [[
      local s = new_session()
      local n = 0
      local parts = { a = function(i)
        local h = s:exec_start({ "cat" }, { timeout_seconds = 60 })
        h:write_stdin("x")
        if i % 2 == 0 then
          h:close_stdin()
          for _ in h:output() do end
        end
        h:kill()
        n = n + 1
      end }
      for r = 1, 200 do
        sbx.run(function()
          local tasks = {}
          for i = 1, 20 do
            tasks[i] = sbx.spawn(function() for c in ("a"):gmatch "." do parts[c](i) end end)
          end
          sbx.gather(tasks)
        end)
        if r % 40 == 0 then collectgarbage() end
      end
      print(n)
      s:destroy()
    ]])
  end)
end)
