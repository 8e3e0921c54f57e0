-- SPDX-License-Identifier: MIT
--
-- A file system in tables, for the memory provider: directories, files, links, fifos, with the
-- containment that SPEC F2 asks for. Every function returns its value, or nil and an errno name.

local M = {}

local MAX_LINKS = 40

local function new_directory(parent)
  local node = { kind = "dir", children = {}, mode = "rwxr-xr-x" }
  node.parent = parent or node
  return node
end

---@return table root of a new file system, with a /bin/sh
function M.new()
  local root = new_directory()
  root.children.bin = new_directory(root)
  root.children.bin.children.sh = { kind = "file", data = "", mode = "rwxr-xr-x" }
  return root
end

local function split(path)
  local parts = {}
  for part in path:gmatch("[^/]+") do
    parts[#parts + 1] = part
  end
  return parts
end

-- One step from a directory; nil, errno when it cannot be made.
local function step(state, dir, name)
  if name == "." then return dir end
  if name == ".." then
    if dir == state.inside then return nil, "EXDEV" end
    return dir.parent
  end
  return dir.children[name], "ENOENT"
end

local resolve

local function follow(state, dir, link)
  state.links = state.links + 1
  if state.links > MAX_LINKS then return nil, "ELOOP" end
  local start = dir
  if link.target:sub(1, 1) == "/" then
    if state.inside then return nil, "EXDEV" end
    start = state.root
  end
  return resolve(state, start, link.target, true)
end

-- The node at a path, and the directory it stands in. A last part that is not there gives nil,
-- ENOENT, the directory and the name.
function resolve(state, dir, path, follow_last)
  local parts = split(path)
  local node, parent = dir, dir
  for i, name in ipairs(parts) do
    if node.kind ~= "dir" then return nil, "ENOTDIR" end
    parent = node
    local found, why = step(state, node, name)
    if not found then
      if i == #parts then return nil, why, parent, name end
      return nil, why
    end
    if found.kind == "link" and (i < #parts or follow_last) then
      found, why = follow(state, node, found)
      if not found then return nil, why end
    end
    node = found
  end
  return node, nil, parent, parts[#parts]
end

-- By its text alone, also where nothing of it is there.
local function climbs_out(path)
  local depth = 0
  for _, part in ipairs(split(path)) do
    if part ~= "." then depth = depth + (part == ".." and -1 or 1) end
    if depth < 0 then return true end
  end
  return false
end

---@param root table
---@param dir table where a relative path starts
---@param path string
---@param options? { inside: table?, keep_link: boolean? } inside: nothing outside may be reached
---@return table|nil node
---@return string|nil errno
---@return table|nil parent
---@return string|nil name
function M.find(root, dir, path, options)
  options = options or {}
  local state = { root = root, inside = options.inside, links = 0 }
  local absolute = path:sub(1, 1) == "/"
  if options.inside and not absolute and climbs_out(path) then return nil, "EXDEV" end
  return resolve(state, absolute and root or dir, path, not options.keep_link)
end

---Makes a directory and those above it.
---@return table|nil node
---@return string|nil errno
function M.make_dirs(root, dir, path, options)
  local node = path:sub(1, 1) == "/" and root or dir
  for _, name in ipairs(split(path)) do
    local next_node, why = M.find(root, node, name, options)
    if not next_node and why == "ENOENT" and name ~= ".." then
      next_node = new_directory(node)
      node.children[name] = next_node
    elseif not next_node then
      return nil, why
    end
    if next_node.kind ~= "dir" then return nil, "ENOTDIR" end
    node = next_node
  end
  return node
end

---What a command's `>` or `>>` does.
---@return true|nil ok
---@return string|nil errno
function M.write(root, dir, path, data, append)
  local node, why, parent, name = M.find(root, dir, path)
  if not node and why == "ENOENT" and parent and name then
    node = { kind = "file", data = "", mode = "rw-r--r--" }
    parent.children[name] = node
  elseif not node then
    return nil, why
  end
  if node.kind ~= "file" then return nil, "EISDIR" end
  node.data = append and node.data .. data or data
  return true
end

return M
