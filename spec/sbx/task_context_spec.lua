-- SPDX-License-Identifier: MIT
-- proves: A1, A2, A4
-- Where a call may wait: in a task, outside of one, and at every place that cannot yield.

local helper = require "spec.helper"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local child, failure = support.child, support.failure

describe("a call", function()
  local session

  before_each(function() session = support.session() end)
  after_each(function()
    support.cleanup()
    uv.run("nowait") -- luv: nothing may still be closing when the Lua state ends
  end)

  local function code(n)
    return session:exec(child("sleep", 0.02, "exit", n), { timeout_seconds = 30 }).exit_code
  end

  -- Each place gets a function that waits, and gives back what it returned.
  local places = {
    pcall = function(fn) return select(2, assert(pcall(fn))) end,
    xpcall = function(fn) return select(2, assert(xpcall(fn, debug.traceback))) end,
    __index = function(fn)
      return setmetatable({}, { __index = function() return fn() end }).field
    end,
    __newindex = function(fn)
      local got
      setmetatable({}, { __newindex = function() got = fn() end }).field = 1
      return got
    end,
    __call = function(fn) return setmetatable({}, { __call = function() return fn() end })() end,
    __add = function(fn) return setmetatable({}, { __add = function() return fn() end }) + 1 end,
    ["a for iterator"] = function(fn)
      local got
      for value in function(_, last) if not last then return fn() end end do got = value end
      return got
    end,
    ["coroutine.wrap"] = function(fn)
      local got
      for value in coroutine.wrap(function() coroutine.yield(fn()) end) do got = value end
      return got
    end,
    ["a foreign coroutine"] = function(fn)
      return select(2, assert(coroutine.resume(coroutine.create(fn))))
    end,
    ["string.gsub"] = function(fn)
      local got
      ("x"):gsub("x", function() got = fn() end)
      return got
    end,
    ["table.sort"] = function(fn)
      local got
      table.sort({ 2, 1 }, function(a, b) got = got or fn() return a < b end)
      return got
    end,
    dofile = function(fn)
      local path = helper.tmpdir() .. "/chunk.lua"
      helper.write_file(path, "return SBX_SPEC_WAIT()")
      rawset(_G, "SBX_SPEC_WAIT", fn)
      local got = dofile(path)
      rawset(_G, "SBX_SPEC_WAIT", nil)
      return got
    end,
    require = function(fn)
      package.preload.sbx_spec_chunk = function() return fn() end
      local got = require "sbx_spec_chunk"
      package.loaded.sbx_spec_chunk, package.preload.sbx_spec_chunk = nil, nil
      return got
    end,
    loadstring = function(fn) return loadstring("return (...)()")(fn) end,
  }

  for name, place in pairs(places) do
    it("waits in " .. name .. ", in a task and outside of one", function()
      assert.equal(3, place(function() return code(3) end))
      sbx.run(function()
        local other = sbx.spawn(function() return code(9) end)
        assert.equal(4, place(function() return code(4) end))
        place(function() sbx.sleep(0.01) return 1 end)
        assert.equal(9, place(function() return other:await() end))
        assert.equal(5, place(function()
          session:put_file("f", "12345")
          return #session:get_file("f")
        end))
        local value = {}
        local failed = sbx.spawn(error, value)
        if name ~= "pcall" and name ~= "xpcall" and name ~= "a foreign coroutine" then
          local ok, err = pcall(place, function() return failed:await() end)
          assert.is_false(ok)
          assert.is_true(rawequal(value, err))
        else
          pcall(failed.await, failed)
        end
      end)
    end)
  end

  it("in a task at a place that can yield lets other tasks go on", function()
    for _, name in ipairs { "pcall", "__index", "__call", "a for iterator" } do
      sbx.run(function()
        local ticks = 0
        local ticker = sbx.spawn(function()
          while true do sbx.sleep(0.01); ticks = ticks + 1 end
        end)
        places[name](function()
          return session:exec(child("sleep", 0.15), { timeout_seconds = 30 }).exit_code
        end)
        ticker:cancel()
        assert.is_true(ticks > 2, name .. ": " .. ticks .. " ticks")
      end)
    end
  end)

  it("waits in a luv callback, with and without sbx.run", function()
    local function in_callback(fn)
      local got
      local timer = uv.new_timer()
      timer:start(1, 0, function()
        got = { pcall(fn) }
        timer:close()
      end)
      return function() return got end
    end
    local function check(serve)
      local exec = in_callback(function() return code(6) end)
      local slept = in_callback(function() sbx.sleep(0.01) return true end)
      local h = in_callback(function()
        local handle = session:exec_start({ "cat" }, { timeout_seconds = 30 })
        handle:write_stdin("x")
        handle:close_stdin()
        local got = support.collect(handle).stdout
        handle:kill()
        return got
      end)
      serve(function() return exec() and slept() and h() end)
      assert.same({ true, 6 }, exec())
      assert.same({ true, true }, slept())
      assert.same({ true, "x" }, h())
    end
    check(function(done) assert(helper.wait_until(done)) end)
    check(function(done)
      sbx.run(function()
        while not done() do sbx.sleep(0.01) end
      end)
    end)
    uv.run("nowait")
  end)

  it("spawns from a luv callback", function()
    sbx.run(function()
      local result
      local timer = uv.new_timer()
      timer:start(1, 0, function()
        timer:close()
        sbx.spawn(function() result = code(8) end)
      end)
      while not result do sbx.sleep(0.01) end
      assert.equal(8, result)
    end)
  end)

  it("mixes with luv's timers and pipes in one program", function()
    sbx.run(function()
      local ticks, got = 0, ""
      local timer, pipe = uv.new_timer(), uv.new_pipe(false)
      timer:start(10, 10, function() ticks = ticks + 1 end)
      local path = helper.tmpdir() .. "/socket"
      local server, client = uv.new_pipe(false), nil
      assert(server:bind(path))
      server:listen(1, function()
        client = uv.new_pipe(false)
        server:accept(client)
        client:read_start(function(_, data) got = got .. (data or "") end)
      end)
      pipe:connect(path, function() pipe:write("over the socket") end)
      local r = session:exec(child("sleep", 0.2, "exit", 2), { timeout_seconds = 30 })
      assert.equal(2, r.exit_code)
      sbx.sleep(0.02)
      assert.is_true(ticks > 3, ticks .. " ticks")
      assert.equal("over the socket", got)
      for _, handle in ipairs { timer, pipe, server, client } do handle:close() end
      sbx.sleep(0.01)
    end)
  end)

  it("goes on with tasks when the program serves the loop itself", function()
    local log = {}
    local t = sbx.spawn(function()
      log[#log + 1] = code(5)
      sbx.sleep(0.01)
      log[#log + 1] = sbx.spawn(code, 6):await()
      log[#log + 1] = #sbx.gather { sbx.spawn(code, 1), sbx.spawn(code, 2) }
      failure("TimeoutError", sbx.timeout, 0.02, sbx.sleep, 9)
      local handle = session:exec_start({ "cat" }, { timeout_seconds = 30 })
      handle:write_stdin("abc")
      handle:close_stdin()
      log[#log + 1] = support.collect(handle).stdout
      handle:kill()
    end)
    uv.run()
    assert.equal("done", t:status())
    assert.same({ 5, 6, 2, "abc" }, log)
  end)

  it("keeps the loop alive only as long as something is awaited", function()
    sbx.spawn(code, 0)
    uv.run()
    local before = uv.hrtime()
    uv.run()
    assert.is_true((uv.hrtime() - before) / 1e9 < 0.5)
  end)

  it("awaits from plain code what was spawned there", function()
    local t = sbx.spawn(function(n) sbx.sleep(0.02) return code(n), nil, "c" end, 7)
    assert.equal("running", t:status())
    local a, b, c = t:await()
    assert.same({ 7, nil, "c" }, { a, b, c })
    local bad = sbx.spawn(function() sbx.sleep(0.01) error("plain", 0) end)
    local ok, err = pcall(bad.await, bad)
    assert.is_false(ok)
    assert.equal("plain", err)
  end)

  it("from plain code tells a deadlock from a wait", function()
    local latch = require("sbx.waits").latch()
    failure("TaskError", latch.wait, latch)
    local timer = uv.new_timer()
    timer:start(20, 0, function() latch:open() timer:close() end)
    latch:wait()
  end)
end)

describe("a program", function()
  local function runs(expected, code)
    support.assert_lua(expected, code, { bare = true })
  end

  it("is told of a failed task that it spawned outside of sbx.run", function()
    local stdout, status, stderr = support.run_lua([[
      local sbx, uv = require "sbx", require "luv"
      sbx.spawn(error, "NOBODY AWAITS", 0)
      uv.run()
      print "goes on"
    ]], { bare = true })
    assert.equal("goes on\n", stdout)
    assert.equal(0, status)
    assert.matches("NOBODY AWAITS", stderr)
  end)

  it("goes on after an error in a task that a callback resumes", function()
    local stdout, status, stderr = support.run_lua([[
      local sbx, uv = require "sbx", require "luv"
      sbx.spawn(function() sbx.sleep(0.01) error("IN A TASK", 0) end)
      sbx.spawn(function() sbx.sleep(0.05) print "other" end)
      sbx.spawn(function()
        local ok, err = pcall(sbx.timeout, 0.02, sbx.sleep, 9)
        print(err.class_name)
      end)
      uv.run()
    ]], { bare = true })
    assert.equal("TimeoutError\nother\n", stdout)
    assert.equal(0, status)
    assert.matches("IN A TASK", stderr)
  end)

  it("may load sbx in a coroutine that is collected", function()
    runs("0\nfired\n", [[
      local sbx
      coroutine.wrap(function() sbx = require "sbx" end)()
      for _ = 1, 20 do collectgarbage() end
      coroutine.wrap(function()
        sbx.run(function()
          sbx.sleep(0.01)
          sbx.spawn(sbx.sleep, 0.01)
        end)
      end)()
      for _ = 1, 20 do collectgarbage() end
      local uv = require "luv"
      print(sbx.run(function() sbx.sleep(0.01) return 0 end))
      local timer = uv.new_timer()
      timer:start(5, 0, function() print "fired" timer:close() end)
      uv.run()
    ]])
  end)

  it("may end with luv handles open, closing, and tasks left", function()
    for _, ending in ipairs { "", "os.exit(0, true)", "os.exit(0)" } do
      runs("end\n", [[
        local sbx, uv = require "sbx", require "luv"
        local open, closing = uv.new_timer(), uv.new_timer()
        open:start(100000, 0, function() end)
        closing:close()
        uv.new_pipe(false):close()
        sbx.spawn(sbx.sleep, 100)
        local t = sbx.spawn(sbx.sleep, 100)
        sbx.run(function() sbx.sleep(0.01) end)
        print "end"
        io.stdout:flush()
      ]] .. ending)
    end
  end)

  it("sleeps long without waking early by a wrapped number", function()
    for _, call in ipairs { "sbx.sleep(4294967.4)", "sbx.run(sbx.sleep, 4294967.4)",
      "sbx.sleep(1e300)", "sbx.run(sbx.sleep, 1e300)" } do
      local _, status = support.run_lua('local sbx = require "sbx" ' .. call,
        { bare = true, prefix = "timeout -s TERM 0.5" })
      assert.equal(124, status, call)
    end
  end)
end)
