-- SPDX-License-Identifier: MIT
-- proves: X5, X6, X17, X12, L6
-- What runs out and what must not pile up; each in a program of its own.

local helper = require "spec.helper"
local support = require "spec.support.sandbox"

local function skip_sanitized()
  if helper.flavour == "asan" then pending("a sanitizer's own memory is in the way") end
end

describe("local exec at its limits", function()
  it("says that descriptors have run out, leaves nothing behind, and works again", function()
    support.assert_lua("true\ttrue\ttrue\ttrue\n0\n", [[
      local s = new_session()
      s:exec({ "true" }, { timeout_seconds = 10 })
      local handles, err = {}, nil
      for i = 1, 100 do
        local ok, got = pcall(s.exec_start, s, { "sleep", "60" }, { timeout_seconds = 60 })
        if not ok then err = got break end
        handles[i] = got
      end
      local open = count("fd")
      local one_shot_ok, one_shot = pcall(s.exec, s, { "true" }, { timeout_seconds = 10 })
      for _ = 1, 50 do
        pcall(s.exec, s, { "true" }, { timeout_seconds = 10 })
        pcall(s.exec_start, s, { "sleep", "60" }, { timeout_seconds = 60 })
      end
      print(errors.is(err, "SandboxError") and err.message:find("EMFILE", 1, true) ~= nil,
        not one_shot_ok and errors.is(one_shot, "SandboxError"), open == count("fd"),
        zombies() == 0)
      handles[1]:kill()
      handles[2]:kill()
      print(s:exec({ "true" }, { timeout_seconds = 10 }).exit_code)
      s:destroy()
    ]], { before = "ulimit -n 64;" })
  end)

  it("says that the limit of processes is reached, and works again", function()
    local works = select(2, helper.run("test $(id -u) -eq 0 && setpriv --reuid=65533 "
      .. "--clear-groups " .. helper.shell_quote(helper.sbxlua()) .. " -e '' 2>/dev/null")) == 0
    helper.must_work("setpriv", works, "needs root, setpriv and a build that others can read")
    support.assert_lua("true\ttrue\ttrue\n0\n", [[
      local s = new_session()
      local handles, err = {}, nil
      for i = 1, 100 do
        local ok, got = pcall(s.exec_start, s, { "sleep", "60" }, { timeout_seconds = 60 })
        if not ok then err = got break end
        handles[i] = got
      end
      local open = count("fd")
      for _ = 1, 50 do pcall(s.exec, s, { "true" }, { timeout_seconds = 10 }) end
      print(errors.is(err, "SandboxError")
          and err.message:find("limit of processes", 1, true) ~= nil,
        open == count("fd"), zombies() == 0)
      for i = 1, 3 do handles[i]:kill() end
      print(s:exec({ "true" }, { timeout_seconds = 10 }).exit_code)
      s:destroy()
    ]], { prefix = "prlimit --nproc=24 setpriv --reuid=65533 --clear-groups", open = true })
  end)

  it("says that arguments are too long", function()
    local session = support.session()
    finally(support.cleanup)
    local long = ("a"):rep(131071)
    local options = { timeout_seconds = 30 }
    assert.equal(0, session:exec({ "true", long }, options).exit_code)
    for _, argv in ipairs { { "true", long .. "a" }, { "/bin/true", long .. "a" } } do
      local err = support.failure("SandboxError", session.exec, session, argv, options)
      assert.matches("too long", err.message)
      assert.is_true(#err.message < 300)
      err = support.failure("SandboxError", session.exec_start, session, argv, options)
      assert.matches("too long", err.message)
    end
    local err = support.failure("SandboxError", session.exec, session, { "true" },
      { timeout_seconds = 30, env = { BIG = ("x"):rep(200 * 1024) } })
    assert.matches("too long", err.message)
    assert.is_nil(err.message:find("xxxx", 1, true))
    local many = { "true" }
    for i = 2, 300000 do many[i] = "0123456789" end
    err = support.failure("SandboxError", session.exec, session, many, options)
    assert.matches("too long", err.message)
  end)

  it("echoes 256 MiB through cat in less than four times its size #slow", function()
    skip_sanitized()
    support.assert_lua("true\ntrue\n", [[
      local s = new_session()
      local MIB = 1024 * 1024
      local data = ("0123456789abcde\n"):rep(16 * MIB)
      collectgarbage()
      collectgarbage()
      local r = s:exec({ "cat" }, { stdin = data, timeout_seconds = 60 })
      print(#data == 256 * MIB and r.stdout == data)
      local peak = status("VmHWM") * 1024
      print(peak < 4 * 256 * MIB or peak / MIB)
      s:destroy()
    ]])
  end)

  it("keeps output that nobody reads in bounded memory #slow", function()
    skip_sanitized()
    support.assert_lua("true\n157286400\t0\ntrue\n", [[
      local s = new_session()
      local MIB = 1024 * 1024
      local before = status("VmRSS")
      local h = s:exec_start({ child, "spew", "157286400" }, { timeout_seconds = 60 })
      sbx.sleep(0.2)
      while true do
        local r = s:exec({ "pgrep", "-f", "spew 157286400" }, { timeout_seconds = 10 })
        if r.exit_code ~= 0 then break end
        sbx.sleep(0.05)
      end
      print((status("VmRSS") - before) * 1024 < 16 * MIB)
      local size, exits = 0, nil
      for item in h:output() do
        if item.exit_code then exits = item.exit_code else size = size + #item.data end
      end
      print(("%d"):format(size), exits)
      print(status("VmHWM") * 1024 < 100 * MIB)
      h:kill()
      s:destroy()
    ]])
  end)

  it("leaves nothing behind after 10,000 one-shots #slow", function()
    support.assert_lua("true\ttrue\ttrue\ttrue\n", [[
      local s = new_session()
      local function look()
        collectgarbage()
        collectgarbage()
        return { count("fd"), count("task"), zombies(), status("VmRSS") }
      end
      local early
      for i = 1, 10000 do
        local r = s:exec({ "/bin/true" }, { timeout_seconds = 60 })
        assert(r.exit_code == 0 and r.stdout == "" and r.stderr == "")
        if i == 1000 then early = look() end
      end
      local late = look()
      local grown = late[4] - early[4]
      print(late[1] == early[1], late[2] == early[2], late[3] == 0, grown < 4096 or grown)
      s:destroy()
    ]])
  end)

  it("leaves nothing behind after 2,000 handles, refusals and timeouts in tasks #slow", function()
    support.assert_lua("true\ttrue\ttrue\ttrue\n", [[
      local s = new_session()
      local function look()
        collectgarbage()
        collectgarbage()
        return { count("fd"), count("task"), zombies(), status("VmRSS") }
      end
      local function round()
        sbx.run(function()
          local tasks = {}
          for i = 1, 20 do
            tasks[i] = sbx.spawn(function()
              local h = s:exec_start({ "cat" }, { timeout_seconds = 60 })
              h:write_stdin("x")
              if i % 2 == 0 then
                h:close_stdin()
                for _ in h:output() do end
              end
              h:kill()
              s:exec({ "no-such-program" }, { timeout_seconds = 60 })
              pcall(s.exec, s, { "sleep", "5" }, { timeout_seconds = 0.01 })
              pcall(sbx.timeout, 0.01, s.exec, s, { "sleep", "5" }, { timeout_seconds = 60 })
            end)
          end
          sbx.gather(tasks)
        end)
      end
      local early
      for i = 1, 100 do
        round()
        if i == 20 then early = look() end
      end
      local late = look()
      local grown = late[4] - early[4]
      print(late[1] == early[1], late[2] == early[2], late[3] == 0, grown < 4096 or grown)
      s:destroy()
    ]])
  end)

  it("stops what still runs when the program ends", function()
    for _, ending in ipairs { "", "os.exit(0)", "os.exit(0, true)", "error('x')" } do
      local stdout = support.run_lua([[
        local s = new_session()
        h = s:exec_start({ child, "write-pid", "pid", "fork-bg", "60", "sleep", "60" },
          { timeout_seconds = 60 })
        while not io.open(s.workspace_path .. "/pid") do sbx.sleep(0.01) end
        sbx.sleep(0.05)
        print(io.open(s.workspace_path .. "/pid"):read("*a"))
        io.stdout:flush()
      ]] .. ending)
      local pid = tonumber(stdout:match("^(%d+)\n"))
      assert.is_number(pid, stdout)
      assert.is_true(support.wait_blocking(function()
        return #support.group_members(pid) == 0
      end, 2), "after " .. ending)
    end
  end)
end)
