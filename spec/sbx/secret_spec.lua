-- SPDX-License-Identifier: MIT
-- proves: M3, E2

local errors = require "sbx.errors"
local secret = require "sbx.secret"

local VALUE = "s3cr3t-v4lue"
local MASK = "**********"

local function fault_of(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(errors.is(err, "SandboxValidationError"), tostring(err))
  assert.is_nil(tostring(err):find(VALUE, 1, true))
  return tostring(err)
end

describe("secret", function()
  it("gives its value to reveal alone", function()
    assert.equal(VALUE, secret.new(VALUE):reveal())
    assert.equal("", secret.new(""):reveal())
    assert.equal("a\0b\255", secret.new("a\0b\255"):reveal())
  end)

  it("shows the mask where it is printed", function()
    local s = secret.new(VALUE)
    assert.equal(MASK, tostring(s))
    assert.equal("token=" .. MASK, ("token=%s"):format(s))
    assert.equal('"' .. MASK .. '"', debug.getmetatable(s).__tojson(s))
    assert.equal('"' .. MASK .. '"', getmetatable(s).__tojson(s))
  end)

  it("cannot be concatenated", function()
    local s = secret.new(VALUE)
    assert.matches("cannot be concatenated", fault_of(function() return "token=" .. s end), 1, true)
    assert.matches("cannot be concatenated", fault_of(function() return s .. "x" end), 1, true)
    assert.matches("cannot be concatenated", fault_of(function() return s .. s end), 1, true)
  end)

  it("has nothing in it to dump", function()
    local s = secret.new(VALUE)
    assert.is_nil(next(s))
    for _ in pairs(s) do error("a field") end
    assert.equal(0, #s)
    assert.is_nil(rawget(s, 1))
    assert.is_nil(s.value)
    local function walk(value, seen)
      assert.not_equal(VALUE, value)
      if type(value) ~= "table" or seen[value] then return end
      seen[value] = true
      for k, v in next, value do walk(k, seen) walk(v, seen) end
      walk(debug.getmetatable(value), seen)
    end
    walk(s, {})
  end)

  it("does not leak in any operator or library call", function()
    local s = secret.new(VALUE)
    local attempts = {
      function() return s + 1 end, function() return -s end, function() return s < s end,
        function() return s() end,
      function() return ("%q"):format(s) end, function() return ("%d"):format(s) end,
      function() return table.concat { s } end, function() return ("").rep(s, 2) end,
        function() return error(s, 0) end,
    }
    for _, attempt in ipairs(attempts) do
      local _, result = pcall(attempt)
      assert.is_nil(tostring(result):find(VALUE, 1, true))
    end
  end)

  it("keeps its metatable to itself", function()
    local s = secret.new(VALUE)
    assert.is_false(pcall(setmetatable, s, {}))
    getmetatable(s).__tostring = function() return "changed" end
    getmetatable(s).__index = function() return "changed" end
    assert.equal(MASK, tostring(s))
    assert.is_nil(s.value)
    assert.equal(VALUE, s:reveal())
    getmetatable(s).__index = nil
    getmetatable(s).__tostring = function() return MASK end
  end)

  it("cannot be changed, and a copy of it holds nothing", function()
    local s = secret.new(VALUE)
    fault_of(function() s.value = "x" end)
    local copy = setmetatable({}, getmetatable(s))
    assert.equal(MASK, tostring(copy))
    assert.is_false(secret.is(copy))
    assert.matches("holds no value", fault_of(s.reveal, copy), 1, true)
  end)

  it("takes strings, and a secret as it is", function()
    local s = secret.new(VALUE)
    assert.is_true(rawequal(s, secret.new(s)))
    for _, value in ipairs { 5, true, {}, print } do
      assert.matches("must be a string", fault_of(secret.new, value), 1, true)
    end
    fault_of(secret.new, nil)
  end)

  it("is equal by value", function()
    assert.is_true(secret.new(VALUE) == secret.new(VALUE))
    assert.is_false(secret.new(VALUE) == secret.new("other"))
    assert.is_false(secret.new(VALUE) == VALUE)
  end)

  it("is known by is, opened by unwrap", function()
    local s = secret.new(VALUE)
    assert.is_true(secret.is(s))
    for _, value in ipairs { VALUE, {}, 1, true, 0 / 0 } do assert.is_false(secret.is(value)) end
    assert.is_false(secret.is(nil))
    assert.equal(VALUE, secret.unwrap(s))
    assert.equal("plain", secret.unwrap("plain"))
    assert.matches("must be a string or a secret, got number", fault_of(secret.unwrap, 5), 1, true)
    fault_of(secret.unwrap, nil)
  end)

  it("goes when nobody holds it", function()
    local watch = setmetatable({}, { __mode = "k" })
    do
      for i = 1, 100 do watch[secret.new("value " .. i)] = true end
    end
    collectgarbage() collectgarbage()
    assert.is_nil(next(watch))
  end)
end)
