-- SPDX-License-Identifier: MIT
-- proves: O3, A5, X4, P2
-- `sbxlua run` as a program of its own: streams, exit codes, and that nothing of it is left.

local helper = require "spec.helper"
local uv = require "luv"

local quote = helper.shell_quote

describe("sbxlua run", function()
  local root, work

  before_each(function()
    root = helper.tmpdir()
    work = helper.tmpdir()
  end)

  local function child(verbs)
    return "-- " .. quote(helper.fixture("child")) .. " " .. verbs
  end

  -- The command line of a run with provider local, under a root of the test; settings come before.
  local function line(words, settings)
    return ("env SANDBOX_LOCAL_ROOT=%s TAI_MCP_SANDBOX=sbx.providers.local "
      .. "TAI_MCP_SANDBOX_ISOLATION=none %s %s run %s"):format(quote(root), settings or "",
      quote(helper.sbxlua()), words)
  end

  local function left_workspaces()
    local names = {}
    local request = uv.fs_scandir(root .. "/.ephemeral")
    while request do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      names[#names + 1] = name
    end
    return names
  end

  -- stdout, stderr and exit code of a shell line; whatever it was, no workspace is left.
  local function shell(text)
    local out, status = helper.run("{ " .. text .. "\n} 2>" .. quote(work .. "/stderr"))
    assert.same({}, left_workspaces())
    return out, helper.read_file(work .. "/stderr"), status
  end

  local function run(words, settings)
    return shell(line(words, settings))
  end

  -- Starts a run with its stdout in a file; a table with the pid.
  local function start(words)
    local path = work .. "/out"
    local pid_file = work .. "/pid"
    local status_file = work .. "/status"
    local text = ("{ env --default-signal=INT sh -c 'echo $$ >%s; exec \"$@\"' sh %s >%s 2>&1; "
      .. "echo $? >%s; } </dev/null >/dev/null 2>&1 &"):format(pid_file, line(words), path,
      status_file)
    helper.run(text)
    local function read(file)
      return uv.fs_access(file, "R") and helper.read_file(file) or ""
    end
    return {
      output = function() return read(path) end,
      pid = function() return tonumber(read(pid_file)) end,
      status = function() return tonumber(read(status_file)) end,
    }
  end

  local function is_running(pid)
    local file = io.open("/proc/" .. pid .. "/stat", "r")
    if not file then return false end
    local state = file:read("*a"):match("%) (%S)")
    file:close()
    return state ~= "Z"
  end

  describe("streams", function()
    it("passes both outputs and the exit code on", function()
      local out, err, status = run("-- sh -c 'echo out; echo err >&2; exit 3'")
      assert.same({ "out\n", "err\n", 3 }, { out, err, status })
    end)

    it("passes output on as it comes", function()
      local running = start("-- sh -c 'echo first; exec sleep 20'")
      assert.is_truthy(helper.wait_until(function() return running.output() == "first\n" end))
      uv.kill(running.pid(), "sigterm")
      assert.is_truthy(helper.wait_until(function() return running.status() end))
    end)

    it("gives end-of-file as stdin unless asked", function()
      local out, _, status = shell("printf unwanted | " .. line("-- cat"))
      assert.same({ "", 0 }, { out, status })
    end)

    for _, from in ipairs { "file", "pipe" } do
      it("passes bytes unchanged from a " .. from, function()
        local input, output = quote(work .. "/in"), quote(work .. "/back")
        local feed = from == "pipe" and "cat " .. input .. " | " .. line("--stdin -- cat")
          or line("--stdin -- cat") .. " <" .. input
        local _, err, status = shell("head -c 5000000 /dev/urandom >" .. input .. "; " .. feed
          .. " | cat >" .. output .. "; cmp " .. input .. " " .. output)
        assert.same({ "", 0 }, { err, status })
      end)
    end

    it("reads stdin while output flows", function()
      local out = shell("{ echo one; sleep 0.2; echo two; } | "
        .. line([[--stdin -- sh -c 'echo ready; while read x; do echo "got $x"; done']]))
      assert.equal("ready\ngot one\ngot two\n", out)
    end)

    it("drops the input that the command does not want", function()
      local out, err, status = shell("yes | " .. line("--stdin -- head -c 2"))
      assert.same({ "y\n", "", 0 }, { out, err, status })
    end)

    it("does not wait for a stdin that never ends", function()
      local fifo = quote(work .. "/fifo")
      local _, _, status = shell("mkfifo " .. fifo .. "; "
        .. line("--stdin -- true", "timeout 10") .. " <>" .. fifo)
      assert.equal(0, status)
    end)

    it("leaves a pipe that others share blocking", function()
      local out = shell("{ " .. line("-- sleep 0.5") .. " & sleep 0.25; "
        .. "grep flags /proc/self/fdinfo/1; wait; } | cat")
      local flags = tonumber(out:match("^flags:%s+(%d+)\n$"), 8)
      assert.is_true(flags % 4096 < 2048, "O_NONBLOCK is set")
    end)

    it("ends with 141 when nobody reads its output", function()
      local out, err, status = shell("{ " .. line("-- yes") .. "; echo $? >&2; } | head -1")
      assert.same({ "y\n", "141\n", 0 }, { out, err, status })
    end)

    it("fails when its output cannot be written", function()
      local _, err, status = shell(line("-- yes") .. " >/dev/full")
      assert.equal(125, status)
      assert.matches("^sbxlua: cannot write to standard output: ENOSPC[^\n]*\n$", err)
    end)
  end)

  describe("command", function()
    it("gets the options' environment and directory", function()
      local out = run("--env A=1 --env=B=x=y --cwd / -- sh -c 'echo $A $B; pwd'")
      assert.equal("1 x=y\n/\n", out)
    end)

    it("may follow the options without --", function()
      assert.equal("-n --help\n", (run("printf '%s %s\\n' -n --help")))
    end)

    it("that is missing gives 127, one that cannot be executed 126", function()
      local _, err, status = run("-- no-such-command")
      assert.equal(127, status)
      assert.matches("no%-such%-command", err)
      _, err, status = run("-- /etc/passwd")
      assert.equal(126, status)
      assert.matches("/etc/passwd", err)
    end)

    it("killed by a signal gives 128 + N", function()
      local _, _, status = run("-- sh -c 'kill -TERM $$'")
      assert.equal(143, status)
    end)

    it("is stopped at its deadline, with byte counts", function()
      local out, err, status = run("--timeout 0.4 -- sh -c 'echo hi; sleep 30'")
      assert.same({ "hi\n", 124 }, { out, status })
      assert.matches("^sbxlua: [^\n]*0.4 s %(stdout 3 bytes, stderr 0 bytes%)[^\n]*\n$", err)
    end)

    it("has the provider's default deadline", function()
      local _, err, status = run("-- sleep 30", "SANDBOX_LOCAL_EXEC_DEFAULT_TIMEOUT_SECONDS=0.3")
      assert.equal(124, status)
      assert.matches("0.3 s", err, 1, true)
    end)

    it("takes what it left in its group along", function()
      local out, _, status = run("-- sh -c 'sleep 30 >/dev/null 2>&1 & echo $!'")
      assert.equal(0, status)
      assert.is_false(is_running(tonumber(out)))
    end)
  end)

  describe("signal", function()
    for name, code in pairs { sigint = 130, sigterm = 143, sighup = 129 } do
      it(name .. " stops the command and gives " .. code, function()
        local running = start("-- sh -c 'trap \"\" INT TERM HUP; echo $$; "
          .. "while :; do sleep 1; done'")
        assert.is_truthy(helper.wait_until(function() return running.output():find("\n") end))
        uv.kill(running.pid(), name)
        assert.is_truthy(helper.wait_until(function() return running.status() end))
        assert.equal(code, running.status())
        local pid = running.output():match("^(%d+)\n$")
        assert.is_false(is_running(tonumber(pid)))
        assert.same({}, left_workspaces())
      end)
    end

    it("is obeyed while nobody reads the output", function()
      local _, err = shell("{ " .. line("-- yes", "timeout --preserve-status 0.5")
        .. "; echo $? >&2; } | sleep 3")
      assert.equal("143\n", err)
    end)

    it("is obeyed while output floods into a file", function()
      local _, _, status = shell(line("-- yes", "timeout --preserve-status 0.3") .. " >/dev/null")
      assert.equal(143, status)
    end)
  end)

  describe("failure", function()
    local function fails(words, pattern, settings)
      local out, err, status = run(words, settings)
      assert.same({ "", 125 }, { out, status })
      assert.matches("^sbxlua: [^\n]+\n$", err)
      assert.matches(pattern, err)
      return err
    end

    it("is told in one line, with the way out", function()
      fails("-- true", "no sandbox provider is registered: set TAI_MCP_SANDBOX.*%-%-provider",
        "TAI_MCP_SANDBOX=")
      fails("--provider no.such.module -- true", "no.such.module cannot be loaded")
      fails("--cwd nope -- true", 'cannot start in cwd "nope": No such file')
      fails("-- true", "TAI_MCP_SANDBOX_ISOLATION", "TAI_MCP_SANDBOX_ISOLATION=bad")
    end)

    it("shows a refusal whole", function()
      fails("-- true", 'provider cannot honor: local: isolation "container".*TAI_MCP_SANDBOX=',
        "TAI_MCP_SANDBOX_ISOLATION=")
      fails("--isolation none -- true", 'policy refused: isolation "none" is below the floor',
        "TAI_MCP_SANDBOX_ISOLATION=container")
      fails("--network egress -- true", "policy refused: network", "TAI_MCP_SANDBOX_EGRESS=none")
      fails("--network none -- true", 'provider cannot honor: local: network "none"')
    end)

    it("refuses what it does not know", function()
      fails("--unknown -- true", 'unknown option "%-%-unknown"')
      fails("-x -- true", 'unknown option "%-x"')
      fails("--stdin=1 -- true", "%-%-stdin takes no value")
      fails("--timeout", "%-%-timeout needs a value")
      fails("--timeout -- true", "%-%-timeout needs a value")
      fails("--timeout 0 -- true", "%-%-timeout must be a number of seconds")
      fails("--network wide -- true", "%-%-network must be one of none, internal, egress")
      fails("--", "no command given")
    end)

    it("never shows a value that may be a secret", function()
      local err = fails("--env s3cr3t -- true", "%-%-env must be NAME=VALUE")
      assert.is_nil(err:find("s3cr3t"))
    end)

    it("to read stdin stops the command", function()
      local _, err, status = shell(line("--stdin -- sleep 30") .. " </")
      assert.equal(125, status)
      assert.matches("cannot read standard input", err)
    end)
  end)

  it("prints its options and exit codes", function()
    local out, err, status = run("--help")
    assert.same({ "", 0 }, { err, status })
    for _, word in ipairs { "--provider NAME", "--stdin", "124", "141", "--help" } do
      assert.is_truthy(out:find(word, 1, true), word)
    end
  end)

  it("passes the fixture's argument list as it is", function()
    assert.equal("a b\n", (run("-- printf '%s\\n' 'a b'")))
    local _, _, status = run(child("exit 7"))
    assert.equal(7, status)
  end)
end)
