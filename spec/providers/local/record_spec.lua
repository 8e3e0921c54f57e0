-- SPDX-License-Identifier: MIT
-- proves: E2, X7, X8, X10, X14
-- What is known of an exec that has ended: on the result, on the exit item, and as an event; and
-- the limit of output.

local sbx = require "sbx"
local support = require "spec.support.sandbox"

local MIB = 1024 * 1024

local function drain(handle)
  local bytes = 0
  for item in handle:output() do
    if item.exit_code then return item, bytes end
    bytes = bytes + #item.data
  end
end

local function events_of(name, fn)
  local seen = {}
  local off = sbx.events.on(name, function(event) seen[#seen + 1] = event end)
  local ok, err = pcall(fn)
  off()
  if not ok then error(err, 0) end
  return seen
end

describe("the record of an exec", function()
  after_each(support.cleanup)

  it("is on a one-shot's result", function()
    local result = support.session():exec(
      { "sh", "-c", "cat >/dev/null; echo abc; echo e >&2; exit 3" },
      { stdin = ("x"):rep(100000), timeout_seconds = 10 })
    assert.same("exited", result.cause)
    assert.same({ 100000, 4, 2 }, { result.stdin_bytes, result.stdout_bytes, result.stderr_bytes })
    assert.is_true(result.wall_seconds > 0 and result.wall_seconds < 10)
  end)

  it("tells a signal from an exit code of the same number", function()
    local session = support.session()
    local function cause(script)
      local result = session:exec({ "sh", "-c", script }, { timeout_seconds = 10 })
      return { result.exit_code, result.cause }
    end
    assert.same({ 137, "signaled" }, cause("kill -9 $$"))
    assert.same({ 137, "exited" }, cause("exit 137"))
  end)

  it("counts the CPU time of the command and of its children", function()
    local result = support.session():exec({ "sh", "-c",
      "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; exit 0" },
      { timeout_seconds = 60 })
    assert.is_true(result.user_seconds + result.system_seconds > 0.05)
    assert.is_true(result.user_seconds + result.system_seconds <= result.wall_seconds * 1.5 + 0.1)
  end)

  it("tells the peak of memory where it is more than the program's own", function()
    local session = support.session()
    local large = session:exec(
      { "sh", "-c", "x=$(head -c 300000000 /dev/zero | tr '\\0' a); exit 0" },
      { timeout_seconds = 60 })
    assert.is_true(large.peak_memory_bytes > 250 * MIB)
    assert.is_nil(session:exec({ "true" }, { timeout_seconds = 10 }).peak_memory_bytes)
  end)

  it("is on the exit item, and says who ended it", function()
    local session = support.session()
    local handle = session:exec_start({ "sh", "-c", "echo hi; exit 5" }, { timeout_seconds = 10 })
    local item = drain(handle)
    assert.same({ 5, "exited", 3 }, { item.exit_code, item.cause, item.stdout_bytes })
    handle:kill()
    handle = session:exec_start({ "sleep", "60" }, { timeout_seconds = 90 })
    handle:kill()
    assert.same("killed", drain(handle).cause)
    handle = session:exec_start({ "sleep", "60" }, { timeout_seconds = 90 })
    session:destroy()
    assert.same("session_destroyed", drain(handle).cause)
  end)

  it("is told as one event for each exec, without content", function()
    local canary = "canary-7f3a"
    local session = support.session()
    local seen = events_of("exec.ended", function()
      session:exec({ "sh", "-c", "echo $1; echo $T", "sh", canary },
        { env = { T = sbx.secret(canary) }, stdin = canary, timeout_seconds = 10 })
      pcall(session.exec, session, { "sleep", "60" }, { timeout_seconds = 0.1 })
      pcall(session.exec, session, { "yes" }, { timeout_seconds = 10, max_output_bytes = 10 })
      sbx.run(function()
        local running = sbx.spawn(function()
          session:exec({ "sleep", "60" }, { timeout_seconds = 90 })
        end)
        sbx.sleep(0.05)
        running:cancel()
      end)
      local handle = session:exec_start({ "true" }, { timeout_seconds = 10 })
      drain(handle)
      handle:kill()
      handle:kill()
    end)
    local causes = {}
    for i, event in ipairs(seen) do
      causes[i] = event.cause
      assert.same({ session.id, "local" }, { event.session_id, event.provider })
      for field, value in pairs(event) do
        assert.is_nil(tostring(value):find(canary, 1, true), field)
      end
    end
    assert.same({ "exited", "timeout", "output_limit", "cancelled", "exited" }, causes)
  end)
end)

describe("session events", function()
  after_each(support.cleanup)

  it("tell of the making and the end, and a failing handler stops nothing", function()
    local messages = {}
    require("sbx.log").set_sink(function(_, message) messages[#messages + 1] = message end)
    local off = sbx.events.on("session.created", function() error("handler broke") end)
    local session
    local created = events_of("session.created", function() session = support.session() end)
    local destroyed = events_of("session.destroyed", function() session:destroy() end)
    off()
    require("sbx.log").set_sink(nil)
    assert.same({ session.id, session.id }, { created[1].session_id, destroyed[1].session_id })
    assert.truthy(messages[1]:find("handler broke", 1, true))
  end)

  it("have names that are checked", function()
    assert.has_error(function() sbx.events.on("exec.endet", print) end)
    assert.has_error(function() sbx.events.on("exec.ended") end)
  end)
end)

describe("max_output_bytes", function()
  after_each(support.cleanup)

  for _, stream in ipairs { "1", "2" } do
    it("stops a one-shot that passes it, stream " .. stream, function()
      local err = select(2, pcall(function()
        support.session():exec({ "sh", "-c", "yes >&" .. stream },
          { timeout_seconds = 20, max_output_bytes = MIB })
      end))
      assert.is_true(sbx.errors.is(err, "SandboxOutputLimitError"), tostring(err))
      assert.same({ MIB, MIB }, { err.max_output_bytes, err.stdout_len + err.stderr_len })
    end)
  end

  it("counts both streams, and is no limit for what stays within", function()
    local session = support.session()
    local result = session:exec({ "sh", "-c", "printf 12345; printf 12345 >&2" },
      { timeout_seconds = 10, max_output_bytes = 10 })
    assert.same({ "12345", "12345" }, { result.stdout, result.stderr })
    local err = select(2, pcall(session.exec, session,
      { "sh", "-c", "printf 12345; printf 123456 >&2" },
      { timeout_seconds = 10, max_output_bytes = 10 }))
    assert.is_true(sbx.errors.is(err, "SandboxOutputLimitError"))
  end)

  it("ends an interactive stream with the error, after what was within", function()
    local handle = support.session():exec_start({ "yes" },
      { timeout_seconds = 20, max_output_bytes = 3 * MIB })
    local bytes = 0
    local ok, err = pcall(function()
      for item in handle:output() do bytes = bytes + #item.data end
    end)
    assert.is_false(ok)
    assert.is_true(sbx.errors.is(err, "SandboxOutputLimitError"))
    assert.same(3 * MIB, bytes)
    handle:kill()
  end)

  it("is checked before anything starts", function()
    for _, bad in ipairs { 0, -1, 1.5, "1", math.huge } do
      local err = select(2, pcall(function()
        support.session():exec({ "true" }, { timeout_seconds = 1, max_output_bytes = bad })
      end))
      assert.is_true(sbx.errors.is(err, "SandboxValidationError"), tostring(bad))
    end
  end)
end)

describe("the record's figures", function()
  after_each(support.cleanup)

  it("do not grow from one exec to the next", function()
    local session = support.session()
    local first = session:exec({ "true" }, { timeout_seconds = 10 })
    for _ = 1, 20 do session:exec({ "true" }, { timeout_seconds = 10 }) end
    local last = session:exec({ "true" }, { timeout_seconds = 10 })
    assert.same({ first.stdout_bytes, first.stdin_bytes }, { last.stdout_bytes, last.stdin_bytes })
    assert.is_true(last.wall_seconds < 5)
  end)
end)
