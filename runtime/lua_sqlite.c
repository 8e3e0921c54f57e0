/* SPDX-License-Identifier: MIT
 *
 * Binding of SQLite: require "_sbx.sqlite". A module of its own, so that only a program that keeps
 * a ledger or presets on disk loads the library.
 *
 *   sqlite.open(path) -> db | nil, code name, text      makes the file (0600) when it is missing
 *   db:run(sql, ...) -> rows | nil, code name, text      one statement, its values bound
 *   db:changes() -> rows changed by the last statement
 *   db:close()                                           idempotent; also on collection
 *
 * Rows are tables by column name, NULL an absent field. Values are bound, never pasted. Numbers
 * keep their value (SPEC A6): whole ones up to 2^53 are integers, others doubles; an integer beyond
 * that comes back as its digits.
 */
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lua_shared.h"

#define DB_CLASS "sbx.sqlite"
#define EXACT 9007199254740992.0 /* 2^53 */

struct db {
  sqlite3 *handle;
  sqlite3_stmt *statement; /* of the call under way, or of one an error cut short */
};

static const char *code_name(int code) {
  switch (code & 0xff) {
  case SQLITE_BUSY:
    return "SQLITE_BUSY";
  case SQLITE_LOCKED:
    return "SQLITE_LOCKED";
  case SQLITE_CANTOPEN:
    return "SQLITE_CANTOPEN";
  case SQLITE_CORRUPT:
    return "SQLITE_CORRUPT";
  case SQLITE_NOTADB:
    return "SQLITE_NOTADB";
  case SQLITE_READONLY:
    return "SQLITE_READONLY";
  case SQLITE_FULL:
    return "SQLITE_FULL";
  case SQLITE_IOERR:
    return "SQLITE_IOERR";
  case SQLITE_NOMEM:
    return "SQLITE_NOMEM";
  case SQLITE_CONSTRAINT:
    return "SQLITE_CONSTRAINT";
  default:
    return "SQLITE_ERROR";
  }
}

static int push_failure(lua_State *L, struct db *db, int code) {
  lua_pushnil(L);
  lua_pushstring(L, code_name(code));
  lua_pushstring(L, db->handle != NULL ? sqlite3_errmsg(db->handle) : sqlite3_errstr(code));
  return 3;
}

static void end_statement(struct db *db) {
  sqlite3_finalize(db->statement);
  db->statement = NULL;
}

static int db_close(lua_State *L) {
  struct db *db = luaL_checkudata(L, 1, DB_CLASS);
  end_statement(db);
  sqlite3_close(db->handle);
  db->handle = NULL;
  return 0;
}

/* A new file is ours alone (0600, whatever the umask), and so are those that SQLite puts beside it.
 * One that is there is not opened here: closing it again would drop the locks this process may
 * hold on it. */
static void make_private(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  (void)fchmod(fd, 0600); /* if it stays shut, the opening fails and says so */
  close(fd);
}

static int sqlite_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  struct db *db = lua_newuserdata(L, sizeof *db);
  *db = (struct db){0};
  luaL_getmetatable(L, DB_CLASS);
  lua_setmetatable(L, -2);
  make_private(path);
  int rc = sqlite3_open_v2(path, &db->handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
  if (rc != SQLITE_OK) return push_failure(L, db, rc);
  sqlite3_extended_result_codes(db->handle, 1);
  return 1;
}

static struct db *check_db(lua_State *L) {
  struct db *db = luaL_checkudata(L, 1, DB_CLASS);
  if (db->handle == NULL) luaL_error(L, "the database is closed");
  end_statement(db);
  return db;
}

static int bind_number(sqlite3_stmt *statement, int at, lua_Number value) {
  if (value >= -EXACT && value <= EXACT && value == (lua_Number)(sqlite3_int64)value)
    return sqlite3_bind_int64(statement, at, (sqlite3_int64)value);
  return sqlite3_bind_double(statement, at, value);
}

static int bind(lua_State *L, sqlite3_stmt *statement, int at, int index) {
  size_t len;
  switch (lua_type(L, index)) {
  case LUA_TNIL:
    return sqlite3_bind_null(statement, at);
  case LUA_TBOOLEAN:
    return sqlite3_bind_int(statement, at, lua_toboolean(L, index));
  case LUA_TNUMBER:
    return bind_number(statement, at, lua_tonumber(L, index));
  case LUA_TSTRING: {
    const char *text = lua_tolstring(L, index, &len);
    /* The string stays on the stack until the statement has run. */
    return sqlite3_bind_text64(statement, at, text, len, SQLITE_STATIC, SQLITE_UTF8);
  }
  default:
    return luaL_argerror(L, index, "cannot be bound");
  }
}

static void push_integer(lua_State *L, sqlite3_int64 value) {
  if (value >= -(sqlite3_int64)EXACT && value <= (sqlite3_int64)EXACT) {
    lua_pushnumber(L, (lua_Number)value);
  } else {
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    lua_pushstring(L, digits);
  }
}

static void push_column(lua_State *L, sqlite3_stmt *statement, int column) {
  switch (sqlite3_column_type(statement, column)) {
  case SQLITE_INTEGER:
    push_integer(L, sqlite3_column_int64(statement, column));
    break;
  case SQLITE_FLOAT:
    lua_pushnumber(L, sqlite3_column_double(statement, column));
    break;
  case SQLITE_NULL:
    lua_pushnil(L);
    break;
  default: {
    const void *data = sqlite3_column_blob(statement, column);
    lua_pushlstring(L, data != NULL ? data : "", (size_t)sqlite3_column_bytes(statement, column));
  }
  }
}

static void push_row(lua_State *L, sqlite3_stmt *statement) {
  int columns = sqlite3_column_count(statement);
  lua_createtable(L, 0, columns);
  for (int i = 0; i < columns; i++) {
    lua_pushstring(L, sqlite3_column_name(statement, i));
    push_column(L, statement, i);
    lua_rawset(L, -3);
  }
}

static int db_run(lua_State *L) {
  size_t len;
  struct db *db = check_db(L);
  const char *sql = luaL_checklstring(L, 2, &len);
  int given = lua_gettop(L) - 2;
  int rc = sqlite3_prepare_v2(db->handle, sql, (int)len, &db->statement, NULL);
  if (rc != SQLITE_OK) return push_failure(L, db, rc);
  luaL_argcheck(L, sqlite3_bind_parameter_count(db->statement) == given, 2,
                "wants another number of values");
  for (int i = 1; i <= given && rc == SQLITE_OK; i++)
    rc = bind(L, db->statement, i, i + 2);
  lua_newtable(L);
  int count = 0;
  while (rc == SQLITE_OK && (rc = sqlite3_step(db->statement)) == SQLITE_ROW) {
    push_row(L, db->statement);
    lua_rawseti(L, -2, ++count);
    rc = SQLITE_OK;
  }
  int results = rc == SQLITE_DONE ? 1 : push_failure(L, db, rc);
  end_statement(db);
  return results;
}

static int db_changes(lua_State *L) {
  lua_pushinteger(L, sqlite3_changes(check_db(L)->handle));
  return 1;
}

static const luaL_Reg methods[] = {
    {"run", db_run}, {"changes", db_changes}, {"close", db_close}, {NULL, NULL}};

SBX_EXPORT int luaopen__sbx_sqlite(lua_State *L);
int luaopen__sbx_sqlite(lua_State *L) {
  luaL_newmetatable(L, DB_CLASS);
  lua_newtable(L);
  luaL_register(L, NULL, methods);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, db_close);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, sqlite_open);
  lua_setfield(L, -2, "open");
  return 1;
}
