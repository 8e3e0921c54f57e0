-- SPDX-License-Identifier: MIT
--
-- What the specs that run real commands share: sessions of provider `local` in a directory of the
-- test, the fixture program, looks at processes, and programs of their own for what would disturb
-- the process that runs the specs (limits, signals, memory, crashes).
--
-- What lives as long as the process (the engine, its threads, timers at rest) is brought up by a
-- warm-up, so that the leak checks see only what a test leaves.

local assert = require "luassert"
local errors = require "sbx.errors"
local helper = require "spec.helper"
local policy = require "sbx.policy"
local sbx = require "sbx"
local uv = require "luv"

local M = {}

M.BASE_PATH = "/usr/local/bin:/usr/bin:/bin"

local made = {}

---A sandbox of provider `local` whose root is a directory of the test.
---@return table sandbox
---@return string root
function M.local_sandbox(options)
  local class = require "sbx.providers.local"
  options = options or {}
  local root = options.root or helper.tmpdir()
  local sandbox = class.new {
    settings = {
      root = root,
      base_path = options.base_path or M.BASE_PATH,
      exec_default_timeout_seconds = 300,
      reap_interval_seconds = 300,
    },
    now = options.now,
    ledger = options.ledger,
  }
  sandbox:bind_policy(policy.SandboxPolicy { isolation = "none" })
  return sandbox, root
end

---Fields of a spec that provider `local` takes.
function M.spec(changes)
  local spec = { image = "host", workspace_key = "spec", durability = "ephemeral",
    network = "egress", ttl_seconds = 300 }
  for name, value in pairs(changes or {}) do
    spec[name] = value
  end
  return spec
end

---A session that M.cleanup destroys.
function M.session(changes, options)
  local session = M.local_sandbox(options):create_session(M.spec(changes))
  made[#made + 1] = session
  return session
end

---For after_each: destroys the sessions of the test.
function M.cleanup()
  local sessions = made
  made = {}
  for _, session in ipairs(sessions) do
    session:destroy()
  end
end

---An argv of the fixture program.
function M.child(...)
  local argv = { helper.fixture("child"), ... }
  for i, word in ipairs(argv) do
    argv[i] = tostring(word)
  end
  return argv
end

---The bytes that the fixture's `spew` writes.
function M.pattern(size)
  local blocks = {}
  for i = 1, math.ceil(size / 16) do
    blocks[i] = ("%015d\n"):format((i - 1) * 16)
  end
  return table.concat(blocks):sub(1, size)
end

---Asserts that fn(...) raises an error of a class; returns it.
function M.failure(class, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok, "raised nothing, " .. class .. " is wanted")
  assert.is_true(errors.is(err, class), class .. " is wanted, got " .. tostring(err))
  return err
end

---Seconds that fn(...) took, then its results.
function M.timed(fn, ...)
  local before = uv.hrtime()
  local out = { fn(...) }
  return (uv.hrtime() - before) / 1e9, unpack(out)
end

---Reads a handle to its end.
---@return table { stdout, stderr, items, exit_code, exits }
function M.collect(handle)
  local got = { items = {}, exits = 0 }
  local parts = { stdout = {}, stderr = {} }
  for item in handle:output() do
    got.items[#got.items + 1] = item
    if item.exit_code then
      got.exits = got.exits + 1
      got.exit_code = item.exit_code
    else
      assert.is_true(#item.data > 0, "an empty chunk")
      table.insert(parts[item.stream], item.data)
    end
  end
  got.stdout, got.stderr = table.concat(parts.stdout), table.concat(parts.stderr)
  return got
end

---Reads a handle until `text` has come on stdout; returns all that came there.
function M.read_until(handle, text)
  local seen = ""
  for item in handle:output() do
    assert.is_nil(item.exit_code, "it ended before " .. text)
    if item.stream == "stdout" then seen = seen .. item.data end
    if seen:find(text, 1, true) then return seen end
  end
end

-- Processes.

local function process_stat(pid)
  local file = io.open("/proc/" .. pid .. "/stat", "rb")
  if not file then return nil end
  local text = file:read("*a") or ""
  file:close()
  return text:match("^%d+ %b() (%S) (%d+) (%d+)")
end

---The state letter of a process, nil when it is gone.
function M.process_state(pid)
  return (process_stat(pid))
end

---Whether a process lives; a zombie does not.
function M.is_alive(pid)
  local state = process_stat(pid)
  return state ~= nil and state ~= "Z" and state ~= "X"
end

---Waits without serving the loop.
function M.wait_blocking(predicate, seconds)
  local deadline = uv.hrtime() + (seconds or 5) * 1e9
  while not predicate() do
    if uv.hrtime() >= deadline then return false end
    uv.sleep(2)
  end
  return true
end

---Asserts that a process is gone, or goes within a short time.
function M.assert_gone(pid, seconds)
  assert.is_true(M.wait_blocking(function() return not M.is_alive(pid) end, seconds or 2),
    "process " .. tostring(pid) .. " still runs")
end

---The pid that the fixture's `write-pid` has put into a file of the workspace.
function M.read_pid(session, name, seconds)
  local path, pid = session.workspace_path .. "/" .. name, nil
  M.wait_blocking(function()
    local file = io.open(path, "rb")
    pid = file and tonumber((file:read("*a"):match("^(%d+)\n")))
    if file then file:close() end
    return pid
  end, seconds)
  assert.is_number(pid, "no pid in " .. name)
  return pid
end

---The living members of a group.
function M.group_members(pgid)
  local members = {}
  local request = uv.fs_scandir("/proc")
  while true do
    local name = uv.fs_scandir_next(request)
    if not name then break end
    if name:find("^%d+$") then
      local state, _, group = process_stat(name)
      if tonumber(group) == pgid and state ~= "Z" and state ~= "X" then
        members[#members + 1] = tonumber(name)
      end
    end
  end
  return members
end

---How many entries /proc/self/NAME has (`fd`, `task`).
function M.count_own(name)
  local count = -1 -- the look itself opens one
  if name ~= "fd" then count = 0 end
  local request = uv.fs_scandir("/proc/self/" .. name)
  while uv.fs_scandir_next(request) do
    count = count + 1
  end
  return count
end

-- Programs of their own.

local PRELUDE = [[
sbx = require "sbx"
uv = require "luv"
errors = sbx.errors
sandbox = require("sbx.providers.local").new { settings = { root = %q, base_path = %q,
  exec_default_timeout_seconds = 300, reap_interval_seconds = 300 } }
sandbox:bind_policy(sbx.policy.SandboxPolicy { isolation = "none" })
child = %q
function new_session(changes)
  local spec = { image = "host", workspace_key = "spec", durability = "ephemeral",
    network = "egress", ttl_seconds = 300 }
  for name, value in pairs(changes or {}) do spec[name] = value end
  return sandbox:create_session(spec)
end
function status(field)
  local file = io.open("/proc/self/status")
  local text = file:read("*a")
  file:close()
  return tonumber(text:match("\n" .. field .. ":%%s+(%%d+)"))
end
function count(name)
  local n, request = 0, uv.fs_scandir("/proc/self/" .. name)
  while uv.fs_scandir_next(request) do n = n + 1 end
  return n
end
function zombies()
  local n, request = 0, uv.fs_scandir("/proc")
  local own = tostring(uv.os_getpid())
  while true do
    local name = uv.fs_scandir_next(request)
    if not name then return n end
    local file = name:find("^%%d+$") and io.open("/proc/" .. name .. "/stat")
    if file then
      local state, parent = (file:read("*a") or ""):match("^%%d+ %%b() (%%S) (%%d+)")
      file:close()
      if parent == own and state == "Z" then n = n + 1 end
    end
  end
end
]]

---Runs Lua code in an sbxlua of its own. The code finds sbx, uv, errors, sandbox, child,
---new_session(changes), and status(field), count(name), zombies() about itself.
---@param code string
---@param options? { before: string?, prefix: string?, bare: boolean?, open: boolean? } shell words
---before the program: `before` ends a command (`umask 077;`), `prefix` wraps it (`env A=b`);
---`bare`: no prelude; `open`: another user can run it
---@return string stdout
---@return integer|nil status
---@return string stderr
function M.run_lua(code, options)
  options = options or {}
  local directory = helper.tmpdir()
  local root = directory .. "/root"
  if options.open then
    root = assert(uv.fs_mkdtemp("/tmp/sbx-spec.XXXXXX"))
    uv.fs_chmod(root, tonumber("777", 8))
  else
    assert(uv.fs_mkdir(root, tonumber("700", 8)))
  end
  local file = directory .. "/program.lua"
  local prelude = options.bare and ""
    or PRELUDE:format(root, M.BASE_PATH, helper.fixture("child"))
  helper.write_file(file, prelude .. code)
  local stdout, status = helper.run(("%s %s %s %s 2>%s"):format(options.before or "",
    options.prefix or "", helper.shell_quote(helper.sbxlua()),
    (options.open and "- <" or "") .. helper.shell_quote(file),
    helper.shell_quote(directory .. "/stderr")))
  if options.open then helper.remove_tree(root) end
  return stdout, status, helper.read_file(directory .. "/stderr")
end

---As run_lua; asserts that it ended well and gave exactly this output.
function M.assert_lua(expected, code, options)
  local stdout, status, stderr = M.run_lua(code, options)
  assert.equal(expected, stdout, stderr)
  assert.equal("", stderr)
  assert.equal(0, status)
end

-- More timers, streams and workers at once than any test uses in this process.
helper.warm_up(function()
  uv.new_pipe(false):close() -- libuv keeps a spare descriptor from its first stream on
  uv.run("nowait")
  sbx.run(function()
    local tasks = {}
    for i = 1, 200 do
      tasks[i] = sbx.spawn(sbx.sleep, 0.01)
    end
    sbx.gather(tasks)
  end)
  local root = assert(uv.fs_mkdtemp(os.getenv("TMPDIR") .. "/warm.XXXXXX"))
  local session = M.local_sandbox({ root = root }):create_session(M.spec())
  sbx.run(function()
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = sbx.spawn(function()
        session:put_file("f" .. i, "x")
        session:get_file("f" .. i)
        session:exec({ "true" }, { timeout_seconds = 30 })
      end)
    end
    sbx.gather(tasks)
  end)
  session:destroy()
  helper.remove_tree(root)
  collectgarbage()
  collectgarbage()
end)

return M
