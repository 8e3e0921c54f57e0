-- SPDX-License-Identifier: MIT
-- proves: F2, F3

local helper = require "spec.helper"
local sbx = require "sbx"
local support = require "spec.support.sandbox"
local uv = require "luv"

local failure = support.failure

describe("local files listed, looked at and removed", function()
  local session, root, outside

  before_each(function()
    session = support.session()
    root = session.workspace_path
    outside = helper.tmpdir()
    helper.write_file(outside .. "/secret", "outside")
  end)
  after_each(function()
    assert.equal("outside", helper.read_file(outside .. "/secret"))
    support.cleanup()
  end)

  local function fails(class, text, method, ...)
    local err = failure(class, session[method], session, ...)
    assert.equal(class, err.class_name, tostring(err))
    if text then assert.is_truthy(err.message:find(text, 1, true), err.message) end
    return err
  end

  local function names(entries)
    local list = {}
    for i, entry in ipairs(entries) do list[i] = entry.name end
    return list
  end

  local function make_places()
    session:put_file("dir/file", "12345")
    session:put_file("dir/sub/x", "")
    assert(uv.fs_symlink(outside, root .. "/out"))
    assert(uv.fs_symlink(outside .. "/none", root .. "/dangling"))
    assert(uv.fs_symlink("dir", root .. "/in"))
    assert(uv.fs_symlink("loop", root .. "/loop"))
    session:exec({ "mkfifo", "fifo" }, { timeout_seconds = 30 })
  end

  local ESCAPES = { "..", "../x", "/", "/etc/passwd", "out/secret", "out/none", "out/.",
    "dangling/x", "dir/../../x" }

  describe("list_files", function()
    it("tells name, type, size, mode and mtime, sorted by name", function()
      make_places()
      uv.fs_chmod(root .. "/dir/file", tonumber("640", 8))
      uv.fs_utime(root .. "/dir/file", 1, 1234567890.5)
      session:put_file("dir/B", "x")
      session:put_file("dir/a", "x")
      local entries = session:list_files("dir")
      assert.same({ "B", "a", "file", "sub" }, names(entries))
      assert.same({ name = "file", type = "file", size = 5, mode = tonumber("640", 8),
        mtime = 1234567890.5 }, entries[3])
      assert.equal("directory", entries[4].type)
      assert.equal(tonumber("755", 8), entries[4].mode)
      local types = {}
      for _, entry in ipairs(session:list_files()) do types[entry.name] = entry.type end
      assert.same({ dangling = "link", dir = "directory", fifo = "other", ["in"] = "link",
        loop = "link", out = "link" }, types)
    end)

    it("takes the workspace by default, links inside and absolute paths", function()
      assert.same({}, session:list_files())
      make_places()
      assert.same(session:list_files(), session:list_files("."))
      assert.same(session:list_files(), session:list_files(root))
      assert.same(session:list_files("dir"), session:list_files("in"))
    end)

    it("takes any byte in a name but NUL and the slash, and many of them", function()
      local expected = {}
      for byte = 1, 255 do
        local name = "n" .. string.char(byte)
        if byte ~= 47 then
          session:put_file("d/" .. name, "")
          expected[#expected + 1] = name
        end
      end
      assert.same(expected, names(session:list_files("d")))
      session:exec({ "sh", "-c", "mkdir m; cd m; seq 1 5000 | xargs touch" },
        { timeout_seconds = 30 })
      assert.equal(5000, #session:list_files("m"))
    end)

    it("is contained", function()
      make_places()
      for _, path in ipairs(ESCAPES) do fails("SandboxError", "outside", "list_files", path) end
      fails("SandboxError", "outside", "list_files", "out")
      fails("SandboxError", "outside", "list_files", "dangling")
    end)

    it("tells what is missing from what is no directory", function()
      make_places()
      assert.equal("none/x", fails("SandboxFileNotFoundError", nil, "list_files", "none/x").path)
      fails("SandboxFileNotFoundError", nil, "list_files", "none")
      fails("SandboxError", "not a directory", "list_files", "dir/file")
      fails("SandboxError", "not a directory", "list_files", "dir/file/x")
      fails("SandboxError", "not a directory", "list_files", "fifo")
      fails("SandboxError", nil, "list_files", "loop")
    end)
  end)

  describe("stat_file", function()
    it("tells what is there, a link as a link", function()
      make_places()
      local entry = session:stat_file("in/file")
      assert.is_true(math.abs(entry.mtime - os.time()) < 60)
      entry.mtime = nil
      assert.same({ name = "file", type = "file", size = 5, mode = tonumber("644", 8) }, entry)
      assert.same({ name = "dir", type = "directory" },
        { name = session:stat_file("dir/").name, type = session:stat_file("dir/").type })
      for _, path in ipairs { "out", "dangling", "in", "loop" } do
        assert.equal("link", session:stat_file(path).type)
      end
      assert.equal("directory", session:stat_file("in/").type)
      assert.equal("other", session:stat_file("fifo").type)
      assert.equal("directory", session:stat_file(".").type)
      assert.equal("directory", session:stat_file(root).type)
      assert.equal(".", session:stat_file(".").name)
    end)

    it("is contained", function()
      make_places()
      for _, path in ipairs(ESCAPES) do fails("SandboxError", "outside", "stat_file", path) end
    end)

    it("tells what is missing from other faults", function()
      make_places()
      assert.equal("none", fails("SandboxFileNotFoundError", nil, "stat_file", "none").path)
      fails("SandboxFileNotFoundError", nil, "stat_file", "none/x")
      fails("SandboxError", "not a directory", "stat_file", "dir/file/x")
      fails("SandboxError", "not a directory", "stat_file", "dir/file/")
      fails("SandboxError", nil, "stat_file", "loop/x")
    end)

    it("knows sizes that 32 bits do not hold", function()
      session:exec({ "truncate", "-s", "5000000000", "big" }, { timeout_seconds = 30 })
      assert.equal(5000000000, session:stat_file("big").size)
    end)
  end)

  describe("remove_file", function()
    it("removes files, links themselves and empty directories", function()
      make_places()
      for _, path in ipairs { "out", "dangling", "in", "loop", "fifo", "dir/file", "dir/sub/x",
        "dir/sub/", "dir" } do
        session:remove_file(path)
      end
      assert.same({}, session:list_files())
    end)

    it("takes a directory that holds something only when told", function()
      make_places()
      fails("SandboxError", "not empty", "remove_file", "dir")
      fails("SandboxError", "not empty", "remove_file", "dir", {})
      fails("SandboxError", "not empty", "remove_file", "dir", { recursive = false })
      assert(uv.fs_symlink(outside, root .. "/dir/sub/out"))
      session:remove_file("dir", { recursive = true })
      fails("SandboxFileNotFoundError", nil, "stat_file", "dir")
      session:remove_file("out", { recursive = true })
      session:remove_file("in", { recursive = true })
    end)

    it("refuses the workspace itself", function()
      make_places()
      for _, path in ipairs { ".", "./", root, root .. "/", "dir/..", "dir/." } do
        fails("SandboxError", "the workspace itself", "remove_file", path, { recursive = true })
      end
      assert.equal(6, #session:list_files())
    end)

    it("is contained", function()
      make_places()
      for _, path in ipairs(ESCAPES) do
        fails("SandboxError", "outside", "remove_file", path, { recursive = true })
      end
      fails("SandboxError", nil, "remove_file", "out/", { recursive = true })
    end)

    it("tells what is missing from other faults", function()
      make_places()
      for _, options in ipairs { {}, { recursive = true } } do
        assert.equal("none",
          fails("SandboxFileNotFoundError", nil, "remove_file", "none", options).path)
        fails("SandboxFileNotFoundError", nil, "remove_file", "none/x", options)
        fails("SandboxError", "not a directory", "remove_file", "dir/file/x", options)
        fails("SandboxError", "not a directory", "remove_file", "dir/file/", options)
      end
    end)

    it("refuses options it does not know", function()
      session:put_file("f", "x")
      for _, options in ipairs { { recursive = 1 }, { force = true }, { true } } do
        failure("SandboxValidationError", session.remove_file, session, "f", options)
      end
      failure("SandboxValidationError", session.remove_file, session, "f", true)
      assert.equal("x", session:get_file("f"))
    end)
  end)

  it("refuse what is no path, and a session that is gone", function()
    for _, method in ipairs { "list_files", "stat_file", "remove_file" } do
      for _, path in ipairs { "", 1, true, "a\0b", {} } do
        failure("SandboxValidationError", session[method], session, path)
      end
    end
    failure("SandboxValidationError", session.stat_file, session, nil)
    failure("SandboxValidationError", session.remove_file, session, nil)
    session:destroy()
    for _, method in ipairs { "list_files", "stat_file", "remove_file" } do
      failure("SandboxSessionNotFoundError", session[method], session, "f")
    end
  end)

  it("run side by side in tasks", function()
    sbx.run(function()
      local tasks = {}
      for i = 1, 30 do
        tasks[i] = sbx.spawn(function()
          local dir = "d" .. i
          for j = 1, 5 do session:put_file(dir .. "/" .. j, tostring(j)) end
          local count = #session:list_files(dir)
          local size = session:stat_file(dir .. "/3").size
          session:remove_file(dir, { recursive = true })
          return count == 5 and size == 1
        end)
      end
      for _, good in ipairs(sbx.gather(tasks)) do assert.is_true(good) end
    end)
    assert.same({}, session:list_files())
  end)

  it("cannot be swapped to lead outside #slow", function()
    helper.write_file(outside .. "/f", "outside too")
    local swapper = session:exec_start({ "sh", "-c", ("while :; do "
      .. "mkdir -p swap 2>/dev/null; rm -rf swap; ln -s %s swap 2>/dev/null; rm -f swap; done")
      :format(outside) }, { timeout_seconds = 60 })
    local until_ns = uv.hrtime() + 1.5e9
    local rounds = 0
    while uv.hrtime() < until_ns do
      pcall(session.put_file, session, "swap/f", "x")
      local ok, entries = pcall(session.list_files, session, "swap")
      assert.is_false(ok and names(entries)[2] == "secret", "it listed outside")
      local told, entry = pcall(session.stat_file, session, "swap/f")
      assert.is_false(told and entry.size ~= 1, "it looked outside")
      assert.is_false((pcall(session.stat_file, session, "swap/secret")), "it looked outside")
      pcall(session.remove_file, session, "swap/f")
      pcall(session.remove_file, session, "swap/secret", { recursive = true })
      pcall(session.remove_file, session, "swap", { recursive = true })
      rounds = rounds + 1
    end
    swapper:kill()
    assert.is_true(rounds > 10)
    assert.equal("outside too", helper.read_file(outside .. "/f"))
  end)
end)
