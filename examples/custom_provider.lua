-- SPDX-License-Identifier: MIT
--
-- A provider of one's own, from nothing to certified; providers/README.md walks through it.
--
--   build/release/sbxlua examples/custom_provider.lua [CASE…]
--
-- It runs each command in a fresh directory of this host and offers no isolation, no caps and no
-- persistent workspaces: what it cannot give it refuses. The kit does the rest. The program below
-- the provider registers it and prints what the conformance suite finds, as TAP.

local exec = require "_sbx.exec"
local files = require "_sbx.files"
local kit = require "sbx.kit"
local kit_exec = require "sbx.kit.exec"
local sbx = require "sbx"
local settings = require "sbx.settings"
local task = require "sbx.task"

-- The session: commands and files.

local Session = kit.ManagedSandboxSession.extend "DirectorySession"

function Session:_start_exec(request, interactive)
  local base = { PATH = "/usr/local/bin:/usr/bin:/bin", HOME = self.workspace_path }
  local env = kit_exec.env_list(base, self._spec_env, request.env)
  return exec.start(self._root, request.argv, env, request.timeout_seconds, interactive,
    request.wait == "exit", request.cwd, request.stdin)
end

-- Waits for an op of the runtime: true, or nil, errno name, text.
local function done(op, name, text)
  if op then return task.await(op) end
  return nil, name, text
end

local function check(what, ok, name, text)
  if ok then return end
  sbx.errors.raise(sbx.errors.SandboxError(("cannot %s: %s (%s)"):format(what, text, name)))
end

function Session:_put_file(path, data)
  check("write " .. sbx.errors.quote(path), done(files.put(self._root, path, data)))
end

function Session:_get_file(path)
  local op, name, text = files.get(self._root, path)
  local ok = op
  if op then ok, name, text = task.await(op) end
  if not ok and name == "ENOENT" then -- the one fault that is a miss
    local message = "no file at " .. sbx.errors.quote(path)
    sbx.errors.raise(sbx.errors.SandboxFileNotFoundError(message, { path = path }))
  end
  check("read " .. sbx.errors.quote(path), ok, name, text)
  return files.data(op)
end

-- The sandbox: a session's resources made and removed.

local Sandbox = kit.ManagedSandbox.extend "directory"

Sandbox.settings = settings.provider("SANDBOX_DIRECTORY_", {
  { name = "root", env = "SANDBOX_DIRECTORY_ROOT", type = "path", required = true,
    description = "directory of the workspaces" },
})

function Sandbox.new(options)
  return kit.ManagedSandbox.init(Sandbox, { _root_path = options.settings.root }, options)
end

function Sandbox:_create_resources(spec, session_id)
  if spec.isolation ~= "none" then self:_reject "isolation: commands run on this host" end
  if spec.network ~= "egress" then self:_reject "network: commands have the host's" end
  if spec.durability ~= "ephemeral" then self:_reject "durability persistent: nothing is kept" end
  if spec.cpu or spec.memory_mb then self:_reject "cpu and memory_mb: it cannot enforce a cap" end
  local path = self._root_path .. "/" .. session_id
  check("make " .. path, done(files.make_dirs(path, tonumber("700", 8))))
  local root, name, text = files.open_root(path)
  check("open " .. path, root, name, text)
  return Session.new { id = session_id, workspace_path = root:path(), _root = root,
    _spec_env = spec.env }
end

function Sandbox:_destroy_resources(row)
  local session = self._sessions[row.id]
  if session then session._root:close() end
  local parent, name, text = files.open_root(self._root_path)
  check("open " .. self._root_path, parent, name, text)
  check("remove the workspace of " .. row.id, done(files.remove_tree(parent, row.id)))
  parent:close()
end

function Sandbox._remove_workspace() end -- there are no persistent ones

-- The program: registers the provider as its module would, and has it certified.

local root = os.tmpname()
os.remove(root)
check("make " .. root, done(files.make_dirs(root, tonumber("700", 8))))
sbx.sandboxes.configure { isolation = "none", provider = { root = root } }
sbx.sandboxes.register_sandbox(Sandbox)

local failures = require("sbx.conformance").tap(sbx.sandboxes.require_sandbox(), {
  durabilities = { "ephemeral" },
  timing_scale = tonumber(os.getenv "SBX_TIMING_SCALE"),
  only = arg[1] and { unpack(arg) },
  reject_specs = {
    { spec = { isolation = "container" }, why = "isolation container" },
    { spec = { network = "none" }, why = "network none" },
    { spec = { durability = "persistent" }, why = "durability persistent" },
    { spec = { cpu = 1 }, why = "a cap on cpu" },
    { spec = { memory_mb = 64 }, why = "a cap on memory" },
  },
})
os.remove(root)
os.exit(failures == 0 and 0 or 1, true)
