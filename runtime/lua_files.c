/* SPDX-License-Identifier: MIT
 *
 * Binding of contained file work: require "_sbx.files" (see file_op.h, files.h).
 *
 *   files.open_root(path) -> root | nil, errno name, text     root:path(), root:close()
 *   files.put(root, path, data) -> op       files.get(root, path) -> op
 *   files.remove_tree(root, name) -> op     files.make_dirs(path, mode) -> op
 *   files.list(root, path) -> op
 *   files.data(op) -> string   the bytes of a get, or the names of a list, each with a NUL behind
 * it files.try_lock(root, name) -> lock | nil, errno name, text     lock:close()
 *
 * A function that cannot start its op gives nil, errno name, text.
 */
#include <errno.h>
#include <unistd.h>

#include "file_op.h"
#include "lua_shared.h"

#define ROOT_CLASS "sbx.root"
#define LOCK_CLASS "sbx.lock"

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
  lua_pushlstring(L, data, len);
  return 1;
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
                                     {"remove_tree", files_remove_tree},
                                     {"make_dirs", files_make_dirs},
                                     {"data", files_data},
                                     {"try_lock", files_try_lock},
                                     {NULL, NULL}};
static const luaL_Reg root_methods[] = {{"path", root_path}, {"close", root_close}, {NULL, NULL}};
static const luaL_Reg lock_methods[] = {{"close", lock_close}, {NULL, NULL}};
static const luaL_Reg lock_meta[] = {{"__gc", lock_close}, {NULL, NULL}};
static const luaL_Reg root_meta[] = {{"__gc", root_close}, {NULL, NULL}};

SBX_EXPORT int luaopen__sbx_files(lua_State *L);
int luaopen__sbx_files(lua_State *L) {
  sbx_lua_open_ops(L);
  sbx_lua_new_class(L, ROOT_CLASS, root_methods, root_meta);
  sbx_lua_new_class(L, LOCK_CLASS, lock_methods, lock_meta);
  lua_newtable(L);
  for (const luaL_Reg *function = functions; function->name != NULL; function++) {
    lua_pushcfunction(L, function->func);
    lua_setfield(L, -2, function->name);
  }
  return 1;
}
