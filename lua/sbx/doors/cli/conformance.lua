-- SPDX-License-Identifier: MIT
--
-- `sbxlua conformance`: drives a provider through the suite and prints TAP (SPEC C1, O3).
--
-- The provider is configured as for any program, so the operator's policy holds; the suite's
-- stricter ones come and go within it. What the suite has to know of the provider (the specs it
-- refuses, the durabilities it offers, an image) stands in the table `conformance` of its class.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local conformance = require "sbx.conformance"
local errors = require "sbx.errors"
local models = require "sbx.models"
local options = require "sbx.doors.cli.options"
local run = require "sbx.doors.cli.run"
local sandboxes = require "sbx.sandboxes"
local stdio = require "sbx.doors.cli.stdio"
local task = require "sbx.task"

local M = { summary = "drive a provider through the conformance suite" }

local EXIT_CASES_FAILED = 1
local EXIT_FAILURE = 125
local EXIT_OUTPUT_CLOSED = 128 + 13 -- as if SIGPIPE had ended us
local PROBE_TTL_SECONDS = 60

local SHORT_NAMES = { ["local"] = true, docker = true }

local OutputClosed = errors.subclass(errors.Error, "OutputClosed")

local function read_network(text)
  for _, known in ipairs(models.NETWORKS) do
    if known == text then return text end
  end
  return nil, "must be one of " .. table.concat(models.NETWORKS, ", ")
end

M.spec = {
  usage = "sbxlua conformance MODULE [OPTIONS]",
  about = "Drives the provider MODULE (local, docker or a Lua module) through every promise of\n"
    .. "the contract and prints TAP. The sandbox should have no other user meanwhile.",
  options = {
    { name = "image", value = "IMAGE",
      help = "image of the sessions (default: the provider's, or busybox:1)" },
    { name = "case", value = "NAME", many = true, help = "run this case only; may be repeated" },
    { name = "network", value = "TIER", read = read_network,
      help = "none, internal or egress (default: egress)" },
  },
  notes = "Settings and the operator's policy come from the environment as for any program; a\n"
    .. "provider without isolation needs TAI_MCP_SANDBOX_ISOLATION=none.\n\n"
    .. "exit codes: 0 every case passed, 1 some failed, 125 sbxlua itself failed, 130\n"
    .. "interrupted, 143 terminated, 129 hung up, 141 nobody reads our output any more",
}

-- Options may stand before MODULE and after it. Values and the words, or nil and the fault.
local function parse(args)
  local values, words = options.parse(M.spec, args)
  local module = values and table.remove(words, 1)
  if not module then return values, words end
  local more, rest = options.parse(M.spec, words)
  if not more then return nil, rest end
  for name, value in pairs(more) do
    for _, each in ipairs(values[name] and type(value) == "table" and value or {}) do
      table.insert(values[name], each)
    end
    if type(value) ~= "table" or not values[name] then values[name] = value end
  end
  table.insert(rest, 1, module)
  return values, rest
end

local function config_of(sandbox, values)
  local own = sandbox.conformance or {}
  return {
    image = values.image or own.image,
    network = values.network or own.network,
    only = values.case,
    reject_specs = own.reject_specs,
    durabilities = own.durabilities,
  }
end

-- A policy that the provider cannot meet is told once, not by every case.
local function probe(sandbox, config)
  local durabilities = config.durabilities or models.DURABILITIES
  local ok, result = pcall(sandbox.create_session, sandbox, {
    image = config.image or "busybox:1", workspace_key = "conformance-probe",
    durability = durabilities[1], network = config.network or "egress",
    ttl_seconds = PROBE_TTL_SECONDS,
  })
  if ok then
    result:destroy()
  elseif errors.is(result, "SandboxSpecRejectedError") then
    error(result, 0)
  end
end

local function drive(values)
  local sandbox = sandboxes.require_sandbox()
  local config = config_of(sandbox, values)
  probe(sandbox, config)
  local failures = conformance.tap(sandbox, config, function(text)
    if not stdio.write("stdout", text) then errors.raise(OutputClosed("output closed")) end
  end)
  return failures == 0 and 0 or EXIT_CASES_FAILED
end

local function exit_code(ok, result, signal)
  if ok then return result end
  if errors.is(result, "Cancelled") and signal then return 128 + signal end
  if errors.is(result, OutputClosed) then return EXIT_OUTPUT_CLOSED end
  stdio.complain("conformance: " .. stdio.failure(result))
  return EXIT_FAILURE
end

---@param args string[] what follows `conformance` on the command line
---@return integer exit code
function M.main(args)
  local values, words = parse(args)
  if values and values.help then
    io.stdout:write(options.help(M.spec))
    return 0
  end
  local fault
  if not values then
    fault = words
  elseif #words == 0 then
    fault = "no provider given: sbxlua conformance MODULE"
  elseif #words > 1 then
    fault = ("unexpected word %s after the provider"):format(errors.quote(words[2]))
  end
  if fault then
    stdio.complain("conformance: " .. fault)
    return EXIT_FAILURE
  end
  local module = SHORT_NAMES[words[1]] and "sbx.providers." .. words[1] or words[1]
  sandboxes.configure { sandbox_module = module }
  local ok, result, signal = task.run(run.interruptible, drive, values)
  stdio.close()
  return exit_code(ok, result, signal)
end

return M
