-- SPDX-License-Identifier: MIT
-- proves: F1, F2, F3, A3

local fake_provider = require "spec.support.fake_provider"
local helper = require "spec.helper"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local failure = support.failure

describe("local files in pieces", function()
  local session, root, outside

  before_each(function()
    session = support.session()
    root = session.workspace_path
    outside = helper.tmpdir()
    helper.write_file(outside .. "/secret", "outside")
  end)
  after_each(support.cleanup)

  local function names_in(path)
    local names = {}
    local request = uv.fs_scandir(path)
    while true do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      names[#names + 1] = name
    end
    table.sort(names)
    return names
  end

  -- An iterator over data in pieces of a size.
  local function pieces(data, size)
    local at = 1
    return function()
      if at > #data then return nil end
      at = at + size
      return data:sub(at - size, at - 1)
    end
  end

  -- Pieces without an end.
  local function forever(seconds)
    return function()
      if seconds then sbx.sleep(seconds) end
      return ("x"):rep(100000)
    end
  end

  local function collect(path)
    local got = {}
    session:get_file_to(path, function(chunk)
      assert.is_true(#chunk > 0)
      got[#got + 1] = chunk
    end)
    return table.concat(got)
  end

  local function host_file(data)
    local path = helper.tmpdir() .. "/file"
    if data then helper.write_file(path, data) end
    local file = assert(io.open(path, data and "rb" or "wb"))
    finally(function() if io.type(file) == "file" then file:close() end end)
    return file, path
  end

  describe("put_file and get_file_to", function()
    it("give back the bytes of every size", function()
      for _, size in ipairs { 0, 1, 511, 65535, 65536, 65537, 131072, 131073, 10485760 } do
        local data = support.pattern(size)
        for _, step in ipairs { 4099, 65536, 10485760 } do
          session:put_file("f", pieces(data, step))
          assert.is_true(session:get_file("f") == data, size .. " bytes by " .. step)
        end
        assert.is_true(collect("f") == data, size .. " bytes back")
      end
    end)

    it("take and fill open files", function()
      for _, size in ipairs { 0, 1, 65537, 10485760 } do
        local data = support.pattern(size)
        session:put_file("f", (host_file(data)))
        assert.is_true(session:get_file("f") == data, size .. " bytes")
        local file, path = host_file()
        session:get_file_to("f", file)
        assert.is_true(helper.read_file(path) == data, size .. " bytes back, without a close")
      end
      assert.same({ "f" }, names_in(root))
    end)

    it("begin where an open file stands", function()
      local file = host_file("0123456789")
      file:seek("set", 4)
      session:put_file("f", file)
      assert.equal("456789", session:get_file("f"))
      local target, path = host_file()
      target:write("before ")
      session:get_file_to("f", target)
      target:write(" after")
      target:close()
      assert.equal("before 456789 after", helper.read_file(path))
    end)

    it("take very small and empty pieces", function()
      local data = support.pattern(300001)
      session:put_file("f", pieces(data, 1))
      assert.is_true(session:get_file("f") == data)
      local given = { "", "a", "", "", "b\0", "" }
      local at = 0
      session:put_file("f", function() at = at + 1 return given[at] end)
      assert.equal("ab\0", session:get_file("f"))
      session:put_file("f", function() return nil end)
      assert.equal("", session:get_file("f"))
    end)

    it("replace at the end, keep the mode, make directories", function()
      session:put_file("a/b/f", pieces("first", 2))
      assert.equal("first", session:get_file("a/b/f"))
      uv.fs_chmod(root .. "/a/b/f", tonumber("751", 8))
      local seen = {}
      local given = { "sec", ("x"):rep(600000), "ond" }
      local at = 0
      session:put_file("a/b/f", function()
        seen[#seen + 1] = session:get_file("a/b/f")
        at = at + 1
        return given[at]
      end)
      assert.same({ "first", "first", "first", "first" }, seen)
      assert.equal(600006, #session:get_file("a/b/f"))
      assert.equal(tonumber("751", 8), uv.fs_stat(root .. "/a/b/f").mode % 4096)
      session:put_file("new", pieces("x", 1))
      assert.equal(tonumber("644", 8), uv.fs_stat(root .. "/new").mode % 4096)
      assert.same({ "f" }, names_in(root .. "/a/b"))
    end)

    it("let an iterator and a function wait", function()
      local data = support.pattern(1000000)
      local ticks = 0
      sbx.run(function()
        local writer = sbx.spawn(function()
          local next_piece = pieces(data, 50000)
          session:put_file("f", function() sbx.sleep(0.005) return next_piece() end)
          local got = {}
          session:get_file_to("f", function(chunk)
            sbx.sleep(0.01)
            got[#got + 1] = chunk
          end)
          return table.concat(got) == data
        end)
        while writer:status() == "running" do
          ticks = ticks + 1
          sbx.sleep(0.005)
        end
        assert.is_true(writer:await())
      end)
      assert.is_true(ticks > 5)
    end)

    it("run side by side in tasks", function()
      sbx.run(function()
        local tasks = {}
        for i = 1, 20 do
          tasks[i] = sbx.spawn(function()
            local data = tostring(i):rep(100000)
            session:put_file("d/" .. i, pieces(data, 7777))
            return collect("d/" .. i) == data
          end)
        end
        for _, same in ipairs(sbx.gather(tasks)) do assert.is_true(same) end
      end)
      assert.equal(20, #names_in(root .. "/d"))
    end)

    it("copy one file of the workspace to another", function()
      local data = support.pattern(1000000)
      session:put_file("a", data)
      local from = assert(io.open(root .. "/a", "rb"))
      session:put_file("b", from)
      from:close()
      assert.is_true(collect("b") == data)
    end)
  end)

  describe("a put that fails", function()
    before_each(function() session:put_file("f", "old") end)
    after_each(function()
      assert.equal("old", helper.read_file(root .. "/f"))
      assert.same({ "f" }, names_in(root))
    end)

    it("passes the iterator's error on unchanged", function()
      local thrown = { "any value" }
      for _, at in ipairs { 1, 3, 12 } do
        local count = 0
        local descriptors = support.count_own("fd")
        local ok, err = pcall(session.put_file, session, "f", function()
          count = count + 1
          if count == at then error(thrown, 0) end
          return ("x"):rep(100000)
        end)
        assert.is_false(ok)
        assert.equal(thrown, err)
        assert.equal(descriptors, support.count_own("fd"))
      end
      local ok, err = pcall(session.put_file, session, "f", function() error("plain", 0) end)
      assert.is_false(ok)
      assert.equal("plain", err)
    end)

    it("refuses pieces that are no strings", function()
      for _, piece in ipairs { 1, true, {} } do
        local err = failure("SandboxValidationError", session.put_file, session, "f",
          function() return piece end)
        assert.equal("data", err.faults[1].path)
      end
    end)

    it("leaves nothing when it is cancelled in the iterator", function()
      sbx.run(function()
        local put = sbx.spawn(session.put_file, session, "f", forever(0.002))
        sbx.sleep(0.1)
        put:cancel()
        assert.equal("cancelled", put:status())
        assert.same({ "f" }, names_in(root))
      end)
    end)

    it("leaves nothing when it is cancelled in a write", function()
      for i = 1, 20 do
        sbx.run(function()
          local put = sbx.spawn(session.put_file, session, "f", forever())
          sbx.sleep(i / 2000)
          put:cancel()
          assert.equal("cancelled", put:status())
          assert.same({ "f" }, names_in(root))
        end)
      end
    end)

    it("leaves nothing when it is cancelled at once", function()
      sbx.run(function()
        local put = sbx.spawn(session.put_file, session, "f", forever())
        local get = sbx.spawn(session.get_file_to, session, "f", function() sbx.sleep(10) end)
        sbx.sleep(0)
        put:cancel()
        get:cancel()
        assert.equal("cancelled", put:status())
        assert.equal("cancelled", get:status())
      end)
    end)

    it("tells of a file that cannot be read", function()
      local directory = assert(io.open(outside, "rb"))
      local err = failure("SandboxError", session.put_file, session, "f", directory)
      directory:close()
      assert.is_truthy(err.message:find("directory", 1, true), err.message)
    end)

    it("is not done by a task that nobody drives any more", function()
      local put = coroutine.wrap(function()
        session:put_file("f", function() coroutine.yield() return "x" end)
      end)
      put()
      assert.equal(2, #names_in(root))
      put = nil -- luacheck: ignore
      helper.wait_until(function()
        collectgarbage()
        return #names_in(root) == 1
      end)
    end)
  end)

  it("a put whose directory goes is a SandboxError", function()
    local err = failure("SandboxError", session.put_file, session, "d/f", function()
      helper.remove_tree(root .. "/d")
      return nil
    end)
    assert.equal("SandboxError", err.class_name)
    assert.is_truthy(err.message:find("removed", 1, true), err.message)
    assert.same({}, names_in(root))
  end)

  it("a put whose session is destroyed meanwhile changes nothing", function()
    local kept = support.session { durability = "persistent", workspace_key = "kept" }
    kept:put_file("f", "old")
    failure("SandboxSessionNotFoundError", kept.put_file, kept, "f", function()
      kept:destroy()
      return nil
    end)
    assert.equal("old", helper.read_file(kept.workspace_path .. "/f"))
    assert.same({ "f" }, names_in(kept.workspace_path))
    local gone = support.session()
    failure("SandboxError", gone.put_file, gone, "f", function()
      gone:destroy()
      return nil
    end)
  end)

  describe("a get that fails", function()
    it("passes the function's error on unchanged", function()
      session:put_file("f", ("x"):rep(1000000))
      local thrown = setmetatable({}, { __tostring = function() return "mine" end })
      local descriptors = support.count_own("fd")
      local calls = 0
      local ok, err = pcall(session.get_file_to, session, "f", function()
        calls = calls + 1
        if calls == 2 then error(thrown, 0) end
      end)
      assert.is_false(ok)
      assert.equal(thrown, err)
      assert.equal(2, calls)
      assert.equal(descriptors, support.count_own("fd"))
    end)

    it("tells of a file that cannot be written", function()
      session:put_file("f", ("x"):rep(1000000))
      session:put_file("small", "x")
      local full = assert(io.open("/dev/full", "wb"))
      for _, path in ipairs { "f", "small" } do
        local err = failure("SandboxError", session.get_file_to, session, path, full)
        assert.is_truthy(err.message:find("space", 1, true), err.message)
      end
      full:close()
    end)

    it("does not call the function for what is not there", function()
      local err = failure("SandboxFileNotFoundError", session.get_file_to, session, "none/f", error)
      assert.equal("none/f", err.path)
    end)
  end)

  describe("paths", function()
    local function put_fails(path, text)
      local called = false
      local err = failure("SandboxError", session.put_file, session, path, function()
        called = true
      end)
      assert.is_false(called)
      assert.equal("SandboxError", err.class_name)
      assert.is_truthy(err.message:find(text, 1, true), err.message)
    end

    local function get_fails(path, text)
      local err = failure("SandboxError", session.get_file_to, session, path, error)
      assert.equal("SandboxError", err.class_name)
      assert.is_truthy(err.message:find(text, 1, true), err.message)
    end

    it("are contained", function()
      session:put_file("dir/f", "inside")
      assert(uv.fs_symlink(outside, root .. "/out"))
      assert(uv.fs_symlink(outside .. "/new", root .. "/dangling"))
      assert(uv.fs_symlink("dir", root .. "/in"))
      for _, path in ipairs { "out/new", "out/none/x", "../x", "/etc/x", "dir/../../x" } do
        put_fails(path, "outside")
      end
      for _, path in ipairs { "out/secret", "out/none", "dangling", "../x", "/etc/passwd" } do
        get_fails(path, "outside")
      end
      assert.equal("inside", collect("in/f"))
      session:put_file("dangling", pieces("mine", 1))
      assert.equal("file", uv.fs_lstat(root .. "/dangling").type)
      assert.same({ "secret" }, names_in(outside))
    end)

    it("of other kinds are refused at once", function()
      session:put_file("f", "x")
      session:exec({ "mkfifo", "fifo" }, { timeout_seconds = 30 })
      uv.fs_mkdir(root .. "/dir", 493)
      put_fails("fifo", "regular")
      put_fails("dir", "directory")
      put_fails("new/", "directory")
      put_fails("f/x", "not a directory")
      get_fails("fifo", "regular")
      get_fails("dir", "directory")
      get_fails("f/x", "not a directory")
    end)

    it("cannot be swapped to lead outside #slow", function()
      local swapper = session:exec_start({ "sh", "-c", ("while :; do "
        .. "mkdir -p swap 2>/dev/null; rm -rf swap; ln -s %s swap 2>/dev/null; rm -f swap; done")
        :format(outside) }, { timeout_seconds = 60 })
      local until_ns = uv.hrtime() + 1.5e9
      local gets = 0
      while uv.hrtime() < until_ns do
        pcall(session.put_file, session, "swap/f", pieces("abcdef", 2))
        pcall(session.get_file_to, session, "swap/secret", function(chunk)
          assert.is_not.equal("outside", chunk)
        end)
        gets = gets + 1
      end
      swapper:kill()
      assert.is_true(gets > 10)
      assert.same({ "secret" }, names_in(outside))
      assert.equal("outside", helper.read_file(outside .. "/secret"))
    end)
  end)

  it("refuse what is no source and no target", function()
    local closed = host_file("x")
    closed:close()
    for _, data in ipairs { 1, true, {}, closed } do
      failure("SandboxValidationError", session.put_file, session, "f", data)
      failure("SandboxValidationError", session.get_file_to, session, "f", data)
    end
    failure("SandboxValidationError", session.get_file_to, session, "f", "string")
    failure("SandboxValidationError", session.get_file_to, session, "f", nil)
    for _, path in ipairs { "", 1, "a\0b", {} } do
      failure("SandboxValidationError", session.put_file, session, path, error)
      failure("SandboxValidationError", session.get_file_to, session, path, error)
    end
    assert.same({}, names_in(root))
    session:destroy()
    failure("SandboxSessionNotFoundError", session.put_file, session, "f", error)
    failure("SandboxSessionNotFoundError", session.get_file_to, session, "f", error)
  end)

  it("a provider that cannot says so", function()
    local plain = fake_provider.new():create_session(fake_provider.spec())
    for _, call in ipairs {
      { "put_file", "f", error }, { "get_file_to", "f", error }, { "list_files" },
      { "stat_file", "f" }, { "remove_file", "f" },
    } do
      local err = failure("SandboxError", plain[call[1]], plain, call[2], call[3])
      assert.equal("SandboxError", err.class_name)
      assert.is_truthy(err.message:find("cannot", 1, true), err.message)
    end
    plain:put_file("f", "x")
    assert.equal("x", plain:get_file("f"))
  end)

  it("take a bounded memory #slow", function()
    local mib = os.getenv("SBX_LARGE_FILES") and 2048 or 300
    local limit = helper.flavour == "asan" and 1024 or 64 -- MiB; a sanitizer holds freed memory
    support.assert_lua("same\n", ([[
      local s = new_session()
      local MIB, LIMIT = %d, %d
      local block = ("0123456789abcde\n"):rep(65536)
      local function piece(i) return ("%%015d\n"):format(i) .. block:sub(17) end
      local i = 0
      s:put_file("f", function()
        i = i + 1
        return i <= MIB and piece(i) or nil
      end)
      assert(s:stat_file("f").size == MIB * 2 ^ 20)
      local file = assert(io.open(s.workspace_path .. "/f", "rb"))
      s:put_file("g", file)
      file:close()
      s:remove_file("f")
      local pending, bytes, at, same = {}, 0, 0, true
      s:get_file_to("g", function(chunk)
        pending[#pending + 1], bytes = chunk, bytes + #chunk
        if bytes >= 2 ^ 20 then
          at = at + 1
          same = same and table.concat(pending) == piece(at)
          pending, bytes = {}, 0
        end
      end)
      assert(at == MIB and bytes == 0)
      assert(status("VmHWM") < LIMIT * 1024, status("VmHWM") .. " KiB")
      print(same and "same" or "not the same")
      s:destroy()
    ]]):format(mib, limit))
  end)

  it("show a hostile name escaped in an error", function()
    local err = failure("SandboxFileNotFoundError", session.get_file_to, session, "a\nb", error)
    assert.is_nil(err.message:find("\n", 1, true))
  end)
end)
