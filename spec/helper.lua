-- SPDX-License-Identifier: MIT
--
-- What every spec stands on. busted loads this file once, before any spec; specs reach the same
-- instance by require "spec.helper".
--
-- It loads luv from the main chunk (a first load inside a coroutine crashes LuaJIT later), and it
-- compares the process before and after each test and each file: descriptors, children (zombies
-- included), threads, luv handles, working directory, temporary files. What is new after the
-- test, and does not go within a second of pumping the loop and collecting garbage, fails it.
-- What lives as long as the process (an engine's thread, its descriptors) is brought up before
-- the first look, by functions given to helper.warm_up.
--
-- The hooks are a before_each and an after_each of the root context: busted runs the first of
-- them before, and the second after, every other hook of a test.

local uv = require "luv"
local busted = require "busted"

local M = {}
package.loaded["spec.helper"] = M

M.root = uv.cwd()
M.flavour = os.getenv("SBX_FLAVOUR") or "release"
M.build = M.root .. "/build/" .. M.flavour
M.quick = os.getenv("SBX_QUICK") ~= nil

local settle_seconds = tonumber(os.getenv("SBX_SETTLE_SECONDS")) or 1

-- The sanitizer's library is for this process only, not for what it starts.
local preload = os.getenv("LD_PRELOAD")
uv.os_unsetenv("LD_PRELOAD")

-- Directories of providers have no place of their own below lua/.
local prefix = "sbx.providers."
table.insert(package.loaders, 2, function(name)
  if name:sub(1, #prefix) ~= prefix then
    return nil
  end
  local base = M.root .. "/providers/" .. name:sub(#prefix + 1):gsub("%.", "/")
  local tried = {}
  for _, path in ipairs { base .. ".lua", base .. "/init.lua" } do
    if uv.fs_access(path, "R") then
      return assert(loadfile(path))
    end
    tried[#tried + 1] = "\n\tno file '" .. path .. "'"
  end
  return table.concat(tried)
end)

--- Waiting ------------------------------------------------------------------------------------

-- Serves luv's loop until predicate() is true; returns its value, or false after the limit.
function M.wait_until(predicate, seconds)
  local deadline = uv.hrtime() + (seconds or 5) * 1e9
  while true do
    uv.run("nowait")
    local value = predicate()
    if value then
      return value
    end
    if uv.hrtime() >= deadline then
      return false
    end
    uv.sleep(5)
  end
end

--- Files --------------------------------------------------------------------------------------

function M.read_file(path)
  local file = assert(io.open(path, "rb"))
  local data = file:read("*a")
  file:close()
  return data
end

function M.write_file(path, data)
  local file = assert(io.open(path, "wb"))
  assert(file:write(data))
  assert(file:close())
end

local function list_directory(path)
  local names = {}
  local request = uv.fs_scandir(path)
  while request do
    local name = uv.fs_scandir_next(request)
    if not name then
      break
    end
    names[#names + 1] = name
  end
  return names
end

local function remove_tree(path)
  local stat = uv.fs_lstat(path)
  if not stat then
    return
  end
  if stat.type ~= "directory" then
    uv.fs_unlink(path)
    return
  end
  uv.fs_chmod(path, tonumber("700", 8))
  for _, name in ipairs(list_directory(path)) do
    remove_tree(path .. "/" .. name)
  end
  uv.fs_rmdir(path)
end
M.remove_tree = remove_tree

-- All temporary files of the process under test go below one directory, so that a forgotten one
-- is seen. It is removed when busted is done, or by spec/run.
local temporary_root = assert(uv.fs_mkdtemp((os.getenv("TMPDIR") or "/tmp") .. "/sbx-spec.XXXXXX"))
uv.os_setenv("TMPDIR", temporary_root)

local in_test = false
local directories_of_test, directories_of_file = {}, {}

-- A fresh directory, removed after the test; one made in a setup is removed after the file.
function M.tmpdir()
  local path = assert(uv.fs_mkdtemp(temporary_root .. "/t.XXXXXX"))
  table.insert(in_test and directories_of_test or directories_of_file, path)
  return path
end

local function remove_directories(list)
  while #list > 0 do
    remove_tree(table.remove(list))
  end
end

--- Programs -----------------------------------------------------------------------------------

function M.shell_quote(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- The path of a program built from spec/fixtures/NAME.c.
function M.fixture(name)
  local path = M.build .. "/fixtures/" .. name
  assert(uv.fs_access(path, "X"), path .. " is missing: run make")
  return path
end

-- The path of the host program.
function M.sbxlua()
  return M.build .. "/sbxlua"
end

-- Runs a shell command line to its end; returns its stdout and its exit status (128 + N after
-- signal N), or nil when it cannot be told.
function M.run(command_line)
  local pipe = assert(io.popen("(" .. command_line .. "\n); printf '\\n%d' $?", "r"))
  local output = pipe:read("*a")
  pipe:close()
  local text, status = output:match("^(.*)\n(%d+)$")
  return text or output, tonumber(status)
end

-- Runs one spec file in a busted of its own, with busted options and environment settings as lists
-- of words, and SBX_MUST_WORK unset unless it is given. Returns the whole output, the exit status
-- and the summary (a table of passed, failed, skipped), or nil when there was none.
function M.run_spec(file, options, environment)
  local directory = M.tmpdir()
  local result = directory .. "/result"
  local set = { "TMPDIR=" .. directory, "SBX_SPEC_RESULT=" .. result, "SBX_FLAVOUR=" .. M.flavour }
  if preload then
    set[#set + 1] = "LD_PRELOAD=" .. preload
  end
  local busted_script = { "luajit", arg[0], "--ignore-lua" }
  local words = { "env", "-u", "SBX_MUST_WORK" }
  for _, list in ipairs { set, environment or {}, busted_script, options or {}, { file } } do
    for _, word in ipairs(list) do
      words[#words + 1] = M.shell_quote(word)
    end
  end
  local output, status = M.run(table.concat(words, " ") .. " 2>&1")
  local summary
  if uv.fs_access(result, "R") then
    local text = M.read_file(result)
    local passed, failed = text:match("^(%d+) passed, (%d+) failed")
    summary = {
      passed = tonumber(passed),
      failed = tonumber(failed),
      skipped = tonumber(text:match(", (%d+) skipped")) or 0,
    }
  end
  return output, status, summary
end

--- What must work -----------------------------------------------------------------------------

local must_work = os.getenv("SBX_MUST_WORK")
local current_test
local excused = {}

local function is_required(name)
  return (("," .. (must_work or "") .. ","):gsub("%s", "")):find("," .. name .. ",", 1, true) ~= nil
end

-- For specs that need something of the machine. `works` is what a probe found, `reason` says what
-- is missing. Returns true when it works. When it does not: an error if SBX_MUST_WORK lists the
-- name; otherwise the running test is skipped, and in a describe block a skipped test is left in
-- place of the block's tests and false is returned.
function M.must_work(name, works, reason)
  if works then
    return true
  end
  local text = ("%s does not work here: %s"):format(name, tostring(reason or "not found"))
  if is_required(name) then
    error(text .. " (SBX_MUST_WORK lists it)", 2)
  end
  if current_test then
    excused[current_test] = true
    current_test.env.pending(text)
  end
  excused[text] = true
  busted.pending(text)
  return false
end

--- Looking for leaks --------------------------------------------------------------------------

local look_at = {}

function look_at.descriptor()
  local found = {}
  for _, name in ipairs(list_directory("/proc/self/fd")) do
    local target = uv.fs_readlink("/proc/self/fd/" .. name)
    if target then
      found[name .. " -> " .. target] = true
    end
  end
  return found
end

function look_at.child()
  local found = {}
  local own = tostring(uv.os_getpid())
  for _, pid in ipairs(list_directory("/proc")) do
    local file = pid:find("^%d+$") and io.open("/proc/" .. pid .. "/stat", "rb")
    if file then
      local command, state, parent = (file:read("*a") or ""):match("^%d+ (%b()) (%S) (%d+)")
      file:close()
      if parent == own then
        found[pid .. " " .. command .. (state == "Z" and " (a zombie)" or "")] = true
      end
    end
  end
  return found
end

function look_at.thread()
  local found = {}
  for _, id in ipairs(list_directory("/proc/self/task")) do
    found[id] = true
  end
  return found
end

function look_at.handle()
  local found = {}
  uv.walk(function(handle)
    if not handle:is_closing() then
      found[tostring(handle)] = true
    end
  end)
  return found
end

look_at["working directory"] = function()
  return { [uv.cwd() or "(removed)"] = true }
end

look_at["temporary file"] = function()
  local found = {}
  for _, name in ipairs(list_directory(temporary_root)) do
    found[temporary_root .. "/" .. name] = true
  end
  return found
end

local kinds = {
  "descriptor", "child", "thread", "handle", "working directory", "temporary file",
}

local function take_snapshot()
  local snapshot = {}
  for _, kind in ipairs(kinds) do
    snapshot[kind] = look_at[kind]()
  end
  return snapshot
end

-- What a test leaked is not told again at the end of its file.
local reported = {}

-- What is there now and was not before, as a list of texts.
local function find_leaks(before)
  local leaks = {}
  for _, kind in ipairs(kinds) do
    for what in pairs(look_at[kind]()) do
      if not before[kind][what] and not reported[kind .. " " .. what] then
        leaks[#leaks + 1] = kind .. " " .. what
      end
    end
  end
  table.sort(leaks)
  return leaks
end

local function settled_leaks(before)
  local leaks = find_leaks(before)
  if #leaks == 0 then
    return leaks
  end
  M.wait_until(function()
    collectgarbage()
    collectgarbage()
    leaks = find_leaks(before)
    return #leaks == 0
  end, settle_seconds)
  return leaks
end

-- Looks for what is new, puts back what the next test would stumble over, and raises.
local function check(before, where, what)
  local leaks = settled_leaks(before)
  if #leaks == 0 then
    return
  end
  uv.chdir(M.root)
  for path in pairs(look_at["temporary file"]()) do
    if not before["temporary file"][path] then
      remove_tree(path)
    end
  end
  for _, leak in ipairs(leaks) do
    reported[leak] = true
  end
  error(where .. what .. " leaked:\n  " .. table.concat(leaks, "\n  "), 0)
end

local warm_ups = {}

-- fn() brings up what lives as long as the process; it runs once, before the next look.
function M.warm_up(fn)
  warm_ups[#warm_ups + 1] = fn
end

-- libuv's thread pool starts at the first asynchronous file operation.
M.warm_up(function()
  local done = false
  uv.fs_stat("/", function()
    done = true
  end)
  assert(M.wait_until(function()
    return done
  end), "libuv's thread pool does not answer")
end)

local before_test, before_file

-- What a warm-up brings up is not the file's that asked for it.
local function run_warm_ups()
  if #warm_ups == 0 then
    return
  end
  local before = take_snapshot()
  while #warm_ups > 0 do
    table.remove(warm_ups, 1)()
  end
  for _, kind in ipairs(kinds) do
    for what in pairs(look_at[kind]()) do
      if before_file and not before[kind][what] then
        before_file[kind][what] = true
      end
    end
  end
end

--- Counting and hooking -----------------------------------------------------------------------

local passed, failed, skipped = 0, 0, 0
local last_test, last_status

local function full_name(element)
  local names = {}
  while element and element.descriptor ~= "file" and element.descriptor ~= "suite" do
    table.insert(names, 1, tostring(element.name or element.descriptor))
    element = busted.parent(element)
  end
  return table.concat(names, " ")
end

local function place(element)
  local trace = element and element.trace
  return trace and ("%s:%d: "):format(trace.short_src, trace.currentline) or ""
end

busted.before_each(function()
  run_warm_ups()
  before_test = take_snapshot()
  in_test = true
  last_test, last_status = nil, nil
end)

busted.after_each(function()
  in_test = false
  remove_directories(directories_of_test)
  local ok, message = pcall(check, before_test, place(last_test),
    "the test '" .. full_name(last_test) .. "'")
  if not ok then
    -- The error that busted counts for this hook takes the place of the test's own success.
    if last_status == "success" then
      passed = passed - 1
    end
    error(message, 0)
  end
end)

busted.subscribe({ "test", "start" }, function(element)
  current_test = element
  return nil, true
end)

busted.subscribe({ "test", "end" }, function(element, _, status)
  current_test = nil
  last_test, last_status = element, status
  if status == "success" then
    passed = passed + 1
  elseif status ~= "pending" then
    failed = failed + 1
  elseif must_work and not excused[element] and not excused[element.name] then
    io.stderr:write(place(element), "skipped though SBX_MUST_WORK is set: ", full_name(element),
      "\n")
    failed = failed + 1
  else
    skipped = skipped + 1
  end
  return nil, true
end)

-- Errors outside a test: in hooks, describe blocks and files.
local function count_outside(element)
  if element.descriptor ~= "it" then
    failed = failed + 1
  end
  return nil, true
end
busted.subscribe({ "error" }, count_outside)
busted.subscribe({ "failure" }, count_outside)

-- What a setup brought up and no teardown took away.
busted.subscribe({ "file", "start" }, function()
  run_warm_ups()
  before_file = take_snapshot()
  return nil, true
end)

busted.subscribe({ "file", "end" }, function(element)
  remove_directories(directories_of_file)
  check(before_file, "", "the file " .. tostring(element.name))
  return nil, true
end)

busted.subscribe({ "exit" }, function()
  remove_tree(temporary_root)
  local path = os.getenv("SBX_SPEC_RESULT")
  if path then
    M.write_file(path, ("%d passed, %d failed, %d skipped\n"):format(passed, failed, skipped))
  end
  return nil, true
end)

return M
