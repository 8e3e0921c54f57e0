-- SPDX-License-Identifier: MIT
--
-- Conformance cases: files in and out, and their containment.

local programs = require("sbx.conformance.programs").build

local cases = {}

local function case(name, ids, promise, run)
  cases[#cases + 1] = { name = "files." .. name, ids = ids, promise = promise, run = run }
end

local function all_bytes()
  local bytes = {}
  for i = 0, 255 do
    bytes[#bytes + 1] = string.char(i)
  end
  return table.concat(bytes)
end

-- An error of a get that is no miss.
local function check_get_fails(t, session, path, what)
  return t:raises_plain("get_file of " .. what, session.get_file, session, path)
end

case("bytes", "F1, A5", "a file of every byte value, NUL included, comes back "
  .. "unchanged", function(t)
  local session = t:session()
  local data = all_bytes() .. "\r\n\0\0" .. all_bytes():reverse()
  session:put_file("f", data)
  t:equal(data, session:get_file("f"), "the file's content")
end)

case("empty", "F1", "an empty file is put and got", function(t)
  local session = t:session()
  session:put_file("f", "")
  t:equal("", session:get_file("f"), "the content of an empty file")
end)

case("large", "F1", "a file of several MiB comes back unchanged", function(t)
  local session = t:session()
  local data = (all_bytes() .. "0123456789abcdef"):rep(16 * 1024) .. "end"
  session:put_file("f", data)
  t:equal(data, session:get_file("f"), "the content of a large file")
end)

case("missing", "F3", "get_file of a path that does not exist raises SandboxFileNotFoundError with "
  .. "that path, also where its directory does not exist", function(t)
  local session = t:session()
  for _, path in ipairs { "missing", "no/such/file" } do
    local err = t:raises("SandboxFileNotFoundError", "get_file of " .. path, session.get_file,
      session, path)
    t:equal(path, err.path, "the error's path")
  end
end)

case("directory", "F3", "get_file of a directory raises a plain SandboxError, no miss", function(t)
  local session = t:session()
  t:prepare(session, programs.mkdir("d"))
  check_get_fails(t, session, "d", "a directory")
end)

case("below_a_file", "F3", "get_file of a path below a file raises a plain SandboxError, no miss",
  function(t)
    local session = t:session()
    session:put_file("f", "x")
    check_get_fails(t, session, "f/below", "a path below a file")
  end)

case("fifo", "F3", "get_file of a fifo raises a plain SandboxError at once", function(t)
  local session = t:session()
  t:prepare(session, programs.mkfifo("pipe"))
  t:within(10, "get_file of a fifo", function()
    check_get_fails(t, session, "pipe", "a fifo")
  end)
end)

case("seen_by_commands", "F1", "a command reads the bytes that were put, and what a command writes "
  .. "is got", function(t)
  local session = t:session()
  session:put_file("in", "line 1\nline 2\n")
  t:equal("line 1\nline 2\n", t:exec(session, programs.cat("in")).stdout, "what the command read")
  t:prepare(session, programs.write_file("out", "from the command"))
  t:equal("from the command", session:get_file("out"), "what the command wrote")
end)

case("parents", "F1", "put_file makes the missing directories of its path", function(t)
  local session = t:session()
  session:put_file("a/b/c/f", "deep")
  t:equal("deep", session:get_file("a/b/c/f"), "the content of a file in new directories")
end)

case("replaced", "F1", "put_file replaces the whole of a file that is there", function(t)
  local session = t:session()
  session:put_file("f", "the old and longer content")
  session:put_file("f", "new")
  t:equal("new", session:get_file("f"), "the content of a replaced file")
end)

case("replaced_at_once", "F1", "put_file replaces a file in one step: who had it open reads the "
  .. "old one to its end", function(t)
  local session = t:session()
  session:put_file("f", "old")
  local handle = t:start(session, programs.read_opened("f"))
  t:read_until(handle, "open")
  session:put_file("f", "new and longer")
  handle:write_stdin("go\n")
  t:equal("old", t:collect_all(handle).stdout, "what the command read from the file it had open")
  t:equal("new and longer", session:get_file("f"), "the content of the replaced file")
end)

case("kept_mode", "F1", "put_file keeps the mode of a file that it replaces", function(t)
  local session = t:session()
  session:put_file("script", "#!/bin/sh\necho old\n")
  t:prepare(session, programs.make_executable("script"))
  session:put_file("script", "#!/bin/sh\necho new\n")
  local listed = t:prepare(session, programs.list_mode("script")).stdout
  t:equal("-rwxr-xr-x", listed:sub(1, 10), "the mode of an executable file that was replaced")
end)

case("new_mode", "F1", "put_file gives a new file the mode 0644", function(t)
  local session = t:session()
  session:put_file("f", "x")
  local listed = t:prepare(session, programs.list_mode("f")).stdout
  t:equal("-rw-r--r--", listed:sub(1, 10), "the mode of a new file")
end)

case("put_onto_directory", "F3", "put_file onto a directory raises a SandboxError, and the "
  .. "directory stays", function(t)
  local session = t:session()
  session:put_file("d/kept", "kept")
  t:raises_plain("put_file onto a directory", session.put_file, session, "d", "x")
  t:equal("kept", session:get_file("d/kept"), "a file in the directory")
end)

case("names", "F1", "a file's name may hold any byte but NUL and `/`", function(t)
  local session = t:session()
  for _, name in ipairs { "two words", "-dash", "new\nline", "star*?[a]", "quote'\"\\", "\1\127",
    "\195\188", "\255\254" } do
    session:put_file(name, "content of " .. name)
    t:equal("content of " .. name, session:get_file(name), "the content of a file with such a name")
  end
end)

case("absolute_inside", "F2", "an absolute path inside the workspace is the same as the relative "
  .. "one",
  function(t)
    local session = t:session()
    session:put_file(session.workspace_path .. "/d/f", "x")
    t:equal("x", session:get_file("d/f"), "the content of a file put by its absolute path")
    t:equal("x", session:get_file(session.workspace_path .. "/d/f"),
      "the content of a file got by its absolute path")
  end)

case("dotdot", "F2", "a relative path with `..` does not lead outside: put_file and get_file raise "
  .. "a plain SandboxError, also where nothing is there, and nothing is written", function(t)
  local session = t:session()
  local name = t:key()
  t:raises_plain("put_file outside", session.put_file, session, "../" .. name, "x")
  t:check(not t:exists(session, "../" .. name), "the file outside was written")
  check_get_fails(t, session, "../" .. name, "a path outside that does not exist")
  check_get_fails(t, session, "d/../../" .. name, "a path outside by way of a missing directory")
end)

case("link_outside", "F2", "a symlink made by a command does not lead outside: get_file and "
  .. "put_file through it raise a plain SandboxError, also where nothing is there", function(t)
  local session = t:session()
  local name = t:key()
  t:prepare(session, programs.link("..", "up"))
  t:prepare(session, programs.link("/", "top"))
  t:raises_plain("put_file through a link", session.put_file, session, "up/" .. name, "x")
  t:check(not t:exists(session, "up/" .. name), "the file outside was written")
  check_get_fails(t, session, "up/" .. name, "a path behind a link, where nothing is")
  check_get_fails(t, session, "top/bin/sh", "a path behind an absolute link")
end)

case("put_onto_link", "F2", "put_file onto a symlink replaces the link itself, not what it points "
  .. "to",
  function(t)
    local session = t:session()
    session:put_file("target", "old")
    t:prepare(session, programs.link("target", "link"))
    session:put_file("link", "new")
    t:equal("old", session:get_file("target"), "the content of what the link pointed to")
    t:equal("new", session:get_file("link"), "the content of the link's path")
    t:check(t:exec(session, programs.is_link("link")).exit_code ~= 0, "the link is still one")
  end)

case("link_inside", "F2", "get_file follows a symlink that stays inside", function(t)
  local session = t:session()
  session:put_file("d/target", "content")
  t:prepare(session, programs.link("d/target", "link"))
  t:equal("content", session:get_file("link"), "the content behind a link")
end)

case("invalid_path", "X1", "a path that is empty or holds a NUL byte, and data that is no string, "
  .. "raise SandboxValidationError", function(t)
  local session = t:session()
  for _, path in ipairs { "", "a\0b" } do
    t:raises("SandboxValidationError", "get_file of a bad path", session.get_file, session, path)
    t:raises("SandboxValidationError", "put_file of a bad path", session.put_file, session, path,
      "x")
  end
  t:raises("SandboxValidationError", "put_file of data that is a number", session.put_file, session,
    "f", 5)
end)

return cases
