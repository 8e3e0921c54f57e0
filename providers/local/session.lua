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
    interactive, request.wait == "exit", request.cwd, request.stdin, request.max_output_bytes)
end

local REASONS = {
  EXDEV = "it leads outside of the workspace",
  EISDIR = "it is a directory",
  EFBIG = "it is larger than a Lua string can be; get_file_to takes it in pieces",
  EOPNOTSUPP = "it is not a regular file", -- the name glibc has for ENOTSUP
  ENOTDIR = "a part of it is a file, not a directory",
}

-- Where another reason fits what was asked.
local REASONS_OF = {
  write = { ENOENT = "its directory was removed meanwhile" },
  list = { ENOTDIR = "it or a part of it is not a directory" },
  remove = {
    EBUSY = "a file system is mounted there",
    EINVAL = "it must name something in the workspace, not the workspace itself, . or ..",
    ENOTEMPTY = "the directory is not empty",
  },
}

local function file_error(verb, path, name, text)
  if name == "ENOENT" and verb ~= "write" then
    return errors.SandboxFileNotFoundError(
      ("no file at %s in the workspace"):format(errors.quote(path)), { path = path })
  end
  local reasons = REASONS_OF[verb]
  return errors.SandboxError(("cannot %s %s: %s (%s)"):format(verb, errors.quote(path),
    reasons and reasons[name] or REASONS[name] or text, name))
end

-- Waits for what a function of the runtime has started, or could not start. Returns the op.
local function finish(verb, path, op, name, text)
  local ok = op
  if op then ok, name, text = task.await(op) end
  if not ok then errors.raise(file_error(verb, path, name, text)) end
  return op
end

function Session:_put_file(path, data)
  finish("write", path, files.put(self._root, path, data))
end

function Session:_get_file(path)
  local data, name, text = files.data(finish("read", path, files.get(self._root, path)))
  if not data then errors.raise(file_error("read", path, name, text)) end
  return data
end

function Session:_list_files(path)
  return files.entries(finish("list", path, files.scan(self._root, path)))
end

function Session:_stat_file(path)
  return files.entries(finish("look at", path, files.stat(self._root, path)))[1]
end

function Session:_remove_file(path, recursive)
  finish("remove", path, files.remove(self._root, path, recursive))
end

-- A put or a get in pieces.
local Stream = {}
Stream.__index = Stream

function Stream:write(data)
  finish("write", self._path, self._stream:write(data))
end

function Stream:commit()
  finish("write", self._path, self._stream:commit())
end

function Stream:read()
  finish("read", self._path, self._stream:read())
  return self._stream:piece()
end

function Stream:close()
  finish("close", self._path, self._stream:close())
end
Stream.abort = Stream.close

local function open(self, path, verb, method)
  local stream, name, text = files.stream()
  if not stream then errors.raise(file_error(verb, path, name, text)) end
  local opened = setmetatable({ _stream = stream, _path = path }, Stream)
  -- A cancel comes only once the op has ended, and it may have opened the stream.
  local ok, err = pcall(finish, verb, path, stream[method](stream, self._root, path))
  if not ok then
    task.shield(opened.close, opened)
    error(err, 0)
  end
  return opened
end

function Session:_open_put(path)
  return open(self, path, "write", "open_put")
end

function Session:_open_get(path)
  return open(self, path, "read", "open_get")
end

-- One-shot execs that still run keep the directory open by themselves.
function Session:_close()
  self._root:close()
end

return Session
