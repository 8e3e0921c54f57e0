-- SPDX-License-Identifier: MIT
--
-- The ledger in SQLite: sessions shared by the processes of one host (SPEC P5).
--
-- The same interface as the memory ledger. WAL mode lets readers and one writer go on side by side;
-- what would be two steps is one conditional UPDATE, so two processes never both win. A file that
-- is no database, is damaged, or comes from a newer sbxlua is refused by name and left as it is.

-- A compiled pairs() may end early (LuaJIT/LuaJIT#827).
if jit then jit.off(true, true) end

local errors = require "sbx.errors"
local loop = require "sbx.loop"
local files = require "_sbx.files"
local sqlite = require "_sbx.sqlite"
local task = require "sbx.task"

local M = {}

local BUSY_SECONDS = 10
local LOOK_AGAIN_SECONDS = 0.01
local DIR_MODE = tonumber("700", 8)

-- One entry brings the schema from its number minus one to its number.
local MIGRATIONS = {
  {
    [[CREATE TABLE sessions (
        id TEXT PRIMARY KEY, provider TEXT NOT NULL, image TEXT NOT NULL,
        workspace_key TEXT NOT NULL, workspace_path TEXT, durability TEXT NOT NULL,
        created_at REAL NOT NULL, expires_at REAL NOT NULL, ttl_seconds INTEGER NOT NULL,
        has_env INTEGER NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL, claimed_by TEXT)
        WITHOUT ROWID]],
    [[CREATE TABLE labels (
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        name TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (session_id, name)) WITHOUT ROWID]],
    [[CREATE TABLE ledger (id TEXT NOT NULL)]],
    [[INSERT INTO ledger VALUES (lower(hex(randomblob(16))))]],
  },
}

local COLUMNS = { "id", "provider", "image", "workspace_key", "workspace_path", "durability",
  "created_at", "expires_at", "ttl_seconds", "has_env", "state", "owner", "claimed_by" }

local IS_COLUMN = {}
for _, column in ipairs(COLUMNS) do IS_COLUMN[column] = true end

---@class sbx.SqliteLedger : sbx.Ledger
local Ledger = {}
Ledger.__index = Ledger

local HINTS = {
  SQLITE_NOTADB = "it is not an SQLite database; it was left as it is",
  SQLITE_CORRUPT = "the database is damaged; it was left as it is",
  SQLITE_BUSY = "another process has held it for too long",
}

local function failure(self, doing, name, text)
  local hint = HINTS[name]
  return errors.SandboxError(("ledger %s: cannot %s: %s%s (%s)"):format(
    errors.quote(self._path, 200), doing, hint and hint .. ": " or "", text, name))
end

local function run(self, doing, sql, ...)
  local rows, name, text = self._db:run(sql, ...)
  if not rows then errors.raise(failure(self, doing, name, text)) end
  return rows
end

local function transaction(self, doing, kind, fn)
  run(self, doing, "BEGIN " .. kind)
  local ok, result = pcall(function()
    local out = fn()
    run(self, doing, "COMMIT")
    return out
  end)
  if ok then return result end
  self._db:run("ROLLBACK")
  error(result, 0)
end

local function version(self)
  return run(self, "read its version", "PRAGMA user_version")[1].user_version
end

-- The version of a file that is ours or empty. One statement sees one state of the file, also while
-- another process prepares it.
local function checked_version(self)
  local seen = run(self, "read its schema", [[SELECT user_version AS version,
    (SELECT count(*) FROM sqlite_master) AS parts,
    (SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'ledger') AS ours
    FROM pragma_user_version]])[1]
  local found = seen.version
  if found <= #MIGRATIONS then
    if found > 0 and seen.ours == 1 or found == 0 and seen.parts == 0 then return found end
    errors.raise(errors.SandboxError(("ledger %s: it is a database of something else; it was left "
      .. "as it is"):format(errors.quote(self._path, 200))))
  end
  errors.raise(errors.SandboxError(("ledger %s: its schema has version %d, and this sbxlua knows "
    .. "versions up to %d: a newer sbxlua made it. It was left as it is"):format(
      errors.quote(self._path, 200), found, #MIGRATIONS)))
end

-- SQLite waits for no other process here: two that switch at once would wait for each other.
local function switch_to_wal(self)
  local until_time = loop.monotonic() + BUSY_SECONDS
  while true do
    local rows, name, text = self._db:run("PRAGMA journal_mode = WAL")
    if rows then return end
    if name ~= "SQLITE_BUSY" or loop.monotonic() > until_time then
      errors.raise(failure(self, "prepare it", name, text))
    end
    loop.block(LOOK_AGAIN_SECONDS)
  end
end

local function migrate(self)
  if checked_version(self) == #MIGRATIONS then return end
  switch_to_wal(self)
  transaction(self, "prepare it", "IMMEDIATE", function()
    -- Read again: another process may have been first.
    for step = version(self) + 1, #MIGRATIONS do
      for _, sql in ipairs(MIGRATIONS[step]) do
        run(self, "prepare it", sql)
      end
      run(self, "prepare it", "PRAGMA user_version = " .. step)
    end
  end)
end

local function make_directory(path)
  local directory = path:match("^(.*)/[^/]*$")
  if not directory or directory == "" then return end
  local op, name, text = files.make_dirs(directory, DIR_MODE)
  local ok = op
  if op then ok, name, text = task.await(op) end
  if not ok then
    errors.raise(errors.SandboxError(("ledger: cannot make the directory %s: %s (%s)"):format(
      errors.quote(directory, 200), text, name)))
  end
end

---Opens a ledger, making it (mode 0600) when it is not there.
---@param path string absolute
---@return sbx.SqliteLedger
---Raises SandboxError.
function M.new(path)
  if path:sub(1, 1) ~= "/" then
    errors.raise(errors.SandboxError(("ledger %s: its path must be absolute: a relative one would "
      .. "be another file for each process"):format(errors.quote(path, 200))))
  end
  make_directory(path)
  local self = setmetatable({ _path = path }, Ledger)
  local db, name, text = sqlite.open(path)
  if not db then errors.raise(failure(self, "open it", name, text)) end
  self._db = db
  local ok, err = pcall(function()
    run(self, "open it", "PRAGMA busy_timeout = " .. BUSY_SECONDS * 1000)
    run(self, "open it", "PRAGMA foreign_keys = ON")
    run(self, "open it", "PRAGMA synchronous = NORMAL")
    migrate(self)
  end)
  if not ok then
    db:close()
    error(err, 0)
  end
  return self
end

---Whether other processes can see the rows.
Ledger.shared = true

function Ledger:insert(row)
  return transaction(self, "record a session", "IMMEDIATE", function()
    local marks, values = {}, {}
    for i, column in ipairs(COLUMNS) do
      marks[i], values[i] = "?", row[column]
    end
    run(self, "record a session", (
      "INSERT INTO sessions (%s) VALUES (%s) ON CONFLICT (id) DO NOTHING"):format(
      table.concat(COLUMNS, ", "), table.concat(marks, ", ")), unpack(values, 1, #COLUMNS))
    if self._db:changes() == 0 then return false end
    for label, value in pairs(row.labels) do
      run(self, "record a session", "INSERT INTO labels VALUES (?, ?, ?)", row.id, label, value)
    end
    return true
  end)
end

local function with_labels(self, rows)
  local by_id = {}
  for _, row in ipairs(rows) do
    row.labels = {}
    row.has_env = row.has_env == 1
    by_id[row.id] = row
  end
  local labels = #rows == 1
    and run(self, "read it", "SELECT * FROM labels WHERE session_id = ?", rows[1].id)
    or #rows > 1 and run(self, "read it", "SELECT * FROM labels") or {}
  for _, label in ipairs(labels) do
    local row = by_id[label.session_id]
    if row then row.labels[label.name] = label.value end
  end
  return rows
end

function Ledger:get(id)
  if type(id) ~= "string" then return nil end
  return with_labels(self, run(self, "read it", "SELECT * FROM sessions WHERE id = ?", id))[1]
end

function Ledger:list()
  return transaction(self, "read it", "DEFERRED", function()
    return with_labels(self,
      run(self, "read it", "SELECT * FROM sessions ORDER BY created_at, id"))
  end)
end

function Ledger:update(id, from, fields)
  local sets, values, count = {}, {}, 0
  for column, value in pairs(fields) do
    assert(IS_COLUMN[column] and column ~= "id", "no such column in the ledger")
    count = count + 1
    sets[count] = column .. " = ?"
    values[count] = value or nil
  end
  values[count + 1], values[count + 2] = id, from
  run(self, "change a session", ("UPDATE sessions SET %s WHERE id = ? AND state = ?"):format(
    table.concat(sets, ", ")), unpack(values, 1, count + 2))
  return self._db:changes() == 1
end

function Ledger:claim(id, claimant, before)
  run(self, "claim a session", [[UPDATE sessions SET state = 'destroying', claimed_by = ?
    WHERE id = ? AND state = ? AND claimed_by IS ?]], claimant, id, before.state, before.claimed_by)
  return self._db:changes() == 1
end

function Ledger:release(id, state)
  run(self, "give a claim back", "UPDATE sessions SET state = ?, claimed_by = NULL WHERE id = ?",
    state, id)
end

---@return string what tells this ledger from every other
function Ledger:identity()
  self._identity = self._identity or run(self, "read it", "SELECT id FROM ledger")[1].id
  return self._identity
end

function Ledger:delete(id, before)
  if before then
    run(self, "remove a session", [[DELETE FROM sessions
      WHERE id = ? AND state = ? AND claimed_by IS ?]], id, before.state, before.claimed_by)
  else
    run(self, "remove a session", "DELETE FROM sessions WHERE id = ?", id)
  end
end

---Closes the file. Idempotent.
function Ledger:close()
  self._db:close()
end

return M
