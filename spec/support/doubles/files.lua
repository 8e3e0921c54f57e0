-- SPDX-License-Identifier: MIT
--
-- Doubles that break what a provider owes about files (see spec.support.doubles).

local errors = require "sbx.errors"
local memory_files = require "spec.support.memory_files"
local waits = require "sbx.waits"
local tools = require "spec.support.doubles.tools"

local double, wrap, raise = tools.double, tools.wrap, tools.raise

double("files.bytes", "a file ends at its first NUL", function(parts)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    local nul = data:find("\0", 1, true)
    return original(self, path, nul and #data < 4096 and data:sub(1, nul - 1) or data)
  end)
end)

double("files.empty", "an empty file is a miss", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    local data = original(self, path)
    if data == "" and path == "f" then
      errors.raise(errors.SandboxFileNotFoundError("nothing there", { path = path }))
    end
    return data
  end)
end)

double("files.large", "a file is cut at 4 MiB", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    return original(self, path):sub(1, 4 * 1024 * 1024)
  end)
end)

double("files.missing", "a miss is a plain error", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    local ok, result = pcall(original, self, path)
    if ok then return result end
    if path == "no/such/file" then raise("no such file") end
    error(result, 0)
  end)
end)

double("files.missing", "a miss has another path", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    local ok, result = pcall(original, self, path)
    if ok then return result end
    if errors.is(result, "SandboxFileNotFoundError") then result.path = "/workspace/" .. path end
    error(result, 0)
  end)
end)

-- Turns what get_file raises for a path into a miss.
local function miss_for(case, name, wanted)
  double(case, name, function(parts)
    wrap(parts.Session, "_get_file", function(original, self, path)
      local ok, result = pcall(original, self, path)
      if ok then return result end
      if path == wanted then
        errors.raise(errors.SandboxFileNotFoundError("no file", { path = path }))
      end
      error(result, 0)
    end)
  end)
end

miss_for("files.directory", "a directory is a miss", "d")
miss_for("files.below_a_file", "a path below a file is a miss", "f/below")
miss_for("files.fifo", "a fifo is a miss", "pipe")

double("files.fifo", "opening a fifo waits for a writer", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    if path == "pipe" then waits.latch():wait() end
    return original(self, path)
  end)
end)

double("files.seen_by_commands", "line ends are converted and back", function(parts)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    return original(self, path, #data < 200 and data:gsub("\n", "\r\n") or data)
  end)
  wrap(parts.Session, "_get_file", function(original, self, path)
    local data = original(self, path)
    return #data < 200 and data:gsub("\r\n", "\n") or data
  end)
end)

double("files.seen_by_commands", "only what was put is got", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    if path == "out" then raise("not put through this session") end
    return original(self, path)
  end)
end)

double("files.parents", "missing directories are not made", function(parts)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    if path == "a/b/c/f" then raise("no such directory") end
    return original(self, path, data)
  end)
end)

double("files.replaced", "a longer old file is not cut", function(parts)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    local ok, old = pcall(self._get_file, self, path)
    if ok and #old > #data then data = data .. old:sub(#data + 1) end
    return original(self, path, data)
  end)
end)

-- Writes into the file that is there.
local function write_in_place(parts, applies)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    local node = self._dir.children[path]
    if node and node.kind == "file" and applies(path) then
      node.data = data
      return
    end
    return original(self, path, data)
  end)
end

double("files.replaced_at_once", "a file is overwritten in place", function(parts)
  write_in_place(parts, function() return true end)
end)

double("files.kept_mode", "a replaced file is a new one", function(parts)
  function parts.Session._mode_of() return "rw-r--r--" end
end)

double("files.new_mode", "a new file is private", function(parts)
  wrap(parts.Session, "_mode_of", function(original, self, old)
    return old and original(self, old) or "rw-------"
  end)
end)

double("files.put_onto_directory", "a directory is replaced by a file", function(parts)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    local node = self._dir.children[path]
    if node and node.kind == "dir" then self._dir.children[path] = nil end
    return original(self, path, data)
  end)
end)

double("files.names", "a name that is no UTF-8 is refused", function(parts)
  wrap(parts.Session, "_put_file", function(original, self, path, data)
    if path:find("\255", 1, true) then raise("the name is not UTF-8") end
    return original(self, path, data)
  end)
end)

double("files.absolute_inside", "every absolute path is refused", function(parts)
  wrap(parts.Session, "_inside", function(original, self, path)
    if path:sub(1, 1) == "/" then raise("an absolute path") end
    return original(self, path)
  end)
end)

-- Finds without containment the paths that `applies` names.
local function let_out(parts, method, applies)
  wrap(parts.Session, method, function(original, self, path, data)
    if not applies(path) then return original(self, path, data) end
    local node, why = memory_files.find(self._root, self._dir, path)
    if data then return memory_files.write(self._root, self._dir, path, data) end
    if node then return node.data or raise("no file") end
    errors.raise(errors.SandboxFileNotFoundError(why, { path = path }))
  end)
end

local function starts(prefix)
  return function(path) return path:sub(1, #prefix) == prefix end
end

double("files.dotdot", "put_file follows `..` outside", function(parts)
  let_out(parts, "_put_file", starts("../"))
end)

double("files.dotdot", "get_file outside of the workspace is a miss", function(parts)
  let_out(parts, "_get_file", starts("../"))
end)

double("files.link_outside", "put_file follows a link outside", function(parts)
  let_out(parts, "_put_file", starts("up/"))
end)

double("files.link_outside", "get_file follows a link outside", function(parts)
  let_out(parts, "_get_file", starts("top/"))
end)

double("files.put_onto_link", "put_file writes what the link points to", function(parts)
  let_out(parts, "_put_file", function(path) return path == "link" end)
end)

double("files.link_inside", "get_file follows no link", function(parts)
  wrap(parts.Session, "_get_file", function(original, self, path)
    local node = self._dir.children[path]
    if node and node.kind == "link" then raise("it is a link") end
    return original(self, path)
  end)
end)

double("files.invalid_path", "data that is no string is printed into the file", function(parts)
  wrap(parts.Session, "put_file", function(original, self, path, data)
    return original(self, path, tostring(data))
  end)
end)
