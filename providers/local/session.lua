-- SPDX-License-Identifier: MIT
--
-- A session of provider `local`: hands commands and file work to the runtime (SPEC X, F, L).
--
-- A command's environment is PATH and HOME (the workspace), then the spec's, then the call's; of
-- the program's own nothing is passed on.

local errors = require "sbx.errors"
local exec = require "_sbx.exec"
local files = require "_sbx.files"
local kit_exec = require "sbx.kit.exec"
local task = require "sbx.task"
local ManagedSandboxSession = require("sbx.kit").ManagedSandboxSession

---@class sbx.LocalSession : sbx.ManagedSandboxSession
---@field _root userdata the workspace, open
---@field _base_env table<string, string>
---@field _spec_env table<string, sbx.Secret>
local Session = ManagedSandboxSession.extend("sbx.LocalSession")

function Session:_start_exec(request, interactive)
  return exec.start(self._root, request.argv,
    kit_exec.env_list(self._base_env, self._spec_env, request.env), request.timeout_seconds,
    interactive, request.wait == "exit", request.cwd, request.stdin)
end

local REASONS = {
  EXDEV = "it leads outside of the workspace",
  EISDIR = "it is a directory",
  EOPNOTSUPP = "it is not a regular file", -- the name glibc has for ENOTSUP
  ENOTDIR = "a part of it is a file, not a directory",
}

local function file_error(verb, path, name, text)
  return errors.SandboxError(("cannot %s %s: %s (%s)"):format(verb, errors.quote(path),
    REASONS[name] or text, name))
end

function Session:_put_file(path, data)
  local op, name, text = files.put(self._root, path, data)
  local ok = op
  if op then ok, name, text = task.await(op) end
  if not ok then errors.raise(file_error("write", path, name, text)) end
end

function Session:_get_file(path)
  local op, name, text = files.get(self._root, path)
  local ok = op
  if op then ok, name, text = task.await(op) end
  if ok then return files.data(op) end
  if name == "ENOENT" then
    errors.raise(errors.SandboxFileNotFoundError(
      ("no file at %s in the workspace"):format(errors.quote(path)), { path = path }))
  end
  errors.raise(file_error("read", path, name, text))
end

-- One-shot execs that still run keep the directory open by themselves.
function Session:_close()
  self._root:close()
end

return Session
