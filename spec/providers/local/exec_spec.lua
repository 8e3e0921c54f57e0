-- SPDX-License-Identifier: MIT
-- proves: A1, A5, X1, X3, X4, X6, X7, X18, E2, E3

local helper = require "spec.helper"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, failure = support.child, support.failure

describe("local exec", function()
  local session

  before_each(function() session = support.session() end)
  after_each(support.cleanup)

  local function run(argv, options)
    options = options or {}
    options.timeout_seconds = options.timeout_seconds or 30
    return session:exec(argv, options)
  end

  local function refused(expected, argv, options)
    local err = failure("SandboxValidationError", session.exec, session, argv, options)
    local text = tostring(err)
    for _, path in ipairs(expected) do
      assert.is_truthy(text:find(path, 1, true), text .. " <- " .. path)
    end
    return err
  end

  describe("arguments", function()
    it("need an argv of strings and a deadline", function()
      refused({ "argv" }, nil, { timeout_seconds = 1 })
      refused({ "argv" }, {}, { timeout_seconds = 1 })
      refused({ "argv" }, "true", { timeout_seconds = 1 })
      refused({ "argv[1]" }, { "" }, { timeout_seconds = 1 })
      refused({ "argv[2]" }, { "true", 1 }, { timeout_seconds = 1 })
      refused({ "argv[2]" }, { "true", sbx.secret("x") }, { timeout_seconds = 1 })
      refused({ "argv" }, { "true", nil, "b" }, { timeout_seconds = 1 })
      refused({ "argv" }, { "true", name = "b" }, { timeout_seconds = 1 })
      refused({ "timeout_seconds", "required" }, { "true" }, {})
      refused({ "options" }, { "true" })
    end)

    it("need a deadline that is finite and greater than 0", function()
      for _, seconds in ipairs { 0, -1, math.huge, -math.huge, 0 / 0, "1", true } do
        refused({ "timeout_seconds" }, { "true" }, { timeout_seconds = seconds })
      end
    end)

    it("take a deadline of a fraction, of a year and beyond what a clock holds", function()
      for _, seconds in ipairs { 9.5, 365 * 86400, 2 ^ 31, 2 ^ 32 + 1, 1e18, 1e300 } do
        assert.equal(0, run({ "true" }, { timeout_seconds = seconds }).exit_code)
      end
    end)

    it("hold no NUL byte", function()
      refused({ "argv[1]" }, { "tr\0ue" }, { timeout_seconds = 1 })
      refused({ "argv[3]" }, { "printf", "%s", "a\0b" }, { timeout_seconds = 1 })
      refused({ "cwd" }, { "true" }, { timeout_seconds = 1, cwd = "a\0b" })
      refused({ "env.A" }, { "true" }, { timeout_seconds = 1, env = { A = "a\0b" } })
      refused({ "env.A" }, { "true" }, { timeout_seconds = 1, env = { ["A\0B"] = "1" } })
    end)

    it("need names of variables that are names", function()
      refused({ "env" }, { "true" }, { timeout_seconds = 1, env = { [""] = "1" } })
      refused({ "env.A" }, { "true" }, { timeout_seconds = 1, env = { ["A=B"] = "1" } })
      refused({ "env[1]" }, { "true" }, { timeout_seconds = 1, env = { "A=1" } })
      refused({ "env.A" }, { "true" }, { timeout_seconds = 1, env = { A = 1 } })
      refused({ "env" }, { "true" }, { timeout_seconds = 1, env = "A=1" })
    end)

    it("are known and of their type", function()
      refused({ "timeout", "unknown" }, { "true" }, { timeout_seconds = 1, timeout = 1 })
      refused({ "stdin" }, { "true" }, { timeout_seconds = 1, stdin = 1 })
      refused({ "cwd" }, { "true" }, { timeout_seconds = 1, cwd = "" })
      refused({ "wait" }, { "true" }, { timeout_seconds = 1, wait = "never" })
    end)

    it("are refused with all faults at once and before anything starts", function()
      local err = refused({ "argv[2]", "timeout_seconds", "cwd", "env.B", "color" },
        { "touch", 1 }, { timeout_seconds = 0, cwd = "", env = { B = 2 }, color = "red" })
      assert.equal(5, #err.faults)
      refused({ "env.A" }, { "touch", "ran" }, { timeout_seconds = 5, env = { A = "\0" } })
      assert.is_nil(uv.fs_stat(session.workspace_path .. "/ran"))
    end)

    it("show no value of a secret in a refusal", function()
      local err = refused({ "env.TOKEN" }, { "true" },
        { timeout_seconds = 1, env = { TOKEN = sbx.secret("hush\0hush") } })
      assert.is_nil(tostring(err):find("hush", 1, true))
    end)

    it("are not changed, and a later change of them reaches nothing", function()
      local argv, env = { "sh", "-c", "echo $A" }, { A = "1" }
      local options = { timeout_seconds = 30, env = env }
      assert.equal("1\n", session:exec(argv, options).stdout)
      assert.same({ "sh", "-c", "echo $A" }, argv)
      assert.same({ timeout_seconds = 30, env = { A = "1" } }, options)
    end)

    it("reach the command byte by byte", function()
      local odd = {}
      for byte = 1, 255 do odd[byte] = string.char(byte) end
      local all = table.concat(odd)
      local r = run({ "printf", "%s|", all, "", "a b", "*", "$HOME", "\n", "-n" })
      assert.equal(all .. "||a b|*|$HOME|\n|-n|", r.stdout)
    end)
  end)

  describe("exit code", function()
    it("is the command's own", function()
      for _, code in ipairs { 0, 1, 2, 77, 124, 125, 126, 127, 128, 137, 255 } do
        local r = run(child("exit", code))
        assert.equal(code, r.exit_code)
        assert.equal("", r.stdout)
        assert.equal("", r.stderr)
      end
    end)

    it("is 128 + N after signal N", function()
      for _, signal in ipairs { 1, 2, 3, 6, 9, 11, 13, 14, 15, 34, 64 } do
        assert.equal(128 + signal, run(child("kill-self", signal)).exit_code)
      end
    end)
  end)

  describe("of what cannot be run", function()
    local function put(name, text, mode)
      local path = session.workspace_path .. "/" .. name
      helper.write_file(path, text)
      assert(uv.fs_chmod(path, tonumber(mode, 8)))
      return path
    end

    local function ends(code, argv, options)
      local r = run(argv, options)
      assert.equal(code, r.exit_code, argv[1])
      assert.equal("", r.stdout)
      assert.matches("^[^\n]+\n$", r.stderr)
      assert.is_truthy(r.stderr:find(argv[1], 1, true), r.stderr)
      return r
    end

    it("gives 127 for what is not found", function()
      ends(127, { "no-such-program" })
      ends(127, { "/no/such/program" })
      ends(127, { "./no-such-program" })
      ends(127, { "/etc/passwd/x" })
      assert(uv.fs_symlink("nowhere", session.workspace_path .. "/dangling"))
      ends(127, { "./dangling" })
      assert(uv.fs_symlink("loop", session.workspace_path .. "/loop"))
      ends(127, { "./loop" })
      assert.equal(127, run({ ("x"):rep(300) }).exit_code)
      assert.equal(127, run({ "./" .. ("x"):rep(5000) }).exit_code)
    end)

    it("gives 126 for what cannot be executed", function()
      ends(126, { "/tmp" })
      ends(126, { "." })
      ends(126, { "/dev/null" })
      put("plain", "#!/bin/sh\necho ran\n", "644")
      ends(126, { "./plain" })
      put("no-interpreter", "#!/no/such/interpreter\n", "755")
      assert.matches("interpreter", ends(126, { "./no-interpreter" }).stderr)
      put("no-magic", "echo ran\n", "755")
      ends(126, { "./no-magic" })
      put("empty", "", "755")
      ends(126, { "./empty" })
      put("broken", "\127ELF\2\1\1" .. ("\0"):rep(100), "755")
      ends(126, { "./broken" })
    end)

    it("names nothing of the host program's own", function()
      local r = run({ "no-such-program" })
      assert.is_nil(r.stderr:find("luajit", 1, true))
      assert.is_nil(r.stderr:find("busted", 1, true))
    end)

    it("leaves the found but unusable behind the one that works, as a shell does", function()
      uv.fs_mkdir(session.workspace_path .. "/a", 493)
      uv.fs_mkdir(session.workspace_path .. "/b", 493)
      put("a/tool", "#!/bin/sh\necho a\n", "644")
      put("b/tool", "#!/bin/sh\necho b\n", "755")
      local path = session.workspace_path
      local env = { PATH = ("%s/none:%s/a:%s/b:/bin"):format(path, path, path) }
      assert.equal("b\n", run({ "tool" }, { env = env }).stdout)
      uv.fs_unlink(path .. "/b/tool")
      ends(126, { "tool" }, { env = env })
    end)

    it("looks argv[0] up in the command's own PATH", function()
      uv.fs_mkdir(session.workspace_path .. "/bin", 493)
      put("bin/sbx-spec-tool", "#!/bin/sh\necho found $0\n", "755")
      ends(127, { "sbx-spec-tool" })
      local r = run({ "sbx-spec-tool" },
        { env = { PATH = "/bin:" .. session.workspace_path .. "/bin" } })
      assert.equal("found " .. session.workspace_path .. "/bin/sbx-spec-tool\n", r.stdout)
      ends(127, { "true" }, { env = { PATH = "" } })
      ends(127, { "true" }, { env = { PATH = "/no/such:/neither" } })
      assert.equal(0, run({ "/bin/true" }, { env = { PATH = "" } }).exit_code)
    end)

    it("looks a relative argv[0] up from the command's cwd", function()
      uv.fs_mkdir(session.workspace_path .. "/sub", 493)
      put("sub/here", "#!/bin/sh\npwd\n", "755")
      assert.equal(session.workspace_path .. "/sub\n",
        run({ "./here" }, { cwd = "sub" }).stdout)
      assert.equal(session.workspace_path .. "\n", run({ "sub/here" }).stdout)
      ends(127, { "./here" })
    end)

    it("ends the interactive call alike", function()
      local handle = session:exec_start({ "no-such-program" }, { timeout_seconds = 30 })
      local got = support.collect(handle)
      assert.equal(127, got.exit_code)
      assert.equal(1, got.exits)
      assert.matches("no%-such%-program", got.stderr)
      failure("SandboxError", handle.write_stdin, handle, "x")
      handle:close_stdin()
      handle:kill()
    end)
  end)

  describe("cwd", function()
    local outside

    before_each(function() outside = helper.tmpdir() end)

    local function cwd_of(cwd)
      return (run(child("print-cwd"), { cwd = cwd }).stdout:gsub("\n$", ""))
    end

    local function cwd_refused(cwd, ...)
      local err = failure("SandboxError", run, { "true" }, { cwd = cwd })
      assert.is_truthy(err.message:find("cwd", 1, true), err.message)
      for _, text in ipairs { ... } do
        assert.is_truthy(err.message:find(text, 1, true), err.message)
      end
    end

    it("is the workspace unless told, and relative to it", function()
      uv.fs_mkdir(session.workspace_path .. "/a", 493)
      uv.fs_mkdir(session.workspace_path .. "/a/b c", 493)
      assert.equal(session.workspace_path, cwd_of(nil))
      assert.equal(session.workspace_path, cwd_of("."))
      assert.equal(session.workspace_path .. "/a", cwd_of("a/"))
      assert.equal(session.workspace_path .. "/a/b c", cwd_of("a/./b c"))
      assert.equal(session.workspace_path .. "/a", cwd_of("a/b c/.."))
    end)

    it("may be absolute, which is the caller's own affair", function()
      assert.equal(outside, cwd_of(outside))
      assert.equal("/", cwd_of("/"))
    end)

    it("cannot lead outside when relative", function()
      uv.fs_symlink(outside, session.workspace_path .. "/out")
      uv.fs_symlink("../../..", session.workspace_path .. "/up")
      uv.fs_mkdir(session.workspace_path .. "/in", 493)
      uv.fs_symlink("in", session.workspace_path .. "/link")
      for _, cwd in ipairs { "..", "../..", "in/../..", "out", "up", "out/x", "../no/such" } do
        cwd_refused(cwd, "outside")
      end
      assert.equal(session.workspace_path .. "/in", cwd_of("link"))
    end)

    it("must be there and be a directory", function()
      helper.write_file(session.workspace_path .. "/file", "x")
      cwd_refused("no-such", "no-such", "ENOENT")
      cwd_refused("/no/such", "/no/such")
      cwd_refused("file", "ENOTDIR")
      cwd_refused("file/x", "ENOTDIR")
      cwd_refused("/etc/passwd", "ENOTDIR")
    end)

    it("may be lost while the command runs", function()
      uv.fs_mkdir(session.workspace_path .. "/gone", 493)
      local r = run({ "sh", "-c", "rmdir ../gone && echo ok" }, { cwd = "gone" })
      assert.equal("ok\n", r.stdout)
    end)
  end)

  describe("input", function()
    it("is end-of-file when none is given", function()
      assert.equal("0\n", run(child("read-all")).stdout)
      assert.equal("0\n", run(child("read-all"), { stdin = "" }).stdout)
      assert.equal("", run({ "cat" }).stdout)
    end)

    it("comes back whole from cat at every size around a pipe's", function()
      for _, size in ipairs { 1, 4095, 4096, 4097, 65535, 65536, 65537, 131072, 1000003 } do
        local data = support.pattern(size)
        local r = run({ "cat" }, { stdin = data })
        assert.is_true(r.stdout == data, size .. " bytes")
      end
    end)

    it("passes every byte", function()
      local bytes = {}
      for byte = 0, 255 do bytes[byte + 1] = string.char(byte) end
      local data = table.concat(bytes):rep(700) .. "\r\n\0"
      assert.is_true(run({ "cat" }, { stdin = data }).stdout == data)
    end)

    it("is dropped where the command does not read it", function()
      local data = ("x"):rep(8 * 1024 * 1024)
      assert.equal(0, run({ "true" }, { stdin = data }).exit_code)
      assert.equal(7, run(child("head", 1, "exit", 7), { stdin = data }).exit_code)
      assert.equal("x", run({ "head", "-c", "1" }, { stdin = data }).stdout)
      local r = run(child("close-stdin", "spew", 300000, "sleep", 0.2, "exit", 4),
        { stdin = data })
      assert.equal(4, r.exit_code)
      assert.is_true(r.stdout == support.pattern(300000))
    end)

    it("is dropped by a command that dies of a signal", function()
      local r = run(child("head", 10, "kill-self", 15), { stdin = ("x"):rep(1024 * 1024) })
      assert.equal(143, r.exit_code)
    end)

    it("is fed on while output is read and after output is closed", function()
      local data = support.pattern(2 * 1024 * 1024)
      local r = run(child("spew", 2 * 1024 * 1024, "echo", "spew-err", 70000),
        { stdin = data })
      assert.is_true(r.stdout == data .. data)
      assert.is_true(r.stderr == support.pattern(70000))
      assert.equal("", run(child("close-stdout", "close-stderr", "head", #data),
        { stdin = data }).stdout)
    end)
  end)

  describe("output", function()
    it("comes whole, each stream in its order", function()
      local r = run(child("alternate", 2000))
      local out, err = {}, {}
      for i = 1, 2000 do
        out[i], err[i] = "out " .. i .. "\n", "err " .. i .. "\n"
      end
      assert.equal(table.concat(out), r.stdout)
      assert.equal(table.concat(err), r.stderr)
    end)

    it("comes whole from both streams at once and in any size", function()
      for _, size in ipairs { 0, 1, 65535, 65536, 65537, 5000001 } do
        local r = run(child("spew-err", size, "spew", size))
        assert.is_true(r.stdout == support.pattern(size), size .. " bytes of stdout")
        assert.is_true(r.stderr == support.pattern(size), size .. " bytes of stderr")
      end
    end)

    it("ends with streams closed early and late", function()
      assert.equal("", run(child("close-stdout", "close-stderr", "sleep", 0.1)).stdout)
      local r = run(child("spew", 5, "close-stdout", "spew-err", 5, "sleep", 0.05))
      assert.equal(5, #r.stdout)
      assert.equal(5, #r.stderr)
    end)

    it("includes what a process of the group writes after the exit", function()
      local r = run({ "sh", "-c", "(sleep 0.2; echo late) & echo early" })
      assert.equal("early\nlate\n", r.stdout)
      assert.equal(0, r.exit_code)
    end)
  end)

  describe("wait = exit", function()
    it("ends at the exit and lets the rest run on", function()
      local seconds, r = support.timed(run,
        { "sh", "-c", "(sleep 1; echo more; echo done > mark) & echo out; echo err >&2; exit 6" },
        { wait = "exit" })
      assert.is_true(seconds < 0.9, seconds .. " s")
      assert.equal(6, r.exit_code)
      assert.equal("out\n", r.stdout)
      assert.equal("err\n", r.stderr)
      -- What runs on can write to its stdout: it has not lost its reader.
      assert.is_true(support.wait_blocking(function()
        return uv.fs_stat(session.workspace_path .. "/mark") ~= nil
      end, 5))
    end)

    it("loses nothing that was written before the exit", function()
      for _ = 1, 20 do
        local r = run(child("fork-bg", 0.3, "spew", 60000, "spew-err", 60000), { wait = "exit" })
        assert.is_true(r.stdout == support.pattern(60000))
        assert.is_true(r.stderr == support.pattern(60000))
      end
    end)

    it("does not wait for the deadline of a held output", function()
      local before = support.count_own("fd")
      local seconds, r = support.timed(run, child("fork-bg", 1.5), { wait = "exit",
        timeout_seconds = 1 })
      assert.equal(0, r.exit_code)
      assert.is_true(seconds < 0.9, seconds .. " s")
      assert.is_true(support.wait_blocking(function()
        return support.count_own("fd") <= before
      end, 5), "its pipes stay open once nobody writes")
    end)
  end)

  describe("in tasks", function()
    it("runs side by side, each with its own result", function()
      local seconds = support.timed(sbx.run, function()
        local tasks = {}
        for i = 1, 20 do
          tasks[i] = sbx.spawn(run, { "sh", "-c", ("sleep 0.3; echo %d; exit %d"):format(i, i) })
        end
        for i, r in ipairs(sbx.gather(tasks)) do
          assert.equal(i .. "\n", r.stdout)
          assert.equal(i, r.exit_code)
        end
      end)
      assert.is_true(seconds < 4, seconds .. " s")
    end)
  end)
end)
