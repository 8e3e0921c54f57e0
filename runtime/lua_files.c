/* SPDX-License-Identifier: MIT
 *
 * Binding of contained file work: require "_sbx.files" (see file_op.h, files.h).
 *
 *   files.open_root(path) -> root | nil, errno name, text     root:path(), root:close()
 *   files.put(root, path, data) -> op       files.get(root, path) -> op
 *   files.remove_tree(root, name) -> op     files.make_dirs(path, mode) -> op
 *   files.list(root, path) -> op            files.scan(root, path) -> op
 *   files.stat(root, path) -> op            files.remove(root, path, recursive) -> op
 *   files.data(op) -> string   the bytes of a get, or the names of a list, each with a NUL behind
 *   files.entries(op) -> list of { name (not of a stat), type, size, mode, mtime }
 *   files.try_lock(root, name) -> lock | nil, errno name, text     lock:close()
 *   files.stream() -> stream, for one put or get in pieces; each but the last gives an op
 *     stream:open_put(root, path), stream:write(data), stream:commit()
 *     stream:open_get(root, path), stream:read()
 *     stream:close()
 *     stream:piece() -> string   what the last read brought, "" at the file's end
 *
 * A function that cannot start its op gives nil, errno name, text.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine.h"
#include "file_op.h"
#include "lua_shared.h"

#define ROOT_CLASS "sbx.root"
#define LOCK_CLASS "sbx.lock"
#define STREAM_CLASS "sbx.stream"

static struct sbx_root *check_root(lua_State *L, int index) {
  struct sbx_root *root = *(struct sbx_root **)luaL_checkudata(L, index, ROOT_CLASS);
  sbx_lua_check_usable(L);
  if (root == NULL) luaL_error(L, "the root is closed");
  return root;
}

const struct sbx_files_root *sbx_lua_check_root(lua_State *L, int index) {
  return sbx_root_files(check_root(L, index));
}

static int files_open_root(lua_State *L) {
  const char *path = sbx_lua_check_path(L, 1);
  struct sbx_root **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, ROOT_CLASS);
  lua_setmetatable(L, -2);
  int rc = sbx_root_open(path, box);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_put(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *path = sbx_lua_check_path(L, 2);
  size_t len;
  const char *data = luaL_checklstring(L, 3, &len);
  struct sbx_op **op = sbx_lua_new_op(L, 3);
  int rc = sbx_file_op_put(root, path, data, len, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_get(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *path = sbx_lua_check_path(L, 2);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_get(root, path, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_list(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *path = sbx_lua_check_path(L, 2);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_list(root, path, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_scan(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *path = sbx_lua_check_path(L, 2);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_scan(root, path, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_stat(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *path = sbx_lua_check_path(L, 2);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_stat(root, path, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_remove(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *path = sbx_lua_check_path(L, 2);
  bool recursive = lua_toboolean(L, 3) != 0;
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_remove(root, path, recursive, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_remove_tree(lua_State *L) {
  struct sbx_root *root = check_root(L, 1);
  const char *name = sbx_lua_check_path(L, 2);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_remove_tree(root, name, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_make_dirs(lua_State *L) {
  sbx_lua_check_usable(L);
  const char *path = sbx_lua_check_path(L, 1);
  lua_Integer mode = luaL_checkinteger(L, 2);
  luaL_argcheck(L, mode >= 0 && mode <= 07777, 2, "must be a file mode");
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_make_dirs(path, (mode_t)mode, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int files_data(lua_State *L) {
  const void *data;
  size_t len;
  struct sbx_op *op = *(struct sbx_op **)luaL_checkudata(L, 1, "sbx.op");
  sbx_lua_check_usable(L);
  if (op == NULL || !sbx_file_op_data(op, &data, &len))
    return luaL_error(L, "the op has read no file");
  if (len > SBX_LUA_STRING_MAX) return sbx_lua_push_error(L, -EFBIG);
  lua_pushlstring(L, data, len);
  return 1;
}

static const char *type_name(mode_t mode) {
  return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "link" : "other";
}

static void push_entry(lua_State *L, const struct sbx_files_entry *entry) {
  lua_createtable(L, 0, 5);
  if (entry->name != NULL) {
    lua_pushstring(L, entry->name);
    lua_setfield(L, -2, "name");
  }
  lua_pushstring(L, type_name(entry->mode));
  lua_setfield(L, -2, "type");
  lua_pushnumber(L, (lua_Number)entry->size);
  lua_setfield(L, -2, "size");
  lua_pushinteger(L, (lua_Integer)(entry->mode & 07777));
  lua_setfield(L, -2, "mode");
  lua_pushnumber(L, (lua_Number)entry->mtime.tv_sec + (lua_Number)entry->mtime.tv_nsec / 1e9);
  lua_setfield(L, -2, "mtime");
}

static int files_entries(lua_State *L) {
  struct sbx_op *op = *(struct sbx_op **)luaL_checkudata(L, 1, "sbx.op");
  sbx_lua_check_usable(L);
  const struct sbx_files_entries *entries = op == NULL ? NULL : sbx_file_op_entries(op);
  if (entries == NULL) return luaL_error(L, "the op has found no entries");
  lua_newtable(L);
  for (size_t i = 0; i < entries->count; i++) {
    push_entry(L, &entries->list[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

static struct sbx_stream *check_stream(lua_State *L) {
  struct sbx_stream *stream = *(struct sbx_stream **)luaL_checkudata(L, 1, STREAM_CLASS);
  sbx_lua_check_usable(L);
  if (stream == NULL) luaL_error(L, "the stream was never made");
  return stream;
}

static int files_stream(lua_State *L) {
  sbx_lua_check_usable(L);
  struct sbx_stream **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, STREAM_CLASS);
  lua_setmetatable(L, -2);
  int rc = sbx_stream_new(box);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int stream_open_put(lua_State *L) {
  struct sbx_stream *stream = check_stream(L);
  struct sbx_root *root = check_root(L, 2);
  const char *path = sbx_lua_check_path(L, 3);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_open_put(stream, root, path, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int stream_open_get(lua_State *L) {
  struct sbx_stream *stream = check_stream(L);
  struct sbx_root *root = check_root(L, 2);
  const char *path = sbx_lua_check_path(L, 3);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = sbx_file_op_open_get(stream, root, path, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int stream_write(lua_State *L) {
  struct sbx_stream *stream = check_stream(L);
  size_t len;
  const char *data = luaL_checklstring(L, 2, &len);
  struct sbx_op **op = sbx_lua_new_op(L, 2);
  int rc = sbx_file_op_write(stream, data, len, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int stream_op(lua_State *L, int (*begin)(struct sbx_stream *, struct sbx_op **)) {
  struct sbx_stream *stream = check_stream(L);
  struct sbx_op **op = sbx_lua_new_op(L, 0);
  int rc = begin(stream, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int stream_commit(lua_State *L) {
  return stream_op(L, sbx_file_op_commit);
}

static int stream_read(lua_State *L) {
  return stream_op(L, sbx_file_op_read);
}

static int stream_close(lua_State *L) {
  return stream_op(L, sbx_file_op_close);
}

static int stream_piece(lua_State *L) {
  const void *data;
  size_t len;
  if (!sbx_stream_piece(check_stream(L), &data, &len))
    return luaL_error(L, "an op of the stream has not ended");
  lua_pushlstring(L, data, len);
  return 1;
}

/* In a forked child the file is the parent's to keep or remove. */
static int stream_gc(lua_State *L) {
  struct sbx_stream **box = luaL_checkudata(L, 1, STREAM_CLASS);
  if (*box != NULL && sbx_engine_usable()) sbx_stream_unref(*box);
  *box = NULL;
  return 0;
}

static int files_try_lock(lua_State *L) {
  const struct sbx_files_root *root = sbx_lua_check_root(L, 1);
  const char *name = sbx_lua_check_path(L, 2);
  int *fd = lua_newuserdata(L, sizeof *fd);
  *fd = -1;
  luaL_getmetatable(L, LOCK_CLASS);
  lua_setmetatable(L, -2);
  int rc = sbx_files_try_lock(root, name, fd);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static int lock_close(lua_State *L) {
  int *fd = luaL_checkudata(L, 1, LOCK_CLASS);
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return 0;
}

static int root_path(lua_State *L) {
  lua_pushstring(L, sbx_lua_check_root(L, 1)->path);
  return 1;
}

static int root_close(lua_State *L) {
  struct sbx_root **box = luaL_checkudata(L, 1, ROOT_CLASS);
  if (*box != NULL) sbx_root_unref(*box);
  *box = NULL;
  return 0;
}

static const luaL_Reg functions[] = {{"open_root", files_open_root},
                                     {"put", files_put},
                                     {"get", files_get},
                                     {"list", files_list},
                                     {"scan", files_scan},
                                     {"stat", files_stat},
                                     {"remove", files_remove},
                                     {"remove_tree", files_remove_tree},
                                     {"make_dirs", files_make_dirs},
                                     {"data", files_data},
                                     {"entries", files_entries},
                                     {"try_lock", files_try_lock},
                                     {"stream", files_stream},
                                     {NULL, NULL}};
static const luaL_Reg stream_methods[] = {
    {"open_put", stream_open_put}, {"open_get", stream_open_get},
    {"write", stream_write},       {"commit", stream_commit},
    {"read", stream_read},         {"piece", stream_piece},
    {"close", stream_close},       {NULL, NULL}};
static const luaL_Reg stream_meta[] = {{"__gc", stream_gc}, {NULL, NULL}};
static const luaL_Reg root_methods[] = {{"path", root_path}, {"close", root_close}, {NULL, NULL}};
static const luaL_Reg lock_methods[] = {{"close", lock_close}, {NULL, NULL}};
static const luaL_Reg lock_meta[] = {{"__gc", lock_close}, {NULL, NULL}};
static const luaL_Reg root_meta[] = {{"__gc", root_close}, {NULL, NULL}};

SBX_EXPORT int luaopen__sbx_files(lua_State *L);
int luaopen__sbx_files(lua_State *L) {
  sbx_lua_open_ops(L);
  sbx_lua_new_class(L, ROOT_CLASS, root_methods, root_meta);
  sbx_lua_new_class(L, LOCK_CLASS, lock_methods, lock_meta);
  sbx_lua_new_class(L, STREAM_CLASS, stream_methods, stream_meta);
  lua_newtable(L);
  for (const luaL_Reg *function = functions; function->name != NULL; function++) {
    lua_pushcfunction(L, function->func);
    lua_setfield(L, -2, function->name);
  }
  return 1;
}
