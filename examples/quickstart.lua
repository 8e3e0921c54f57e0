-- SPDX-License-Identifier: MIT
--
-- A first look at sbxlua, on real input: this project's own source tree goes into a session as a
-- tar file, a program there counts files and lines by language, and its report comes back.
--
--   make run        or:   build/release/sbxlua examples/quickstart.lua
--
-- It uses provider `local`, which runs commands directly on the host, with no isolation. The
-- default policy asks for at least isolation "container", so the floor is lowered here; without
-- that, create_session raises SandboxSpecRejectedError, "provider cannot honor: local: isolation
-- "container" …". Lower it for code you trust as much as your own shell, and for no other.

local sbx = require "sbx"

-- Counts what the tar file lists. Only sh, tar and awk are needed.
local COUNT_SCRIPT = [=[
mkdir tree && tar -xf source.tar -C tree && tar -tf source.tar >names || exit 1
awk '
  BEGIN {
    by_ending["c"] = by_ending["h"] = "C"; by_ending["lua"] = by_ending["rockspec"] = "Lua"
    by_ending["sh"] = "Shell"; by_ending["md"] = "Markdown"
    OFS = "\t"
  }
  /\/$/ { next }                                   # a directory
  {
    path = "tree/" $0; lines = 0; first = ""
    while ((getline text <path) > 0) if (++lines == 1) first = text
    close(path)
    ending = $0; sub(/.*[.\/]/, "", ending)
    if (ending in by_ending) language = by_ending[ending]
    else if (ending == "Makefile") language = "Make"
    else if (first ~ /^#!.*sh$/) language = "Shell"
    else language = "other"
    files[language]++; total[language] += lines
    if (++done % 25 == 0) { print "counted " done " files"; fflush() }
  }
  END {
    print "counted " done " files: done"
    for (language in files) print language, files[language], total[language] >"report.tsv"
  }
' names
]=]

local function project_root()
  local directory = arg[0]:match("^(.*)/[^/]*$") or "."
  return directory .. "/.."
end

-- The source tree as a tar file, made by the host's own tar.
local function pack_sources()
  local quoted = "'" .. project_root():gsub("'", "'\\''") .. "'"
  local pipe = assert(io.popen("tar -C " .. quoted
    .. " --exclude=./build --exclude=./.git -cf - . 2>/dev/null", "r"))
  local data = pipe:read("*a")
  pipe:close()
  assert(#data > 0, "the host's tar gave nothing")
  return data
end

-- The processes of the host whose working directory is below a path.
local function processes_in(path)
  local count = 0
  local pipe = assert(io.popen("ls -l /proc/[0-9]*/cwd 2>/dev/null", "r"))
  for line in pipe:lines() do
    if line:find(path, 1, true) then count = count + 1 end
  end
  pipe:close()
  return count
end

local function exists(path)
  local file = io.open(path, "r")
  if file then file:close() end
  return file ~= nil
end

local function print_table(report)
  local rows, format = {}, "  %-10s %8s %10s"
  for language, files, lines in report:gmatch("([^\t\n]+)\t(%d+)\t(%d+)\n") do
    rows[#rows + 1] = { language, files, lines }
  end
  assert(#rows > 0, "the report is empty")
  table.sort(rows, function(a, b) return tonumber(a[3]) > tonumber(b[3]) end)
  print(format:format("language", "files", "lines"))
  for _, row in ipairs(rows) do
    print(format:format(unpack(row)))
  end
end

local function count_lines(session)
  local sources = pack_sources()
  session:put_file("source.tar", sources)
  session:put_file("count.sh", COUNT_SCRIPT)
  print(("uploaded   source.tar, %d bytes"):format(#sources))

  -- An interactive exec: its output is here as soon as the command writes it.
  local handle = session:exec_start({ "sh", "count.sh" }, { timeout_seconds = 30 })
  for item in handle:output() do
    if item.exit_code then
      assert(item.exit_code == 0, "count.sh ended with exit code " .. item.exit_code)
    else
      io.write((item.data:gsub("[^\n]+", "  " .. item.stream .. ": %0")))
    end
  end
  handle:kill() -- gives its resources back
  print_table(session:get_file("report.tsv"))
end

local function overrun(session)
  local command = { "sh", "-c", "while :; do echo tick; sleep 0.1; done" }
  local ok, err = pcall(session.exec, session, command, { timeout_seconds = 0.5 })
  assert(not ok and sbx.errors.is(err, "SandboxExecTimeoutError"), "no deadline was met")
  print(("deadline   stopped after %g s: %d bytes on stdout, %d on stderr"):format(
    err.timeout_seconds, err.stdout_len, err.stderr_len))
end

local function end_session(session)
  local workspace = session.workspace_path
  session:exec_start({ "sleep", "1000" }, { timeout_seconds = 2000 }) -- still runs at the end
  local running = processes_in(workspace)
  session:destroy()
  local left = processes_in(workspace)
  print(("destroyed  processes in the workspace: %d before, %d after; workspace directory: %s")
    :format(running, left, exists(workspace) and "still there" or "gone"))
  assert(running == 1 and left == 0 and not exists(workspace), "the session left something behind")
end

sbx.sandboxes.configure { sandbox_module = "sbx.providers.local", isolation = "none" }
print "policy     isolation floor set to none: commands run on this host, not isolated"

sbx.run(function()
  local sandbox = sbx.sandboxes.require_sandbox()
  local session = sandbox:create_session {
    image = "host", workspace_key = "quickstart", durability = "ephemeral",
    network = "egress", ttl_seconds = 300,
  }
  print("session    " .. session.id .. " in " .. session.workspace_path)
  local ok, err = pcall(function()
    count_lines(session)
    overrun(session)
    end_session(session)
  end)
  session:destroy() -- once more is fine; it matters when something above failed
  if not ok then error(err, 0) end
end)
