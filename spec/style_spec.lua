-- SPDX-License-Identifier: MIT
-- House rules that no linter knows: what every source starts with, how long it may be, and the line
-- that keeps LuaJIT from compiling pairs() wrongly.

local helper = require "spec.helper"

local function sources(pattern)
  local files = {}
  local list = assert(io.popen("find lua providers runtime spec examples bench -type f"))
  for path in list:lines() do
    if path:find(pattern) then files[#files + 1] = path end
  end
  list:close()
  table.sort(files)
  assert.is_true(#files > 0)
  return files
end

local function faults(files, fault_of)
  local found = {}
  for _, path in ipairs(files) do
    local fault = fault_of(helper.read_file(path))
    if fault then found[#found + 1] = path .. ": " .. fault end
  end
  return found
end

describe("every source", function()
  it("starts with its licence", function()
    assert.same({}, faults(sources("%.[luach]+$"), function(text)
      if not text:sub(1, 200):find("SPDX-License-Identifier: MIT", 1, true) then
        return "no SPDX line"
      end
    end))
  end)

  it("has under 500 lines", function()
    assert.same({}, faults(sources("%.[luach]+$"), function(text)
      local _, lines = text:gsub("\n", "")
      if lines > 500 then return lines .. " lines" end
    end))
  end)
end)

describe("every module that uses pairs", function()
  it("keeps it from the compiler, which may end it early", function()
    local library = {}
    for _, path in ipairs(sources("%.lua$")) do
      if path:find("^lua/") or path:find("^providers/") then library[#library + 1] = path end
    end
    assert.same({}, faults(library, function(text)
      local code = text:gsub("%-%-[^\n]*", "")
      if (code:find("[^i]pairs%(") or code:find("[^%w._]next%("))
        and not text:find("if jit then jit.off(true, true) end", 1, true) then
        return "pairs() without jit.off"
      end
    end))
  end)
end)
