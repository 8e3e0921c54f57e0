-- SPDX-License-Identifier: MIT
-- proves: A1, A5, F1, F2, F3, X1, E3

local helper = require "spec.helper"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local failure, timed = support.failure, support.timed

describe("local files", function()
  local session, root, outside

  before_each(function()
    session = support.session()
    root = session.workspace_path
    outside = helper.tmpdir()
    helper.write_file(outside .. "/secret", "outside")
  end)
  after_each(support.cleanup)

  local function mode_of(path)
    return ("%o"):format(uv.fs_lstat(root .. "/" .. path).mode % 4096)
  end

  local function kind_of(path)
    local stat = uv.fs_lstat(root .. "/" .. path)
    return stat and stat.type
  end

  local function put_fails(path, class, ...)
    local err = failure(class, session.put_file, session, path, "x")
    for _, text in ipairs { ... } do
      assert.is_truthy(err.message:find(text, 1, true), err.message)
    end
    assert.equal(class, err.class_name)
    return err
  end

  local function get_fails(path, class, ...)
    local seconds, err = timed(failure, class, session.get_file, session, path)
    assert.is_true(seconds < 2, seconds .. " s")
    assert.equal(class, err.class_name, tostring(err))
    for _, text in ipairs { ... } do
      assert.is_truthy(err.message:find(text, 1, true), err.message)
    end
    return err
  end

  -- Nothing outside has changed.
  local function assert_outside_untouched()
    assert.equal("outside", helper.read_file(outside .. "/secret"))
    local names = {}
    local request = uv.fs_scandir(outside)
    while true do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      names[#names + 1] = name
    end
    assert.same({ "secret" }, names)
  end

  describe("put and get", function()
    it("give back the bytes of every size", function()
      for _, size in ipairs { 0, 1, 511, 512, 513, 65535, 65536, 65537, 10485761 } do
        local data = support.pattern(size)
        session:put_file("f", data)
        assert.is_true(session:get_file("f") == data, size .. " bytes")
        assert.equal(size, uv.fs_stat(root .. "/f").size)
      end
    end)

    it("pass every byte", function()
      local all = {}
      for byte = 0, 255 do all[byte + 1] = string.char(byte) end
      local data = table.concat(all) .. "\r\n\0\0"
      session:put_file("f", data)
      assert.is_true(session:get_file("f") == data)
      assert.is_true(helper.read_file(root .. "/f") == data)
    end)

    it("are seen by commands, and see what commands write", function()
      session:put_file("in.txt", "hello")
      local r = session:exec({ "sh", "-c", "cat in.txt; printf back > out.txt" },
        { timeout_seconds = 30 })
      assert.equal("hello", r.stdout)
      assert.equal("back", session:get_file("out.txt"))
    end)

    it("make missing directories", function()
      session:put_file("a/b/c/d.txt", "deep")
      assert.equal("deep", session:get_file("a/b/c/d.txt"))
      assert.equal("755", mode_of("a"))
      session:put_file("a/./b/../b/e", "dots")
      assert.equal("dots", session:get_file("a/b/e"))
    end)

    it("take any byte in a name but NUL and the slash", function()
      for _, name in ipairs { "a b", "-rf", "é", "\255\254", "new\nline", "'\"$`*?", "...", "~",
        ("x"):rep(255), ".hidden", " " } do
        session:put_file(name, name)
        assert.equal(name, session:get_file(name))
      end
      for byte = 1, 255 do
        if byte ~= 47 and byte ~= 46 then
          local name = string.char(byte)
          session:put_file(name, name)
          assert.equal(name, session:get_file(name))
        end
      end
    end)

    it("take absolute paths below the workspace", function()
      session:put_file(root .. "/abs", "x")
      assert.equal("x", session:get_file("abs"))
      assert.equal("x", session:get_file(root .. "/./abs"))
    end)

    it("keep an existing file's mode, else give 0644", function()
      session:put_file("new", "x")
      assert.equal("644", mode_of("new"))
      for _, mode in ipairs { "600", "755", "444", "640" } do
        helper.write_file(root .. "/m", "old")
        uv.fs_chmod(root .. "/m", tonumber(mode, 8))
        session:put_file("m", "new")
        assert.equal(mode, mode_of("m"))
        assert.equal("new", helper.read_file(root .. "/m"))
      end
    end)

    it("are not swayed by the program's umask", function()
      support.assert_lua("644 755\n", [[
        local s = new_session()
        s:put_file("d/f", "x")
        print(("%o %o"):format(uv.fs_stat(s.workspace_path .. "/d/f").mode % 512,
          uv.fs_stat(s.workspace_path .. "/d").mode % 512))
        s:destroy()
      ]], { before = "umask 077;" })
    end)

    it("refuse what is no path and no data", function()
      for _, path in ipairs { "", 1, true, "a\0b", {} } do
        failure("SandboxValidationError", session.put_file, session, path, "x")
        failure("SandboxValidationError", session.get_file, session, path)
      end
      failure("SandboxValidationError", session.put_file, session, nil, "x")
      failure("SandboxValidationError", session.put_file, session, "f", nil)
      failure("SandboxValidationError", session.put_file, session, "f", 1)
      assert.is_nil(kind_of("f"))
    end)

    it("run side by side in tasks", function()
      sbx.run(function()
        local tasks = {}
        for i = 1, 50 do
          tasks[i] = sbx.spawn(function()
            local data = tostring(i):rep(1000)
            session:put_file("d/" .. i, data)
            return session:get_file("d/" .. i) == data
          end)
        end
        for _, same in ipairs(sbx.gather(tasks)) do assert.is_true(same) end
      end)
    end)

    it("replace in one step: a reader sees the old or the new, never a half", function()
      local old, new = ("a"):rep(300000), ("b"):rep(300000)
      session:put_file("f", old)
      sbx.run(function()
        local done = false
        local writer = sbx.spawn(function()
          for i = 1, 60 do session:put_file("f", i % 2 == 0 and old or new) end
          done = true
        end)
        local readers = {}
        for i = 1, 3 do
          readers[i] = sbx.spawn(function()
            while not done do
              local data = session:get_file("f")
              assert.is_true(data == old or data == new, #data .. " bytes of a mixture")
            end
          end)
        end
        sbx.gather(readers)
        writer:await()
      end)
    end)

    it("leave no temporary file behind", function()
      for i = 1, 5 do session:put_file("d/f", ("x"):rep(i * 1000)) end
      local request, count = uv.fs_scandir(root .. "/d"), 0
      while uv.fs_scandir_next(request) do count = count + 1 end
      assert.equal(1, count)
    end)

    it("leave an open file's reader its old content", function()
      session:put_file("f", "old")
      local file = assert(io.open(root .. "/f", "rb"))
      session:put_file("f", "new!")
      assert.equal("old", file:read("*a"))
      file:close()
    end)
  end)

  describe("links", function()
    before_each(function()
      session:put_file("dir/file", "inside")
      for link, target in pairs {
        out = outside, ["out-file"] = outside .. "/secret", up = "../../../../etc",
        dangling = outside .. "/new", ["dangling-in"] = "dir/none", loop = "loop",
        ["in"] = "dir", ["in-file"] = "dir/file", ["in-abs"] = root .. "/dir/file",
        chain = "out", ["dir/back"] = "..",
      } do
        assert(uv.fs_symlink(target, root .. "/" .. link))
      end
    end)

    it("that stay inside are followed by a get", function()
      for _, path in ipairs { "in/file", "in-file", "in-abs", "dir/back/dir/file" } do
        assert.equal("inside", session:get_file(path))
      end
    end)

    it("that lead outside are refused, there or not", function()
      for _, path in ipairs { "out/secret", "out-file", "up/passwd", "chain/secret", "dangling",
        "out/none" } do
        get_fails(path, "SandboxError", "outside")
      end
      for _, path in ipairs { "out/new", "chain/new", "up/x", "out/a/b", "out/secret" } do
        put_fails(path, "SandboxError", "outside")
      end
      assert_outside_untouched()
    end)

    it("are replaced themselves by a put", function()
      for _, path in ipairs { "out-file", "dangling", "in-file", "loop", "out" } do
        session:put_file(path, "mine")
        assert.equal("file", kind_of(path))
        assert.equal("mine", session:get_file(path))
      end
      assert.equal("inside", session:get_file("dir/file"))
      assert_outside_untouched()
    end)

    it("that dangle inside are a missing file, a loop is a fault", function()
      local err = get_fails("dangling-in", "SandboxFileNotFoundError")
      assert.equal("dangling-in", err.path)
      get_fails("loop", "SandboxError")
      get_fails("loop/x", "SandboxError")
    end)

    it("cannot be swapped in to lead a put or a get outside #slow", function()
      local swapper = session:exec_start({ "sh", "-c", ("while :; do "
        .. "mkdir -p swap 2>/dev/null; rm -rf swap; ln -s %s swap 2>/dev/null; rm -f swap; done")
        :format(outside) }, { timeout_seconds = 60 })
      local until_ns = uv.hrtime() + 1.5e9
      local puts, gets = 0, 0
      while uv.hrtime() < until_ns do
        local ok = pcall(session.put_file, session, "swap/f", "x")
        if ok then puts = puts + 1 end
        local got, data = pcall(session.get_file, session, "swap/secret")
        assert.is_false(got and data == "outside", "it read outside")
        gets = gets + 1
      end
      swapper:kill()
      assert.is_true(gets > 10)
      assert_outside_untouched()
    end)
  end)

  describe("paths that lead outside", function()
    it("are refused, there or not", function()
      local sibling = root .. "-evil"
      uv.fs_mkdir(sibling, 493)
      finally(function() helper.remove_tree(sibling) end)
      helper.write_file(sibling .. "/x", "evil")
      session:put_file("d/f", "x")
      for _, path in ipairs { "..", "../x", "d/../../x", "../../../../etc/passwd", "/etc/passwd",
        outside .. "/secret", sibling .. "/x", root .. "/../x", "/no/such", "../no/such/x",
        "d/../../" .. root:match("[^/]+$") .. "-evil/x", "/" } do
        get_fails(path, "SandboxError", "outside")
        put_fails(path, "SandboxError")
      end
      assert_outside_untouched()
      assert.equal("evil", helper.read_file(sibling .. "/x"))
    end)
  end)

  describe("what is not there", function()
    it("is a SandboxFileNotFoundError with the path", function()
      for _, path in ipairs { "none", "no/such/dir/f", ".none", root .. "/none" } do
        local err = get_fails(path, "SandboxFileNotFoundError")
        assert.equal(path, err.path)
      end
    end)

    it("is no plain fault of another kind", function()
      session:put_file("f", "x")
      uv.fs_mkdir(root .. "/dir", 493)
      get_fails("f/x", "SandboxError", "f/x")
      get_fails("f/x/y", "SandboxError")
      get_fails("dir", "SandboxError", "directory")
      get_fails("dir/", "SandboxError")
      get_fails(".", "SandboxError")
      put_fails("f/x", "SandboxError", "not a directory")
      put_fails("dir", "SandboxError", "directory")
      put_fails("dir/", "SandboxError")
      put_fails("new/", "SandboxError")
      put_fails(".", "SandboxError")
      put_fails("dir/..", "SandboxError")
      put_fails(("x"):rep(256), "SandboxError", "ENAMETOOLONG")
      get_fails(("x"):rep(5000), "SandboxError", "ENAMETOOLONG")
      assert.equal("x", session:get_file("f"))
    end)
  end)

  describe("what is no regular file", function()
    it("is refused at once and never opened", function()
      local r = session:exec({ "sh", "-c", "mkfifo fifo; ln -s fifo link; ln -s /dev/zero z" },
        { timeout_seconds = 30 })
      assert.equal(0, r.exit_code)
      get_fails("fifo", "SandboxError", "regular")
      get_fails("link", "SandboxError", "regular")
      get_fails("z", "SandboxError", "outside")
      put_fails("fifo", "SandboxError", "regular")
      assert.equal("fifo", kind_of("fifo"))
      local server = uv.new_pipe(false)
      assert(server:bind(root .. "/sock"))
      get_fails("sock", "SandboxError", "regular")
      put_fails("sock", "SandboxError", "regular")
      server:close()
      uv.run("nowait") -- luv: nothing may still be closing when the Lua state ends
    end)

    it("is a fault with its reason where permission is missing", function()
      local works = uv.getuid() == 0 and select(2, helper.run(
        "setpriv --reuid=65533 --clear-groups " .. helper.shell_quote(helper.sbxlua())
        .. " -e '' 2>/dev/null")) == 0
      helper.must_work("setpriv", works, "needs root, setpriv and a build that others can read")
      support.assert_lua("SandboxError EACCES\nSandboxError EACCES\n", [[
        local s = new_session()
        s:put_file("f", "x")
        s:put_file("d/f", "x")
        uv.fs_chmod(s.workspace_path .. "/f", 0)
        uv.fs_chmod(s.workspace_path .. "/d", 0)
        for _, path in ipairs { "f", "d/f" } do
          local ok, err = pcall(s.get_file, s, path)
          print(err.class_name .. " " .. err.message:match("%((%u+)%)$"))
        end
        uv.fs_chmod(s.workspace_path .. "/d", 448)
        s:destroy()
      ]], { prefix = "setpriv --reuid=65533 --clear-groups", open = true })
    end)
  end)
end)
