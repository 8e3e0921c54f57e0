-- SPDX-License-Identifier: MIT
-- proves: E1, E2

local errors = require "sbx.errors"

local FAMILY = {
  "SandboxUnavailableError", "SandboxSpecRejectedError", "SandboxSessionNotFoundError",
  "SandboxFileNotFoundError",
  "SandboxExecTimeoutError", "SandboxValidationError", "SandboxPermissionError",
}
local OUTSIDE = { "Cancelled", "TimeoutError", "TaskError" }

local function raised(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  return err
end

describe("errors", function()
  it("have class, message, notes and attributes", function()
    local err = errors.SandboxExecTimeoutError("too late",
      { timeout_seconds = 1.5, stdout_len = 3, stderr_len = 0 })
    assert.equal("too late", err.message)
    assert.equal("SandboxExecTimeoutError", err.class_name)
    assert.same({}, err.notes)
    assert.equal(1.5, err.timeout_seconds)
    assert.equal(3, err.stdout_len)
    assert.equal(0, err.stderr_len)
    assert.is_nil(err.path)
  end)

  it("name their class for tools", function()
    for name, class in pairs(errors) do
      if type(class) == "table" then
        assert.equal("sbx." .. name, rawget(class, "__name"))
        assert.equal("sbx." .. name, tostring(class))
        assert.equal(name, class("x").class_name)
      end
    end
  end)

  it("form the family", function()
    for _, name in ipairs(FAMILY) do
      local err = errors[name]("x")
      assert.is_true(errors.is(err, "SandboxError"), name)
      assert.is_true(errors.is(err, name), name)
      assert.is_true(errors.is(err, errors[name]), name)
      assert.is_true(errors.is(err, "Error"), name)
      for _, other in ipairs(FAMILY) do
        if other ~= name then assert.is_false(errors.is(err, other), name .. " is no " .. other) end
      end
    end
    assert.is_false(errors.is(errors.SandboxError("x"), "SandboxUnavailableError"))
  end)

  it("keep cancelling, time and misuse outside of it", function()
    for _, name in ipairs(OUTSIDE) do
      local err = errors[name]("x")
      assert.is_false(errors.is(err, "SandboxError"), name)
      assert.is_true(errors.is(err, name), name)
      assert.is_true(errors.is(err, "Error"), name)
    end
  end)

  it("know what is no error", function()
    local foreign = setmetatable({ message = "x", notes = {} }, {
      class_name = "SandboxError", __name = "sbx.SandboxError", __index = errors.SandboxError,
    })
    local values = { "SandboxError: x", 7, true, {}, foreign, errors.SandboxError, print,
      coroutine.create(print) }
    for _, value in ipairs(values) do assert.is_false(errors.is(value, "SandboxError")) end
    assert.is_false(errors.is(nil, "SandboxError"))
    assert.is_false(errors.is(setmetatable({}, { __metatable = "locked" }), "SandboxError"))
    assert.is_false(errors.is(errors.SandboxError("x"), "NoSuchClass"))
    assert.is_false(errors.is(errors.SandboxError("x"), nil))
  end)

  it("read well, with their notes", function()
    local err = errors.SandboxError("no such image")
    assert.equal("SandboxError: no such image", tostring(err))
    assert.equal(err, err:add_note("first"):add_note("second"))
    assert.equal("SandboxError: no such image\n  note: first\n  note: second", tostring(err))
    assert.same({ "first", "second" }, err.notes)
  end)

  it("take any value as a note, and keep the notes of each error apart", function()
    local a, b = errors.SandboxError("a"), errors.SandboxError("b")
    a:add_note(errors.SandboxError("cause")):add_note(nil):add_note(5)
    assert.same({ "SandboxError: cause", "nil", "5" }, a.notes)
    assert.same({}, b.notes)
  end)

  it("are raised as the same table", function()
    local err = errors.Cancelled("stop")
    assert.equal(err, raised(errors.raise, err))
    assert.equal("plain", raised(errors.raise, "plain"))
  end)

  it("always give a validation error its faults", function()
    assert.same({ { path = "", message = "bad" } }, errors.SandboxValidationError("bad").faults)
    local faults = { { path = "a", message = "is bad" }, { path = "", message = "all of it" } }
    local err = errors.validation_error("thing", faults)
    assert.is_true(errors.is(err, "SandboxValidationError"))
    assert.equal("invalid thing: a: is bad; all of it", err.message)
    assert.same(faults, err.faults)
  end)

  it("do not change the attributes given", function()
    local attributes = { session_id = "s1" }
    local err = errors.SandboxSessionNotFoundError("gone", attributes)
    err.session_id = "other"
    assert.same({ session_id = "s1" }, attributes)
  end)

  it("refuse a message that is no string and an attribute that hides a field", function()
    assert.matches("message must be a string, got number", raised(errors.SandboxError, 5), 1, true)
    assert.matches("message must be a string, got nil", raised(errors.SandboxError), 1, true)
    for _, name in ipairs { "message", "notes", "class_name", "add_note", "_init" } do
      assert.matches(name .. " cannot be an attribute",
        raised(errors.SandboxError, "x", { [name] = 1 }), 1, true)
    end
  end)

  describe("subclass", function()
    it("extends the family", function()
      local Engine = errors.subclass(errors.SandboxError, "DockerEngineError")
      local Busy = errors.subclass(Engine, "DockerBusyError")
      local err = Busy("busy", { status = 409 })
      for _, class in ipairs { "DockerBusyError", "DockerEngineError", "SandboxError", Engine,
        Busy } do
        assert.is_true(errors.is(err, class))
      end
      assert.is_false(errors.is(Engine("x"), "DockerBusyError"))
      assert.equal("DockerBusyError: busy\n  note: n", tostring(err:add_note("n")))
      assert.equal("sbx.DockerBusyError", rawget(getmetatable(err), "__name"))
      assert.equal(409, err.status)
    end)

    it("refuses a parent that is no class and a name that is none", function()
      assert.matches("parent must be", raised(errors.subclass, {}, "X"), 1, true)
      assert.matches("parent must be", raised(errors.subclass, nil, "X"), 1, true)
      assert.matches("parent must be", raised(errors.subclass, errors.SandboxError("x"), "X"), 1,
        true)
      assert.matches("name must be", raised(errors.subclass, errors.SandboxError, "a b"), 1, true)
      assert.matches("name must be", raised(errors.subclass, errors.SandboxError), 1, true)
    end)

    it("and misused constructors name the caller's line", function()
      local misuses = {
        function() local _ = errors.SandboxError(5) end,
        function() local _ = errors.SandboxError("x", { notes = {} }) end,
        function() local _ = errors.subclass({}, "X") end,
        function() local _ = errors.subclass(errors.SandboxError, "") end,
      }
      for _, misuse in ipairs(misuses) do
        assert.matches("errors_spec.lua:%d+: ", raised(misuse))
      end
    end)
  end)

  it("quote what they show: cut, and printable", function()
    assert.equal('"abc"', errors.quote("abc"))
    assert.equal('"a\\010b\\000\\255"', errors.quote("a\nb\0\255"))
    assert.equal('"' .. ("x"):rep(64) .. '"', errors.quote(("x"):rep(64)))
    assert.equal('"' .. ("x"):rep(64) .. '..."', errors.quote(("x"):rep(65)))
    assert.equal('"ab..."', errors.quote("abc", 2))
  end)
end)
