-- SPDX-License-Identifier: MIT
-- proves: M1, M2, M3, E2, X1, X18

local errors = require "sbx.errors"
local models = require "sbx.models"
local secret = require "sbx.secret"

local VALUE = "s3cr3t-v4lue"
local NAN, INF = 0 / 0, math.huge

local function base(changes)
  local t = { image = "busybox:1", workspace_key = "demo", durability = "ephemeral",
    ttl_seconds = 300 }
  for k, v in pairs(changes or {}) do t[k] = v end
  return t
end

local function failure(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(errors.is(err, "SandboxValidationError"), tostring(err))
  assert.is_true(#err.faults > 0)
  assert.is_nil(tostring(err):find(VALUE, 1, true), "the text shows a value")
  return err
end

-- The faults' paths, in the order reported.
local function paths(fn, ...)
  local found = {}
  for i, fault in ipairs(failure(fn, ...).faults) do found[i] = fault.path end
  return found
end

local function snapshot(t)
  local copy = {}
  for k, v in pairs(t) do copy[k] = type(v) == "table" and not secret.is(v) and snapshot(v) or v end
  return copy
end

describe("SandboxSessionSpec", function()
  local Spec = models.SandboxSessionSpec

  it("takes the required fields and fills the defaults", function()
    local spec = Spec(base())
    assert.equal("busybox:1", spec.image)
    assert.equal("demo", spec.workspace_key)
    assert.equal("ephemeral", spec.durability)
    assert.equal(300, spec.ttl_seconds)
    assert.equal("none", spec.network)
    assert.is_nil(spec.isolation)
    assert.is_nil(spec.cpu)
    assert.is_nil(spec.memory_mb)
    assert.same({}, spec.env)
    assert.same({}, spec.labels)
  end)

  it("takes every field", function()
    local token = secret.new(VALUE)
    local spec = Spec(base {
      network = "egress", isolation = "vm", cpu = 0.5, memory_mb = 64, durability = "persistent",
      env = { TOKEN = token, PLAIN = "p", EMPTY = "", ["odd name"] = "v" },
      labels = { team = "a", ["x.y/z"] = "" },
    })
    assert.equal("egress", spec.network)
    assert.equal("vm", spec.isolation)
    assert.equal(0.5, spec.cpu)
    assert.equal(64, spec.memory_mb)
    assert.equal("persistent", spec.durability)
    assert.is_true(rawequal(token, spec.env.TOKEN))
    assert.equal("p", spec.env.PLAIN:reveal())
    assert.equal("", spec.env.EMPTY:reveal())
    assert.is_true(secret.is(spec.env["odd name"]))
    assert.same({ team = "a", ["x.y/z"] = "" }, spec.labels)
  end)

  it("leaves the caller's tables alone and shares none of them", function()
    local given = base { env = { A = "1" }, labels = { l = "1" } }
    local before = snapshot(given)
    local spec = Spec(given)
    assert.same(before, given)
    assert.equal("string", type(given.env.A))
    assert.is_nil(getmetatable(given))
    given.env.A, given.labels.l, given.image = "2", "2", "other"
    assert.equal("1", spec.env.A:reveal())
    assert.equal("1", spec.labels.l)
    assert.equal("busybox:1", spec.image)
    local again = Spec(spec)
    assert.is_false(rawequal(again, spec))
    assert.is_false(rawequal(again.env, spec.env))
    assert.equal("1", again.env.A:reveal())
  end)

  it("cannot be given another field", function()
    local spec = Spec(base())
    assert.matches("isolation: cannot be set",
      failure(function() spec.isolation = "vm" end).message, 1, true)
    assert.is_nil(spec.isolation)
  end)

  it("lists what is missing, in the order of the fields", function()
    local err = failure(Spec, {})
    assert.equal("invalid SandboxSessionSpec: image: is required; workspace_key: is required; "
      .. "durability: is required; ttl_seconds: is required", err.message)
    for _, name in ipairs { "image", "workspace_key", "durability", "ttl_seconds" } do
      local t = base()
      t[name] = nil
      assert.same({ name }, paths(Spec, t))
    end
  end)

  it("lists every fault at once", function()
    assert.same({
      "image", "workspace_key", "durability", "env.A", "env.B", "network", "isolation", "cpu",
      "memory_mb", "ttl_seconds", "labels.l", "labels[3]", "alpha", "beta",
    }, paths(Spec, {
      image = "", workspace_key = "a b", durability = "forever",
      env = { B = 1, A = false, OK = "x" }, network = "host",
      isolation = "jail", cpu = 0, memory_mb = 1.5, ttl_seconds = -1,
      labels = { l = 1, [3] = "x" }, beta = 1, alpha = 1,
    }))
  end)

  it("names every sort of wrong value", function()
    local bad = {
      image = { "", "a\0b", 5, true, {}, secret.new(VALUE) },
      workspace_key = { "", "a b", "a/b", "a.b", "..", "\195\169", "a\n", "a\0", ("k"):rep(65), 7,
        secret.new(VALUE) },
      durability = { "", "Ephemeral", "none", 1, secret.new("ephemeral") },
      network = { "", "host", "NONE", false, 1, secret.new("none") },
      isolation = { "", "host", false, 1 },
      cpu = { 0, -1, NAN, INF, -INF, "1", true, {} },
      memory_mb = { 0, -1, 0.5, 64.5, NAN, INF, 2 ^ 53 + 2, "64" },
      ttl_seconds = { 0, -1, 1.5, NAN, INF, 2 ^ 54, "300", false },
      env = { "A=1", 5, true, secret.new(VALUE) },
      labels = { "a", 5, true, secret.new(VALUE) },
    }
    for field, values in pairs(bad) do
      for _, value in ipairs(values) do
        local what = field .. " = " .. tostring(value)
        assert.same({ field }, paths(Spec, base { [field] = value }), what)
      end
    end
  end)

  it("takes the edges", function()
    for _, key in ipairs { "a", "-", "_", "A-z_0-9", ("k"):rep(64) } do
      assert.equal(key, Spec(base { workspace_key = key }).workspace_key)
    end
    for _, integer in ipairs { 1, 2, 3, 2 ^ 53 - 1, 2 ^ 53 } do
      assert.equal(integer, Spec(base { ttl_seconds = integer }).ttl_seconds)
      assert.equal(integer, Spec(base { memory_mb = integer }).memory_mb)
    end
    assert.equal(1e-9, Spec(base { cpu = 1e-9 }).cpu)
    for _, network in ipairs { "none", "internal", "egress" } do
      assert.equal(network, Spec(base { network = network }).network)
    end
    for _, isolation in ipairs { "none", "container", "vm" } do
      assert.equal(isolation, Spec(base { isolation = isolation }).isolation)
    end
  end)

  it("refuses names and values that an environment cannot carry", function()
    local cases = {
      { { [""] = "x" }, 'env[""]' },
      { { ["A\0B"] = "x" }, "env.A" },
      { { ["A=B"] = "x" }, "env.A" },
      { { ["=B"] = "x" }, 'env[""]' },
      { { ["\0"] = "x" }, 'env[""]' },
      { { [("n"):rep(65) .. "="] = "x" }, 'env["' .. ("n"):rep(64) .. '..."]' },
      { { [("n"):rep(64) .. "="] = "x" }, "env." .. ("n"):rep(64) },
      { { A = "x\0y" }, "env.A" },
      { { A = secret.new("x\0y") }, "env.A" },
      { { A = 5 }, "env.A" },
      { { A = {} }, "env.A" },
      { { "A=x" }, "env[1]" },
      { { [secret.new("k")] = "x" }, "env[secret]" },
      { { ["a-b\n"] = false }, 'env["a-b\\010"]' },
    }
    for _, case in ipairs(cases) do
      assert.same({ case[2] }, paths(Spec, base { env = case[1] }))
    end
    assert.same({ "env.A", "env.A" }, paths(Spec, base { env = { ["A="] = 1 } }))
  end)

  it("refuses labels that are no map of strings", function()
    local cases = {
      { { "a" }, "labels[1]" }, { { a = 1 }, "labels.a" },
      { { a = secret.new(VALUE) }, "labels.a" },
      { { a = "\0" }, "labels.a" }, { { ["a\0"] = "x" }, "labels.a" },
      { { [""] = "x" }, 'labels[""]' },
      { { [true] = "x" }, "labels[boolean]" },
    }
    for _, case in ipairs(cases) do
      assert.same({ case[2] }, paths(Spec, base { labels = case[1] }))
    end
    assert.equal("v", Spec(base { labels = { ["a=b"] = "v" } }).labels["a=b"])
  end)

  it("never shows a value", function()
    failure(Spec, { image = VALUE .. "\0", workspace_key = VALUE .. " ", durability = VALUE,
      network = VALUE, isolation = VALUE, cpu = VALUE, memory_mb = VALUE, ttl_seconds = VALUE,
      labels = { a = VALUE .. "\0", VALUE } })
    failure(Spec, base { env = { "TOKEN=" .. VALUE, ["TOKEN=" .. VALUE] = "x",
      ["TOKEN\0" .. VALUE] = "x", A = VALUE .. "\0", B = secret.new(VALUE .. "\0") } })
    failure(Spec, base { env = VALUE })
    failure(Spec, base { ["TOKEN=" .. VALUE] = 1 })
    failure(Spec, { VALUE })
    failure(Spec, VALUE)
  end)

  it("refuses what is no table, with an empty path", function()
    for _, value in ipairs { "image", 5, true, print, secret.new(VALUE) } do
      assert.same({ "" }, paths(Spec, value))
    end
    assert.same({ "" }, paths(Spec, nil))
    assert.same({ "[1]" }, paths(Spec, base { "x" }))
  end)

  it("prints without values of env", function()
    local text = tostring(Spec(base { env = { TOKEN = VALUE }, labels = { team = "a" },
      ttl_seconds = 2 ^ 53 }))
    assert.matches("demo", text, 1, true)
    assert.matches("9007199254740992", text, 1, true)
    assert.is_nil(text:find(VALUE, 1, true))
  end)
end)

describe("exec_request", function()
  local request = models.exec_request
  local STDIN = { stdin = true }

  it("takes a call and fills the defaults", function()
    local r = request({ "true" }, { timeout_seconds = 0.5 })
    assert.same({ argv = { "true" }, env = {}, timeout_seconds = 0.5, wait = "output" }, r)
  end)

  it("takes every option", function()
    local token = secret.new(VALUE)
    local r = request({ "sh", "-c", "", "\255" }, {
      timeout_seconds = 31536000, cwd = "a/b", env = { A = token, B = "" }, stdin = "\0",
      wait = "exit",
    }, STDIN)
    assert.same({ "sh", "-c", "", "\255" }, r.argv)
    assert.equal("a/b", r.cwd)
    assert.is_true(rawequal(token, r.env.A))
    assert.equal("", r.env.B)
    assert.equal("\0", r.stdin)
    assert.equal(31536000, r.timeout_seconds)
    assert.equal("exit", r.wait)
    assert.equal("", request({ "cat" }, { timeout_seconds = 1, stdin = "" }, STDIN).stdin)
    assert.equal("output", request({ "cat" }, { timeout_seconds = 1, wait = "output" }).wait)
  end)

  it("leaves the caller's tables alone and shares none of them", function()
    local argv, options = { "a", "b" }, { timeout_seconds = 1, env = { A = "1" } }
    local r = request(argv, options)
    assert.same({ "a", "b" }, argv)
    assert.same({ timeout_seconds = 1, env = { A = "1" } }, options)
    argv[2], options.env.A = "c", "2"
    assert.same({ "a", "b" }, r.argv)
    assert.same({ A = "1" }, r.env)
  end)

  it("refuses an argv that is no list of strings", function()
    local hole = { "a", "b", "c", "d" }
    hole[2] = nil
    local cases = {
      { {}, { "argv" } }, { "true", { "argv" } }, { 5, { "argv" } },
      { { "" }, { "argv[1]" } }, { { "\0" }, { "argv[1]" } },
      { { "a\0" }, { "argv[1]" } }, { { "a", 5 }, { "argv[2]" } },
      { { "a", secret.new(VALUE) }, { "argv[2]" } },
      { { "a", "b\0c", false }, { "argv[2]", "argv[3]" } },
      { { "a", n = 1 }, { "argv" } }, { { "a", [3] = "c" }, { "argv" } },
      { { cmd = "a" }, { "argv" } },
      { hole, { "argv[2]" } }, { { [0] = "a", "b" }, { "argv" } },
    }
    for i, case in ipairs(cases) do
      assert.same(case[2], paths(request, case[1], { timeout_seconds = 1 }), "case " .. i)
    end
    assert.same({ "argv" }, paths(request, nil, { timeout_seconds = 1 }))
  end)

  it("refuses wrong options", function()
    local bad = {
      timeout_seconds = { 0, -1, NAN, INF, "1", true },
      cwd = { "", "a\0b", 5, false },
      env = { "A=1", { "A=1" }, { ["A=B"] = "x" }, { [""] = "x" }, { A = 5 }, { A = "\0" },
        { A = secret.new("\0") } },
      stdin = { 5, false, {}, secret.new(VALUE) },
      wait = { "", "never", 5, false },
    }
    for option, values in pairs(bad) do
      for i, value in ipairs(values) do
        local options = { timeout_seconds = 1 }
        options[option] = value
        local found = paths(request, { "true" }, options, STDIN)
        assert.equal(1, #found)
        assert.equal(option, found[1]:match("^[%w_]+"), option .. " " .. i)
      end
    end
  end)

  it("requires options and a timeout", function()
    assert.same({ "options" }, paths(request, { "true" }))
    assert.same({ "options" }, paths(request, { "true" }, 5))
    assert.same({ "options" }, paths(request, { "true" }, secret.new("x")))
    local err = failure(request, { "true" }, {})
    assert.matches("timeout_seconds: is required", err.message, 1, true)
  end)

  it("refuses unknown options by name, and stdin where it is none", function()
    assert.same({ "stdin" }, paths(request, { "cat" }, { timeout_seconds = 1, stdin = "x" }))
    assert.same({ "stdin" }, paths(request, { "cat" }, { timeout_seconds = 1, stdin = "x" }, {}))
    local err = failure(request, { "cat" }, { timeout_seconds = 1, timeout = 2, shell = true,
      [1] = "x" })
    assert.equal("invalid exec: [1]: unknown option; shell: unknown option; "
      .. "timeout: unknown option", err.message)
  end)

  it("lists every fault at once and shows no value", function()
    assert.same({ "argv[1]", "argv[2]", "timeout_seconds", "cwd", "wait", "stdin", "zz", "env.A" },
      paths(request, { "", 1 }, { timeout_seconds = 0, cwd = "", env = { A = VALUE .. "\0" },
        stdin = { VALUE }, wait = VALUE, zz = VALUE }, STDIN))
    failure(request, { VALUE .. "\0" }, { timeout_seconds = VALUE, cwd = VALUE .. "\0",
      stdin = VALUE, env = { ["A=" .. VALUE] = VALUE }, ["x=" .. VALUE] = 1 })
  end)

  it("takes a long argv", function()
    local argv = {}
    for i = 1, 200000 do argv[i] = "x" end
    assert.equal(200000, #request(argv, { timeout_seconds = 1 }).argv)
  end)
end)

describe("file_path", function()
  it("gives a good path back", function()
    for _, path in ipairs { "a", "a/b c", "/abs", "..", "\255\n" } do
      assert.equal(path, models.file_path(path))
    end
  end)

  it("refuses the rest", function()
    for _, path in ipairs { "", "a\0b", 5, false, {}, secret.new(VALUE) } do
      assert.same({ "path" }, paths(models.file_path, path))
    end
    assert.same({ "path" }, paths(models.file_path, nil))
    failure(models.file_path, VALUE .. "\0")
  end)
end)

describe("results", function()
  it("carry their fields", function()
    local r = models.ExecResult { exit_code = 3, stdout = "hi", stderr = "err\n" }
    assert.same({ exit_code = 3, stdout = "hi", stderr = "err\n" }, r)
    assert.equal("oom", models.ExecResult({ exit_code = 137, stdout = "", stderr = "",
      cause = "oom" }).cause)
    assert.same({ stream = "stderr", data = "x\0" }, models.SandboxStreamChunk("stderr", "x\0"))
    assert.is_nil(models.SandboxStreamChunk("stdout", "x").exit_code)
    assert.same({ exit_code = 0 }, models.SandboxStreamExit(0))
    assert.same({ exit_code = 137, cause = "oom" },
      models.SandboxStreamExit(137, { cause = "oom" }))
  end)

  it("build a session's info with labels of its own", function()
    local given = { id = "s1", image = "i", workspace_key = "k", workspace_path = "/w",
      durability = "persistent", created_at = 1.5, expires_at = 301.25, labels = { team = "a" } }
    local info = models.SandboxSessionInfo(given)
    assert.same(given, info)
    assert.is_false(rawequal(given, info))
    given.labels.team = "b"
    assert.equal("a", info.labels.team)
    assert.matches("s1", tostring(info), 1, true)
    assert.matches("301.250", tostring(info), 1, true)
  end)

  it("print lengths, never output", function()
    local shown = {
      { models.ExecResult { exit_code = 3, stdout = VALUE, stderr = VALUE .. "!" },
        "ExecResult(exit_code=3, stdout=12 bytes, stderr=13 bytes)" },
      { models.SandboxStreamChunk("stdout", VALUE),
        "SandboxStreamChunk(stream=stdout, data=12 bytes)" },
      { models.SandboxStreamExit(128), "SandboxStreamExit(exit_code=128)" },
    }
    for _, case in ipairs(shown) do assert.equal(case[2], tostring(case[1])) end
  end)

  it("name their types", function()
    local made = {
      ExecResult = models.ExecResult { exit_code = 0, stdout = "", stderr = "" },
      SandboxSessionInfo = models.SandboxSessionInfo { labels = {} },
      SandboxStreamChunk = models.SandboxStreamChunk("stdout", "x"),
      SandboxStreamExit = models.SandboxStreamExit(0),
      SandboxSessionSpec = models.SandboxSessionSpec(base()),
    }
    for name, value in pairs(made) do assert.equal("sbx." .. name, getmetatable(value).__name) end
  end)
end)
