-- SPDX-License-Identifier: MIT
-- proves: X2, X4, E2, L3, M3
-- What of the host program reaches a command: nothing but what the page lists.

local helper = require "spec.helper"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, run_lua = support.child, support.run_lua

describe("local exec's surroundings", function()
  after_each(support.cleanup)

  local function env_of(session, env)
    local r = session:exec(child("print-env"), { timeout_seconds = 30, env = env })
    local found, count = {}, 0
    for name, value in r.stdout:gmatch("([^=\n]+)=([^\n]*)\n") do
      assert.is_nil(found[name], name .. " stands there twice")
      found[name] = value
      count = count + 1
    end
    return found, count
  end

  describe("environment", function()
    it("is exactly PATH and HOME", function()
      uv.os_setenv("SBX_SPEC_MARK", "seen")
      finally(function() uv.os_unsetenv("SBX_SPEC_MARK") end)
      local session = support.session()
      assert.same({ PATH = support.BASE_PATH, HOME = session.workspace_path }, (env_of(session)))
    end)

    it("takes the session's, then the call's; the later wins", function()
      local session = support.session { env = { A = "spec", B = sbx.secret("spec"), HOME = "/" } }
      assert.same({ PATH = support.BASE_PATH, HOME = "/", A = "spec", B = "spec" },
        (env_of(session)))
      assert.same({ PATH = "/bin", HOME = "/", A = "call", B = "s3cr3t", C = "" },
        (env_of(session, { A = "call", B = sbx.secret("s3cr3t"), C = "", PATH = "/bin" })))
      assert.same({ PATH = support.BASE_PATH, HOME = "/", A = "spec", B = "spec" },
        (env_of(session)))
    end)

    it("takes names and values that a shell would trip over", function()
      local session = support.session()
      local env = { ["A;touch x"] = "1", ["A B"] = "$(touch x)", ["é"] = "'; touch x; '",
        ["-n"] = "=" }
      local found = env_of(session, env)
      for name, value in pairs(env) do
        assert.equal(value, found[name])
      end
      assert.is_nil(uv.fs_stat(session.workspace_path .. "/x"))
      local r = session:exec({ "sh", "-c", 'printf "%s" "$V"' },
        { timeout_seconds = 30, env = { V = "a\nb\255\1" } })
      assert.equal("a\nb\255\1", r.stdout)
    end)

    it("takes thousands of variables", function()
      local env = {}
      for i = 1, 3000 do env["V" .. i] = tostring(i) end
      local found, count = env_of(support.session(), env)
      assert.equal(3002, count)
      assert.equal("3000", found.V3000)
    end)

    it("keeps secrets off the command line that others can read", function()
      local session = support.session { env = { TOKEN = sbx.secret("s3cr3t-spec") } }
      local handle = session:exec_start(child("write-pid", "pid", "sleep", 30),
        { timeout_seconds = 30, env = { OTHER = sbx.secret("s3cr3t-call") } })
      local pid = support.read_pid(session, "pid")
      local line = helper.read_file("/proc/" .. pid .. "/cmdline")
      assert.is_nil(line:find("s3cr3t", 1, true))
      assert.is_nil(tostring(handle):find("s3cr3t", 1, true))
      handle:kill()
    end)
  end)

  describe("descriptors", function()
    local function targets(session, options)
      local r = session:exec(child("print-fds"), options)
      local found = {}
      for number, target in r.stdout:gmatch("(%d+) ([^\n]*)\n") do
        found[tonumber(number)] = target
      end
      return found
    end

    it("are the three standard ones, whatever the program has open", function()
      local session = support.session()
      local files = {}
      for i = 1, 20 do files[i] = assert(io.open("/dev/null", "rb")) end -- not close-on-exec
      finally(function() for _, file in ipairs(files) do file:close() end end)
      local found = targets(session, { timeout_seconds = 30, stdin = "x" })
      local numbers = {}
      for number in pairs(found) do numbers[#numbers + 1] = number end
      table.sort(numbers)
      assert.same({ 0, 1, 2 }, numbers)
      for number = 0, 2 do assert.matches("^pipe:", found[number]) end
    end)

    it("are pipes for the interactive call, and no handle's are another's", function()
      local session = support.session()
      local first = session:exec_start({ "cat" }, { timeout_seconds = 30 })
      local second = session:exec_start(child("print-fds"), { timeout_seconds = 30 })
      local got = support.collect(second)
      local _, lines = got.stdout:gsub("\n", "")
      assert.equal(3, lines)
      first:close_stdin()
      assert.equal(0, support.collect(first).exit_code)
      first:kill()
      second:kill()
    end)

    it("are right in a program that has closed its own", function()
      local stdout, status = run_lua([[
        local ffi = require "ffi"
        ffi.cdef "int close(int);"
        local s = new_session()
        local out = io.open("result", "w")
        for _, fd in ipairs { 0, 1, 2 } do ffi.C.close(fd) end
        for _, input in ipairs { false, "in" } do
          local r = s:exec({ "sh", "-c", "cat; echo out; echo err >&2" },
            { timeout_seconds = 10, stdin = input or nil })
          out:write(r.exit_code, r.stdout, r.stderr, "|")
        end
        out:close()
        s:destroy()
      ]], { before = "cd " .. helper.shell_quote(helper.tmpdir()) .. ";",
        prefix = "sh -c '\"$@\"; s=$?; cat result; exit $s' sh" })
      assert.equal(0, status)
      assert.equal("0out\nerr\n|0inout\nerr\n|", stdout)
    end)
  end)

  describe("signals, umask and terminal", function()
    local clean = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"

    it("are the system's own here", function()
      local session = support.session()
      local r = session:exec(child("print-signals", "print-umask"), { timeout_seconds = 30 })
      assert.equal(clean .. "0022\n", r.stdout)
    end)

    it("are the system's own below a program that ignores and blocks signals", function()
      support.assert_lua(clean .. clean, [[
        local ffi = require "ffi"
        ffi.cdef "int pthread_sigmask(int, const uint64_t *, uint64_t *);"
        local s = new_session()
        local mask = ffi.new("uint64_t[16]", -1)
        ffi.C.pthread_sigmask(0, mask, nil)
        io.write(s:exec({ child, "print-signals" }, { timeout_seconds = 10 }).stdout)
        local h = s:exec_start({ child, "print-signals" }, { timeout_seconds = 10 })
        for item in h:output() do io.write(item.data or "") end
        s:destroy()
      ]], { before = "trap '' PIPE INT HUP QUIT USR1;" })
    end)

    it("are kept by the program itself", function()
      local before = helper.read_file("/proc/self/status"):match("SigBlk:%s*(%x+)")
      local umask = helper.run("umask")
      support.session():exec({ "true" }, { timeout_seconds = 30 })
      assert.equal(before, helper.read_file("/proc/self/status"):match("SigBlk:%s*(%x+)"))
      assert.equal(umask, (helper.run("umask")))
    end)

    it("has umask 022 below a program with another", function()
      support.assert_lua("0022\n077", [[
        local s = new_session()
        io.write(s:exec({ child, "print-umask" }, { timeout_seconds = 10 }).stdout)
        s:destroy()
        local ffi = require "ffi"
        ffi.cdef "unsigned umask(unsigned);"
        io.write(("%03o"):format(ffi.C.umask(0)))
      ]], { before = "umask 077;" })
    end)

    it("leads a session and a group of its own, without a terminal", function()
      local session = support.session()
      local r = session:exec(child("print-ids"), { timeout_seconds = 30 })
      local pid, parent, group, sid = r.stdout:match("^(%d+) (%d+) (%d+) (%d+)\n$")
      assert.equal(pid, group)
      assert.equal(pid, sid)
      assert.equal(tostring(uv.os_getpid()), parent)
      r = session:exec({ "sh", "-c", ": </dev/tty" }, { timeout_seconds = 30 })
      assert.not_equal(0, r.exit_code)
    end)
  end)

  it("has an unreadable status where the host program ignores SIGCHLD", function()
    support.assert_lua("SandboxError ECHILD\nSandboxError ECHILD\n127\n", [[
      local ffi = require "ffi"
      ffi.cdef "void (*signal(int, void (*)(int)))(int);"
      local s = new_session()
      ffi.C.signal(17, ffi.cast("void (*)(int)", 1))
      local function try(fn)
        local ok, err = pcall(fn)
        print(ok and "no error" or err.class_name .. " " .. err.message:match("%((%u+)%)$"))
      end
      try(function() return s:exec({ "true" }, { timeout_seconds = 10 }) end)
      local h = s:exec_start({ "true" }, { timeout_seconds = 10 })
      try(function() for _ in h:output() do end end)
      h:kill()
      print(s:exec({ "no-such-program" }, { timeout_seconds = 10 }).exit_code)
      s:destroy()
    ]])
  end)

  it("does not suffer from an ignored SIGCHLD that sbxlua inherits", function()
    support.assert_lua("3\n", [[
      local s = new_session()
      print(s:exec({ "sh", "-c", "exit 3" }, { timeout_seconds = 10 }).exit_code)
      s:destroy()
    ]], { prefix = "env --ignore-signal=CHLD" })
  end)

  it("answers clearly in a forked child of the program", function()
    local stdout, status = run_lua([[
      local ffi = require "ffi"
      ffi.cdef "int fork(void); int waitpid(int, int *, int); void _exit(int);"
      local s = new_session()
      s:exec({ "true" }, { timeout_seconds = 10 })
      io.stdout:flush()
      local pid = ffi.C.fork()
      if pid == 0 then
        local ok, err = pcall(s.exec, s, { "true" }, { timeout_seconds = 10 })
        print(ok, tostring(err):match("forked") ~= nil)
        io.stdout:flush()
        ffi.C._exit(0)
      end
      ffi.C.waitpid(pid, nil, 0)
      print(s:exec({ "true" }, { timeout_seconds = 10 }).exit_code)
      s:destroy()
    ]])
    assert.equal("false\ttrue\n0\n", stdout)
    assert.equal(0, status)
  end)
end)
