-- SPDX-License-Identifier: MIT
-- proves: E2, M2, M3
-- Canaries: the value of a secret and the output of a command are looked for in everything the
-- project says, keeps or starts: errors and notes, the log, events, the ledger's files, sidecars,
-- command lines, objects as text.

local errors = require "sbx.errors"
local events = require "sbx.events"
local helper = require "spec.helper"
local json = require "sbx.json"
local ledger_sqlite = require "sbx.kit.ledger_sqlite"
local log = require "sbx.log"
local models = require "sbx.models"
local policy = require "sbx.policy"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local SECRET = "canary-5ecret-value"
local OUTPUT = "canary-0utput-bytes"
local SAY_OUTPUT = "echo canary-0ut''put-bytes" -- a command that does not hold its output

describe("no secret's value and no output", function()
  local directory, root, ledger, sandbox, said, offs

  before_each(function()
    directory = helper.tmpdir()
    root = directory .. "/root"
    ledger = ledger_sqlite.new(directory .. "/ledger.db")
    sandbox = support.local_sandbox { root = root, ledger = ledger }
    said, offs = {}, {}
    log.set_sink(function(level, text) said[#said + 1] = level .. text end)
    for _, name in ipairs { "session.created", "session.destroyed", "session.reaped",
      "session.recovered", "exec.ended" } do
      offs[#offs + 1] = events.on(name, function(event) said[#said + 1] = event end)
    end
  end)

  after_each(function()
    for _, off in ipairs(offs) do off() end
    log.set_sink(nil)
    ledger:close()
  end)

  -- Every text that can be had of a value without asking a secret for it.
  local function texts(value, seen, list)
    seen, list = seen or {}, list or {}
    if type(value) == "string" then
      list[#list + 1] = value
    elseif type(value) ~= "table" and type(value) ~= "function" then
      list[#list + 1] = tostring(value)
    elseif type(value) == "table" and not seen[value] then
      seen[value] = true
      list[#list + 1] = tostring(value)
      for key, field in next, value do
        texts(key, seen, list)
        texts(field, seen, list)
      end
      texts(getmetatable(value), seen, list)
    end
    return list
  end

  local function assert_clean(value, what)
    for _, text in ipairs(texts(value)) do
      for _, canary in ipairs { SECRET, OUTPUT } do
        assert.is_nil(text:find(canary, 1, true), what .. ": " .. text)
      end
    end
  end

  local function session_with_secret(changes)
    local fields = { env = { TOKEN = sbx.secret(SECRET), PLAIN = SECRET } }
    for name, value in pairs(changes or {}) do fields[name] = value end
    return sandbox:create_session(support.spec(fields))
  end

  -- Raises, and what it raises is clean.
  local function fails(what, fn, ...)
    local ok, err = pcall(fn, ...)
    assert.is_false(ok, what .. " did not fail")
    assert.is_true(errors.is(err, "Error"), what .. ": " .. tostring(err))
    assert_clean(err, what)
    assert_clean({ pcall(json.encode, err) }, what)
    return err
  end

  it("is in an error or a note", function()
    local session = session_with_secret()
    local env = { TOKEN = SECRET, OTHER = sbx.secret(SECRET) }
    local say = { "sh", "-c", "echo $TOKEN; " .. SAY_OUTPUT .. "; echo $TOKEN >&2; exec sleep 30" }
    local function exec(argv, options)
      return function() session:exec(argv, options) end
    end
    fails("the deadline", exec(say, { timeout_seconds = 0.3, env = env }))
    fails("the limit of output", exec(say,
      { timeout_seconds = 9, env = env, max_output_bytes = 5 }))
    fails("a bad cwd", exec({ "true" }, { timeout_seconds = 9, env = env, cwd = "none" }))
    fails("no deadline", exec({ "true" }, { env = env }))
    fails("an unknown option", exec({ "true" }, { timeout_seconds = 9, env = env, enf = SECRET }))
    fails("an env that is none", exec({ "true" }, { timeout_seconds = 9, env = SECRET }))
    fails("a value that is none", exec({ "true" },
      { timeout_seconds = 9, env = { A = { SECRET } } }))
    fails("a NUL in a value", exec({ "true" },
      { timeout_seconds = 9, env = { A = SECRET .. "\0" } }))
    fails("a NUL in a secret", exec({ "true" },
      { timeout_seconds = 9, env = { A = sbx.secret(SECRET .. "\0") } }))
    fails("an argv that is none", exec(SECRET, { timeout_seconds = 9 }))
    fails("a stdin that is none", exec({ "true" }, { timeout_seconds = 9, stdin = { SECRET } }))
    fails("too long an env", exec({ "true" },
      { timeout_seconds = 9, env = { A = SECRET .. ("x"):rep(3e6) } }))
    fails("data that is none", session.put_file, session, "f", { SECRET })
    fails("a put onto a directory", session.put_file, session, ".", SECRET)
    session:put_file("f", SECRET)
    fails("a put below a file", session.put_file, session, "f/g", SECRET)
    fails("a missing file", session.get_file, session, "none")
    local handle = session:exec_start(say, { timeout_seconds = 0.3, env = env })
    fails("a handle's deadline", support.collect, handle)
    handle:kill()
    fails("a write after the end", handle.write_stdin, handle, SECRET)
    fails("a write that is none", handle.write_stdin, handle, { SECRET })
    for what, changes in pairs {
      ["a bad spec"] = { cpu = -1, ttl_seconds = 0, colour = SECRET },
      ["an env that is none"] = { env = SECRET }, ["a value that is none"] = { env = { A = 5 } },
      ["a NUL in a value"] = { env = { A = SECRET .. "\0" } },
      ["what the policy refuses"] = { labels = { ["tai42.sandbox"] = "x" } },
      ["what the provider refuses"] = { isolation = "vm" },
    } do
      fails(what, session_with_secret, changes)
    end
    fails("a detached session", sandbox.create_session, sandbox,
      support.spec { env = { TOKEN = SECRET } }, { detached = true })
    local other = support.local_sandbox { root = root, ledger = ledger }
    fails("a session of another", other.get_session, other, session.id)
    session:destroy()
    fails("a session that is gone", exec({ "true" }, { timeout_seconds = 9, env = env }))
    fails("a concatenation", function() return "x" .. sbx.secret(SECRET) end)
    fails("a change", function() sbx.secret(SECRET).value = 1 end)
    assert_clean(said, "the log and the events")
  end)

  it("is in what Lua itself says of a failure", function()
    local secret = sbx.secret(SECRET)
    for what, fn in pairs {
      arithmetic = function() return secret + 1 end,
      comparison = function() return secret < secret end,
      call = function() return secret() end, index = function() return secret.x.y end,
      length = function() return ("x"):rep(secret) end,
    } do
      local ok, err = pcall(fn)
      assert.is_false(ok, what)
      assert_clean(err, what)
    end
    assert_clean(debug.traceback("x", 1), "a traceback")
  end)

  it("is in an object as text", function()
    local session = session_with_secret()
    local spec = models.SandboxSessionSpec(support.spec { env = { TOKEN = SECRET } })
    local effective = policy.enforce(policy.SandboxPolicy { isolation = "none" }, spec)
    local request = models.exec_request({ "a" },
      { timeout_seconds = 1, env = { TOKEN = sbx.secret(SECRET) } })
    local handle = session:exec_start({ "sh", "-c", "echo $TOKEN; " .. SAY_OUTPUT },
      { timeout_seconds = 9, env = { MORE = sbx.secret(SECRET) } })
    local objects = { handle, session, session:info(), sandbox, spec, effective, request,
      sbx.secret(SECRET), sandbox._policy, sandbox:list_sessions() }
    for i, object in ipairs(objects) do
      assert_clean(object, "object " .. i)
      assert_clean({ pcall(json.encode, object) }, "JSON of object " .. i)
    end
    assert_clean(tostring(handle), "the handle")
    assert_clean({ ("%s"):format(tostring(sbx.secret(SECRET))) }, "a format")
    support.collect(handle)
    local result = session:exec({ "sh", "-c", SAY_OUTPUT .. "' '$TOKEN" },
      { timeout_seconds = 9 })
    assert.equal(OUTPUT .. " " .. SECRET .. "\n", result.stdout)
    assert_clean(tostring(result), "a result as text")
    session:destroy()
  end)

  it("is in the log, an event, the ledger's files or below the root", function()
    local session = session_with_secret { labels = { team = "a" } }
    local kept = session_with_secret { durability = "persistent" }
    session:exec({ "sh", "-c", "echo $TOKEN; " .. SAY_OUTPUT }, { timeout_seconds = 9 })
    session:touch()
    local function look(where)
      local stdout = helper.run(("grep -rlaE '%s|%s' %s"):format(SECRET, OUTPUT,
        helper.shell_quote(directory)))
      assert.equal("", stdout, where)
      for _, suffix in ipairs { "", "-wal", "-shm" } do
        assert_clean(helper.read_file(directory .. "/ledger.db" .. suffix), where .. suffix)
      end
      local request, count = uv.fs_scandir(root .. "/.sessions"), 0
      while uv.fs_scandir_next(request) do count = count + 1 end
      return count
    end
    assert.equal(2, look("while the sessions live"))
    assert.is_true(ledger:get(session.id).has_env)
    -- As if this process had died.
    ledger:update(session.id, "live", { owner = (ledger:get(session.id).owner:gsub("%d+$", "1")) })
    support.local_sandbox({ root = root, ledger = ledger }):recover()
    sandbox:reap() -- lets go of what is gone
    look("after a recovery")
    kept:destroy { remove_workspace = true }
    look("after a destroy")
    local recovered = 0
    for _, what in ipairs(said) do
      if type(what) == "string" and what:find("recovered", 1, true) then
        recovered = recovered + 1
      end
    end
    assert.equal(1, recovered)
    assert.is_true(#said >= 5)
    assert_clean(said, "the log and the events")
  end)

  it("is in a command line of anything the project starts", function()
    local session = session_with_secret()
    local handle = session:exec_start({ "sh", "-c",
      "echo ready; sleep 20 & exec sleep 20" }, { timeout_seconds = 20, env = { MORE = SECRET } })
    handle:write_stdin(SECRET)
    support.read_until(handle, "ready")
    local request, looked = uv.fs_scandir("/proc"), 0
    while true do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      for _, part in ipairs { "cmdline", "comm", "status" } do
        local file = name:find("^%d+$") and io.open("/proc/" .. name .. "/" .. part, "rb")
        local text = file and file:read("*a")
        if file then file:close() end
        if text then
          looked = looked + 1
          assert_clean(text, "/proc/" .. name .. "/" .. part)
        end
      end
    end
    assert.is_true(looked > 6)
    handle:kill()
    session:destroy()
  end)

  it("is on the standard error of a program", function()
    local stdout, status, stderr = support.run_lua(([[
      local log = require "sbx.log"
      local session = new_session { env = { TOKEN = %q } }
      local task = sbx.run(function()
        local t = sbx.spawn(function()
          session:exec({ "sh", "-c", "echo $TOKEN; %s; exec sleep 9" },
            { timeout_seconds = 0.2 })
        end)
        sbx.sleep(0.4)
      end)
    ]]):format(SECRET, SAY_OUTPUT))
    assert.equal("", stdout)
    assert.equal(1, status)
    assert.matches("SandboxExecTimeoutError", stderr)
    assert_clean(stderr, "stderr")
  end)

  it("is in what sbxlua run says", function()
    for _, words in ipairs {
      "--timeout 0.2 --env TOKEN=" .. SECRET .. " -- sh -c 'echo $TOKEN >/dev/null; exec sleep 9'",
      "--env TOKEN=" .. SECRET .. " --cwd none -- true",
      "--env TOKEN=" .. SECRET .. " --network none -- true",
      "--env " .. SECRET .. " -- true",
    } do
      local out = helper.run(("env SANDBOX_LOCAL_ROOT=%s TAI_MCP_SANDBOX=sbx.providers.local "
        .. "TAI_MCP_SANDBOX_ISOLATION=none %s run %s 2>&1"):format(root,
        helper.shell_quote(helper.sbxlua()), words))
      assert.is_true(#out > 0)
      assert_clean(out, words)
    end
  end)
end)
