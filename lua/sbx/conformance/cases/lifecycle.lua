-- SPDX-License-Identifier: MIT
--
-- Conformance cases: the life of sessions and of their workspaces.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local config = require "sbx.conformance.config"
local errors = require "sbx.errors"
local loop = require "sbx.loop"
local programs = require("sbx.conformance.programs").build
local task = require "sbx.task"

local cases = {}

local function case(name, ids, promise, run, needs)
  cases[#cases + 1] = { name = "lifecycle." .. name, ids = ids, promise = promise, run = run,
    needs = needs }
end

local function persistent(settings)
  if not config.offers(settings, "persistent") then return "no persistent workspaces here" end
end

local function ephemeral(settings)
  if not config.offers(settings, "ephemeral") then return "no ephemeral workspaces here" end
end

local function has_file(session, path)
  local ok, err = pcall(session.get_file, session, path)
  if not ok and not errors.is(err, "SandboxFileNotFoundError") then error(err, 0) end
  return ok
end

case("get_session", "P9", "get_session(id) gives a live session, in which commands run", function(t)
  local made = t:session()
  local got = t.sandbox:get_session(made.id)
  t:equal(made.id, got.id, "the id of the session that get_session gave")
  t:equal("out", t:exec(got, programs.print("out", "", 0)).stdout, "the stdout of a command in it")
end)

case("unknown_session", "P9", "get_session of an id that no session has raises "
  .. "SandboxSessionNotFoundError with that session_id", function(t)
  local err = t:raises("SandboxSessionNotFoundError", "get_session of an unknown id",
    t.sandbox.get_session, t.sandbox, "no-such-session")
  t:equal("no-such-session", err.session_id, "the error's session_id")
end)

case("list_sessions", "P9", "list_sessions() gives the state of every live session, each once",
  function(t)
    local wanted = { [t:session().id] = 0, [t:session().id] = 0 }
    for _, info in ipairs(t.sandbox:list_sessions()) do
      if wanted[info.id] then wanted[info.id] = wanted[info.id] + 1 end
    end
    local kinds = 0
    for id, count in pairs(wanted) do
      kinds = kinds + 1
      t:equal(1, count, "how often session " .. id .. " is listed")
    end
    t:equal(2, kinds, "the number of ids that two sessions have")
  end)

case("info", "P9, M1", "info() tells the session's id, image, workspace_key and durability, when "
  .. "it was created and, by its ttl, when it expires", function(t)
  local spec = t:spec()
  local before = loop.now()
  local session = t:note(t.sandbox:create_session(spec))
  local info = session:info()
  t:equal(session.id, info.id, "id")
  for _, name in ipairs { "image", "workspace_key", "durability" } do
    t:equal(spec[name], info[name], name)
  end
  t:check(type(info.created_at) == "number" and type(info.expires_at) == "number",
    "created_at and expires_at are no numbers")
  t:check(math.abs(info.created_at - before) < t:seconds(60),
    "created_at is %s, the call was at %s", tostring(info.created_at), tostring(before))
  local ttl = info.expires_at - info.created_at
  t:check(math.abs(ttl - spec.ttl_seconds) < 0.01, "expires_at is %g s after created_at, not %g",
    ttl, spec.ttl_seconds)
end)

case("workspace_path", "P9, X3", "workspace_path is absolute, the same on the session and in "
  .. "info(), and is where a command starts", function(t)
  local session = t:session()
  local path = session.workspace_path
  t:check(type(path) == "string" and path:sub(1, 1) == "/", "workspace_path is %s", tostring(path))
  t:equal(path, session:info().workspace_path, "workspace_path in info()")
  t:prepare(session, programs.write_here("made", "here"))
  t:equal("here", t:exec(session, programs.cat(path .. "/made")).stdout,
    "what is at workspace_path of a file that a command made in its directory")
end)

case("labels", "P3", "info() and list_sessions() give exactly the consumer's labels", function(t)
  local labels = { team = "a", ["a.b/c-d"] = "x=y z", empty = "" }
  local session = t:session { labels = labels }
  local _, listed = t:is_listed(session.id)
  for where, info in pairs { ["info()"] = session:info(), ["list_sessions()"] = listed } do
    for name, value in pairs(labels) do
      t:equal(value, info.labels[name], ("label %s in %s"):format(name, where))
    end
    for name in pairs(info.labels) do
      t:check(labels[name], "label %s in %s is none of the consumer's", name, where)
    end
  end
end)

case("defaults", "P9", "a provider carries exec_default_timeout_seconds and reap_interval_seconds",
  function(t)
    for _, name in ipairs { "exec_default_timeout_seconds", "reap_interval_seconds" } do
      local value = t.sandbox[name]
      t:check(type(value) == "number" and value > 0, "%s is %s", name, tostring(value))
    end
  end)

case("invalid_spec", "M1, M2", "a spec with a missing, an unknown or an ill-typed field raises "
  .. "SandboxValidationError that names each of them", function(t)
  local spec = t:spec { ttl_seconds = "soon", colour = "red" }
  spec.image = nil
  local ok, result = pcall(t.sandbox.create_session, t.sandbox, spec)
  if ok then t:note(result) end
  local err = t:raises("SandboxValidationError", "create_session", function()
    if not ok then error(result, 0) end
  end)
  for _, name in ipairs { "image", "ttl_seconds", "colour" } do
    t:check(tostring(err):find(name, 1, true), "the error does not name %s", name)
  end
end)

case("cancelled_create", "A3", "a create_session that is cancelled leaves no session", function(t)
  local spec = t:spec()
  local making = t:spawn(function()
    return t:note(t.sandbox:create_session(spec))
  end)
  t:sleep(0.01)
  making:cancel()
  if making:status() == "done" and making:await() then return end
  for _, info in ipairs(t.sandbox:list_sessions()) do
    t:check(info.workspace_key ~= spec.workspace_key, "session %s is there", info.id)
  end
end)

case("destroyed_session", "P4", "after destroy() the session is gone: not listed, and get_session "
  .. "and every call on it raise SandboxSessionNotFoundError", function(t)
  local session = t:session { durability = t.config.durabilities[1] }
  session:destroy()
  t:check(not t:is_listed(session.id), "it is still listed")
  local options = { timeout_seconds = t:seconds(10) }
  local calls = {
    exec = function() session:exec(programs.print("", "", 0), options) end,
    exec_start = function() session:exec_start(programs.print("", "", 0), options) end,
    put_file = function() session:put_file("f", "x") end,
    get_file = function() session:get_file("f") end,
    info = function() session:info() end,
    touch = function() session:touch() end,
    get_session = function() t.sandbox:get_session(session.id) end,
  }
  for name, call in pairs(calls) do
    local err = t:raises("SandboxSessionNotFoundError", name, call)
    t:equal(session.id, err.session_id, "session_id of the error that " .. name .. " raised")
  end
end)

case("destroy_again", "P4", "destroy() and destroy_session(id) of a session that is gone do "
  .. "nothing",
  function(t)
    local session = t:session()
    session:destroy()
    for what, call in pairs {
      ["the second destroy()"] = function() session:destroy() end,
      ["destroy_session of it"] = function() t.sandbox:destroy_session(session.id) end,
      ["destroy_session of an unknown id"] = function()
        t.sandbox:destroy_session("no-such-session")
      end,
    } do
      local ok, err = pcall(call)
      t:check(ok, "%s raised %s", what, tostring(err))
    end
  end)

case("destroy_ends_output", "P4", "when a session is destroyed the output of its handles ends as "
  .. "after a kill: what was received, then one exit item (or a SandboxError where the status "
  .. "cannot be read), no timeout", function(t)
  local session = t:session()
  local handle = t:start(session, programs.print_ready_stay("out", "", "ready"))
  t:wait_for_file(session, "ready")
  t:sleep(0.3)
  session:destroy()
  local got = t:collect(handle, "the output of a destroyed session's handle", 10)
  t:equal("out", got.stdout, "stdout")
  if got.err then
    t:raises_plain("the output", error, got.err, 0)
  else
    t:equal(1, got.exits, "the number of exit items")
  end
end)

case("touch", "P4", "touch() sets expires_at to now + ttl, and the session is not reaped before",
  function(t)
    local ttl = math.ceil(t:seconds(2))
    local session = t:session { ttl_seconds = ttl }
    local before = session:info().expires_at
    task.sleep(ttl * 0.6)
    session:touch()
    local gained = session:info().expires_at - before
    t:check(gained >= ttl * 0.59, "expires_at moved by %g s after %g s", gained, ttl * 0.6)
    task.sleep(ttl * 0.6)
    for _, id in ipairs((t.sandbox:reap())) do
      t:check(id ~= session.id, "a touched session was reaped")
    end
    session:info()
  end)

case("reap", "P4", "reap() destroys every session past its expires_at, no other, and returns "
  .. "their ids", function(t)
  local ttl = math.ceil(t:seconds(1))
  local kept = t:session()
  local expired = { t:session { ttl_seconds = ttl }, t:session { ttl_seconds = ttl } }
  task.sleep(ttl + 0.1)
  local reaped = {}
  for _, id in ipairs((t.sandbox:reap())) do
    reaped[id] = true
  end
  for _, session in ipairs(expired) do
    t:check(reaped[session.id], "reap() did not return %s, which had expired", session.id)
    t:check(not t:is_listed(session.id), "%s had expired and is still listed", session.id)
  end
  t:check(not reaped[kept.id], "reap() returned %s, which had not expired", kept.id)
  kept:info()
end)

case("reap_keeps_workspace", "P4", "a persistent workspace survives the reap of its session",
  function(t)
    local ttl = math.ceil(t:seconds(1))
    local key = t:key()
    local first = t:session { workspace_key = key, durability = "persistent", ttl_seconds = ttl }
    first:put_file("kept", "data")
    task.sleep(ttl + 0.1)
    t.sandbox:reap()
    local second = t:session { workspace_key = key, durability = "persistent" }
    t:check(has_file(second, "kept"), "the file of the session before is not there")
  end, persistent)

case("destroy_keeps_workspace", "P4", "a persistent workspace survives destroy() and is the "
  .. "workspace of a later session of the same key", function(t)
  local key = t:key()
  local first = t:session { workspace_key = key, durability = "persistent" }
  first:put_file("kept", "data")
  first:destroy()
  local second = t:session { workspace_key = key, durability = "persistent" }
  t:check(has_file(second, "kept"), "the file of the session before is not there")
end, persistent)

case("held_workspace", "P4", "the removal of a persistent workspace that another live session "
  .. "holds is refused with a SandboxError, and the session that asked stays live", function(t)
  local key = t:key()
  local first = t:session { workspace_key = key, durability = "persistent" }
  local second = t:session { workspace_key = key, durability = "persistent" }
  first:put_file("kept", "data")
  t:raises("SandboxError", "destroy with remove_workspace", first.destroy, first,
    { remove_workspace = true })
  t:check(has_file(second, "kept"), "the other session's files are gone")
  first:info()
  t:raises("SandboxError", "remove_workspace", t.sandbox.remove_workspace, t.sandbox, key)
  t:check(has_file(second, "kept"), "the other session's files are gone")
end, persistent)

case("remove_workspace", "P4", "destroy{remove_workspace=true} removes a persistent workspace that "
  .. "no other session holds", function(t)
  local key = t:key()
  local first = t:session { workspace_key = key, durability = "persistent" }
  first:put_file("gone", "data")
  first:destroy { remove_workspace = true }
  local second = t:session { workspace_key = key, durability = "persistent" }
  t:check(not has_file(second, "gone"), "the file of the session before is still there")
end, persistent)

case("ephemeral_workspace", "P4", "an ephemeral workspace is its session's alone and dies with it, "
  .. "whatever the key", function(t)
  local key = t:key()
  local first = t:session { workspace_key = key, durability = "ephemeral" }
  first:put_file("private", "data")
  local second = t:session { workspace_key = key, durability = "ephemeral" }
  t:check(not has_file(second, "private"), "a live session sees the other's file")
  first:destroy()
  local third = t:session { workspace_key = key, durability = "ephemeral" }
  t:check(not has_file(third, "private"), "a later session sees the file of one that is gone")
end, ephemeral)

case("nothing_is_left", "P4", "of all the sessions that the suite made and destroyed none is "
  .. "listed",
  function(t)
    local made = {}
    for _, id in ipairs(t.ledger.sessions) do
      made[id] = true
    end
    for _, info in ipairs(t.sandbox:list_sessions()) do
      t:check(not made[info.id], "session %s is still listed", info.id)
    end
  end)
cases[#cases].last = true

return cases
