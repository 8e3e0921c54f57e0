-- SPDX-License-Identifier: MIT
-- proves: P5, E3, A6
-- The ledger's file: who may read it, what it does with files that are not its own or not well, and
-- with other processes. What its rows do stands in ledger_spec.lua.

local helper = require "spec.helper"
local ledger_sqlite = require "sbx.kit.ledger_sqlite"
local sqlite = require "_sbx.sqlite"
local support = require "spec.support.sandbox"
local together = require "spec.support.together"
local uv = require "luv"

local failure = support.failure

local function row(changes)
  local fields = { id = "a", provider = "p", image = "i", workspace_key = "k",
    durability = "ephemeral", created_at = 1, expires_at = 2, ttl_seconds = 1, labels = {},
    has_env = false, state = "live", owner = "o" }
  for name, value in pairs(changes or {}) do fields[name] = value end
  return fields
end

local function run(db, sql, ...)
  local rows, name, text = db:run(sql, ...)
  return assert(rows, ("%s: %s"):format(tostring(name), tostring(text)))
end

local function mode(path)
  return ("%o"):format(assert(uv.fs_stat(path), path).mode % 4096)
end

describe("the ledger's file", function()
  local directory, path
  local open = {}

  before_each(function()
    directory = helper.tmpdir()
    path = directory .. "/state/sbxlua/ledger.db"
  end)

  after_each(function()
    for _, each in ipairs(open) do each:close() end
    open = {}
  end)

  local function opened(at)
    local ledger = ledger_sqlite.new(at or path)
    open[#open + 1] = ledger
    return ledger
  end

  local function plain_file(name, data)
    local file = directory .. "/" .. name
    helper.write_file(file, data)
    return file
  end

  local function database(name, ...)
    local file = directory .. "/" .. name
    local db = assert(sqlite.open(file))
    for _, sql in ipairs { ... } do run(db, sql) end
    db:close()
    return file
  end

  local function names_beside(file)
    local names, request = {}, uv.fs_scandir(file:match("^(.*)/"))
    while true do
      local name = uv.fs_scandir_next(request)
      if not name then break end
      names[#names + 1] = name
    end
    table.sort(names)
    return names
  end

  -- Opening or, when that is told, using it fails with these words and changes nothing.
  local function refuses(file, words, use)
    local before, beside = helper.read_file(file), names_beside(file)
    local err = failure("SandboxError", function()
      local ledger = opened(file)
      if use then use(ledger) end
    end)
    for _, each in ipairs(open) do each:close() end
    assert.is_truthy(err.message:find(file, 1, true), err.message)
    for _, word in ipairs(words) do
      assert.is_truthy(err.message:find(word, 1, true), err.message .. " <- " .. word)
    end
    assert.is_true(before == helper.read_file(file), "the file was changed")
    assert.same(beside, names_beside(file))
  end

  it("is made with its directories, for its owner alone, whatever the umask", function()
    for i, umask in ipairs { "000", "022", "077", "277", "777" } do
      local at = directory .. "/u" .. i .. "/sbxlua/ledger.db"
      support.assert_lua("ok\n", ([[
        local ledger = require("sbx.kit.ledger_sqlite").new(%q)
        ledger:insert { id = "a", provider = "p", image = "i", workspace_key = "k",
          durability = "ephemeral", created_at = 1, expires_at = 2, ttl_seconds = 1, labels = {},
          has_env = false, state = "live", owner = "o" }
        for _, suffix in ipairs { "", "-wal", "-shm" } do
          local mode = require("luv").fs_stat(%q .. suffix).mode %% 4096
          assert(mode == tonumber("600", 8), suffix .. (" %%o"):format(mode))
        end
        print("ok")
      ]]):format(at, at), { bare = true, before = "umask " .. umask .. ";" })
      assert.equal("600", mode(at))
      assert.equal("700", mode(directory .. "/u" .. i))
      assert.equal("700", mode(directory .. "/u" .. i .. "/sbxlua"))
    end
  end)

  it("may be there already, empty, and keeps its mode", function()
    local file = plain_file("empty", "")
    uv.fs_chmod(file, tonumber("640", 8))
    opened(file):insert(row())
    assert.equal("640", mode(file))
    assert.equal("a", opened(file):list()[1].id)
  end)

  it("keeps the rows, and its identity, from one opening to the next", function()
    local ledger = opened()
    ledger:insert(row { labels = { a = "b" } })
    local identity = ledger:identity()
    assert.matches("^%x+$", identity)
    assert.equal(32, #identity)
    ledger:close()
    ledger:close()
    assert.same(row { labels = { a = "b" } }, opened():get("a"))
    assert.equal(identity, opened():identity())
    assert.is_not.equal(identity, opened(directory .. "/other.db"):identity())
  end)

  it("is shared, which the one in memory is not", function()
    assert.is_true(opened().shared)
    assert.is_nil(require("sbx.kit.ledger_memory").new().shared)
  end)

  it("is in WAL mode", function()
    opened()
    local db = assert(sqlite.open(path))
    assert.equal("wal", run(db, "PRAGMA journal_mode")[1].journal_mode)
    assert.is_true(run(db, "PRAGMA user_version")[1].user_version >= 1)
    db:close()
  end)

  it("is a file though its name is one that SQLite has uses for", function()
    for _, name in ipairs { ":memory:", "file:x.db?mode=memory", "a b'\"%?#.db" } do
      opened(directory .. "/" .. name):insert(row())
      assert.equal("a", opened(directory .. "/" .. name):list()[1].id)
      assert.is_truthy(uv.fs_stat(directory .. "/" .. name))
    end
  end)

  it("has an absolute path", function()
    for _, name in ipairs { "l.db", ":memory:", "./l.db", "sub/l.db", "" } do
      local err = failure("SandboxError", ledger_sqlite.new, name)
      assert.is_truthy(err.message:find("must be absolute", 1, true), err.message)
    end
  end)

  describe("is refused, and left as it is, when it is", function()
    it("no database", function()
      refuses(plain_file("text", ("no database\n"):rep(500)), { "not an SQLite database" })
      refuses(plain_file("short", "short"), { "not an SQLite database" })
    end)

    it("of a newer version", function()
      opened(directory .. "/newer.db"):close()
      local file = database("newer.db", "PRAGMA user_version = 99")
      refuses(file, { "version 99", "up to 1", "newer sbxlua", "left as it is" })
    end)

    it("of a newer version, with tables that nobody knows yet", function()
      refuses(database("new.db", "CREATE TABLE x (y)", "PRAGMA user_version = 2"), { "version 2" })
    end)

    it("a database of something else", function()
      refuses(database("foreign.db", "CREATE TABLE sessions (x)",
        "INSERT INTO sessions VALUES (1)"), { "something else" })
      refuses(database("numbered.db", "CREATE TABLE x (y)", "PRAGMA user_version = 1"),
        { "something else" })
    end)

    local function filled(name)
      local file = directory .. "/" .. name
      local ledger = ledger_sqlite.new(file)
      for i = 1, 100 do
        ledger:insert(row { id = "id" .. i, image = ("x"):rep(300), labels = { a = "b" } })
      end
      ledger:close()
      return file
    end

    it("damaged where its schema stands", function()
      local data = helper.read_file(filled("schema.db"))
      local file = plain_file("broken-schema.db", data:sub(1, 100) .. ("\255"):rep(3996)
        .. data:sub(4097))
      refuses(file, { "damaged", "left as it is" }, function(ledger) ledger:list() end)
    end)

    it("damaged where its rows stand", function()
      local data = helper.read_file(filled("rows.db"))
      local file = plain_file("broken-rows.db",
        data:sub(1, 4096) .. ("\1\255"):rep((#data - 4096) / 2))
      refuses(file, { "damaged" }, function(ledger) ledger:list() end)
      refuses(file, { "damaged" }, function(ledger) ledger:get("id1") end)
      refuses(file, { "damaged" }, function(ledger) ledger:insert(row()) end)
      refuses(file, { "damaged" }, function(ledger) ledger:delete("id1") end)
    end)

    it("cut short", function()
      local data = helper.read_file(filled("whole.db"))
      refuses(plain_file("cut.db", data:sub(1, 8192)), { "damaged" },
        function(ledger) ledger:list() end)
    end)

    it("a directory, or below a file", function()
      local err = failure("SandboxError", ledger_sqlite.new, directory)
      assert.is_truthy(err.message:find(directory, 1, true), err.message)
      local file = plain_file("file", "")
      err = failure("SandboxError", ledger_sqlite.new, file .. "/ledger.db")
      assert.is_truthy(err.message:find(file, 1, true), err.message)
    end)
  end)

  describe("of another user", function()
    -- Permissions bind everybody but root.
    local function says(prepare, code)
      local _, code_of_try = helper.run("setpriv --reuid 1 --clear-groups true 2>/dev/null")
      helper.must_work("setpriv", code_of_try == 0, "it takes root")
      local place = assert(uv.fs_mkdtemp("/tmp/sbx-spec.XXXXXX"))
      uv.fs_chmod(place, tonumber("755", 8))
      prepare(place)
      local stdout, status, stderr = support.run_lua(([[
        local new = require("sbx.kit.ledger_sqlite").new
        local place = %q
        local ok, err = pcall(function() %s end)
        print(ok and "no error" or err.class_name or "foreign", err and err.message)
      ]]):format(place, code), { bare = true, open = true,
        prefix = "setpriv --reuid 12345 --regid 12345 --clear-groups" })
      helper.remove_tree(place)
      assert.equal(0, status, stderr)
      return stdout
    end

    it("that cannot be read is refused by name", function()
      local text = says(function(place)
        local ledger = ledger_sqlite.new(place .. "/l.db")
        ledger:close()
      end, "new(place .. '/l.db')")
      assert.matches("^SandboxError\tledger \"[^\"]*/l.db\": cannot open it", text)
    end)

    it("that can only be read is refused when it is to be changed", function()
      local text = says(function(place)
        local ledger = ledger_sqlite.new(place .. "/l.db")
        ledger:insert(row())
        ledger:close()
        uv.fs_chmod(place .. "/l.db", tonumber("644", 8))
      end, [[
        local ledger = new(place .. "/l.db")
        ledger:insert { id = "b", provider = "p", image = "i", workspace_key = "k",
          durability = "ephemeral", created_at = 1, expires_at = 2, ttl_seconds = 1, labels = {},
          has_env = false, state = "live", owner = "o" }
      ]])
      assert.matches("^SandboxError\tledger \"[^\"]*/l.db\": ", text)
    end)

    it("is not made in a directory that cannot be written", function()
      local text = says(function() end, "new(place .. '/l.db')")
      assert.matches("^SandboxError\tledger \"[^\"]*/l.db\": cannot open it", text)
      text = says(function() end, "new(place .. '/sub/l.db')")
      assert.matches("^SandboxError\tledger: cannot make the directory .*EACCES", text)
    end)
  end)

  describe("between processes", function()
    it("is prepared once, by however many begin at once", function()
      for round = 1, 4 do
        local lines = together.lines(6, ([[
          local ledger = require("sbx.kit.ledger_sqlite").new(%q)
          ledger:insert { id = "n" .. number, provider = "p", image = "i", workspace_key = "k",
            durability = "ephemeral", created_at = 1, expires_at = 2, ttl_seconds = 1,
            labels = {}, has_env = false, state = "live", owner = "o" }
          print(ledger:identity())
        ]]):format(directory .. "/round" .. round .. "/l.db"),
          { modules = { "sbx.kit.ledger_sqlite" } })
        assert.equal(6, #lines)
        for _, line in ipairs(lines) do assert.equal(lines[1], line) end
        assert.equal(6, #opened(directory .. "/round" .. round .. "/l.db"):list())
      end
    end)

    it("gives each row, and each claim, to one", function()
      local each, programs = 40, 5
      local lines = together.lines(programs, ([[
        local ledger = require("sbx.kit.ledger_sqlite").new(%q)
        local function row(id)
          return { id = id, provider = "p", image = "i", workspace_key = "k",
            durability = "ephemeral", created_at = 1, expires_at = 2, ttl_seconds = 1,
            labels = { by = tostring(number) }, has_env = false, state = "live", owner = "o" }
        end
        local each, programs = %d, %d
        for i = 1, each do
          assert(ledger:insert(row(number .. "-" .. i)))
          if ledger:insert(row("shared-" .. i)) then print("inserted shared-" .. i) end
        end
        while #ledger:list() < each * (programs + 1) do uv.sleep(1) end
        for _, found in ipairs(ledger:list()) do
          if found.state == "live" and ledger:claim(found.id, "me" .. number, found) then
            print("claimed " .. found.id)
          end
        end
      ]]):format(path, each, programs), { modules = { "sbx.kit.ledger_sqlite" } })
      local seen = {}
      for _, line in ipairs(lines) do
        assert.is_nil(seen[line], line)
        seen[line] = true
      end
      assert.equal(each + each * (programs + 1), #lines)
    end)

    it("waits for one that writes, and reads meanwhile", function()
      local ledger = opened()
      ledger:insert(row())
      local pipe = assert(io.popen(("%s -e %s"):format(helper.shell_quote(helper.sbxlua()),
        helper.shell_quote(([[
          local db = require("_sbx.sqlite").open(%q)
          assert(db:run("BEGIN IMMEDIATE"))
          db:run("UPDATE sessions SET image = 'theirs'")
          print("held") io.stdout:flush()
          require("luv").sleep(700)
          assert(db:run("COMMIT"))
        ]]):format(path))), "r"))
      assert.equal("held", pipe:read("*l"))
      local took = support.timed(function() assert.equal("i", ledger:get("a").image) end)
      assert.is_true(took < 0.4, "a reader waited " .. took)
      took = support.timed(function() assert.is_true(ledger:insert(row { id = "b" })) end)
      assert.is_true(took > 0.2, "a writer did not wait: " .. took)
      pipe:close()
      assert.equal("theirs", ledger:get("a").image)
      assert.equal("i", ledger:get("b").image)
    end)

    it("is prepared when the one that reads it has done so", function()
      local file = database("read.db")
      local pipe = assert(io.popen(("%s -e %s"):format(helper.shell_quote(helper.sbxlua()),
        helper.shell_quote(([[
          local db = require("_sbx.sqlite").open(%q)
          assert(db:run("BEGIN"))
          assert(db:run("SELECT * FROM sqlite_master"))
          print("held") io.stdout:flush()
          require("luv").sleep(300)
          assert(db:run("COMMIT"))
        ]]):format(file))), "r"))
      assert.equal("held", pipe:read("*l"))
      assert.is_true(opened(file):insert(row()))
      pipe:close()
      assert.equal(1, #opened(file):list())
    end)

    it("gives up on one that holds it for too long, with the reason", function()
      local ledger = opened()
      local db = assert(sqlite.open(path))
      run(db, "BEGIN IMMEDIATE")
      run(ledger._db, "PRAGMA busy_timeout = 50")
      for _, try in ipairs {
        function() ledger:insert(row()) end,
        function() ledger:update("a", "live", { image = "x" }) end,
        function() ledger:claim("a", "me", row()) end,
        function() ledger:delete("a") end,
      } do
        local err = failure("SandboxError", try)
        assert.matches("another process has held it for too long", err.message)
        assert.matches("SQLITE_BUSY", err.message)
      end
      run(db, "ROLLBACK")
      db:close()
      assert.is_true(ledger:insert(row()))
    end)

    it("can be used after a change that failed", function()
      local ledger = opened()
      local broken = row()
      broken.image = nil
      failure("SandboxError", ledger.insert, ledger, broken)
      assert.same({}, ledger:list())
      assert.is_true(ledger:insert(row()))
      assert.equal(1, #opened():list())
    end)
  end)
end)
