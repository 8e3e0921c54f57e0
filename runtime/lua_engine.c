/* SPDX-License-Identifier: MIT
 *
 * Binding of ops and completion ports: require "_sbx.engine" (see op.h, engine.h).
 *
 *   engine.usable() -> boolean  false in a forked child
 *   engine.port() -> port      port:fd(), port:take() -> id | nil
 *   op:id(), op:done(), op:notify(port) -> done already, op:cancel()
 *   op:wait() -> true | nil, name, text    blocks until the op is done
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "lua_shared.h"

#define OP_CLASS "sbx.op"
#define PORT_CLASS "sbx.port"

int sbx_lua_push_error(lua_State *L, int error) {
  const char *name = strerrorname_np(-error);
  lua_pushnil(L);
  lua_pushstring(L, name != NULL ? name : "EUNKNOWN");
  if (error == -EOWNERDEAD)
    lua_pushliteral(L, "this process was forked: the sbx runtime is only in its parent");
  else
    lua_pushstring(L, strerror(-error));
  return 3;
}

void sbx_lua_new_class(lua_State *L, const char *name, const luaL_Reg *methods,
                       const luaL_Reg *meta) {
  luaL_newmetatable(L, name);
  lua_newtable(L);
  for (; methods->name != NULL; methods++) {
    lua_pushcfunction(L, methods->func);
    lua_setfield(L, -2, methods->name);
  }
  lua_setfield(L, -2, "__index");
  for (; meta->name != NULL; meta++) {
    lua_pushcfunction(L, meta->func);
    lua_setfield(L, -2, meta->name);
  }
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  lua_pop(L, 1);
}

void sbx_lua_check_usable(lua_State *L) {
  if (!sbx_engine_usable())
    luaL_error(L, "this process was forked: the sbx runtime is only in its parent");
}

const char *sbx_lua_check_path(lua_State *L, int index) {
  size_t len;
  const char *path = luaL_checklstring(L, index, &len);
  luaL_argcheck(L, strlen(path) == len, index, "must not hold a NUL byte");
  return path;
}

struct sbx_op **sbx_lua_new_op(lua_State *L, int anchor) {
  struct sbx_op **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, OP_CLASS);
  lua_setmetatable(L, -2);
  if (anchor != 0) {
    lua_createtable(L, 1, 0);
    lua_pushvalue(L, anchor);
    lua_rawseti(L, -2, 1);
    lua_setfenv(L, -2);
  }
  return box;
}

static struct sbx_op *check_op(lua_State *L) {
  struct sbx_op *op = *(struct sbx_op **)luaL_checkudata(L, 1, OP_CLASS);
  sbx_lua_check_usable(L);
  if (op == NULL) luaL_error(L, "the op was never started");
  return op;
}

static int op_id(lua_State *L) {
  lua_pushnumber(L, (lua_Number)check_op(L)->id);
  return 1;
}

static int op_done(lua_State *L) {
  lua_pushboolean(L, sbx_op_is_done(check_op(L)));
  return 1;
}

static int op_wait(lua_State *L) {
  int result = sbx_op_wait(check_op(L));
  if (result != 0) return sbx_lua_push_error(L, result);
  lua_pushboolean(L, 1);
  return 1;
}

static int op_notify(lua_State *L) {
  struct sbx_op *op = check_op(L);
  struct sbx_port *port = *(struct sbx_port **)luaL_checkudata(L, 2, PORT_CLASS);
  if (port == NULL) return luaL_error(L, "the port is closed");
  lua_pushboolean(L, sbx_op_notify(op, port));
  return 1;
}

static int op_cancel(lua_State *L) {
  sbx_op_cancel(check_op(L));
  return 0;
}

/* A dropped op is one nobody will hear of: what it lent or waits for is taken back. */
static int op_gc(lua_State *L) {
  struct sbx_op **box = luaL_checkudata(L, 1, OP_CLASS);
  struct sbx_op *op = *box;
  *box = NULL;
  if (op == NULL || !sbx_engine_usable()) return 0;
  sbx_op_cancel(op);
  if (op->lends) sbx_op_wait(op);
  sbx_op_unref(op);
  return 0;
}

static int engine_usable(lua_State *L) {
  lua_pushboolean(L, sbx_engine_usable());
  return 1;
}

static int port_new(lua_State *L) {
  sbx_lua_check_usable(L);
  struct sbx_port **box = lua_newuserdata(L, sizeof *box);
  *box = NULL;
  luaL_getmetatable(L, PORT_CLASS);
  lua_setmetatable(L, -2);
  int rc = sbx_port_new(box);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static struct sbx_port *check_port(lua_State *L) {
  struct sbx_port *port = *(struct sbx_port **)luaL_checkudata(L, 1, PORT_CLASS);
  sbx_lua_check_usable(L);
  if (port == NULL) luaL_error(L, "the port is closed");
  return port;
}

static int port_fd(lua_State *L) {
  lua_pushinteger(L, sbx_port_fd(check_port(L)));
  return 1;
}

static int port_take(lua_State *L) {
  uint64_t id;
  if (!sbx_port_take(check_port(L), &id)) return 0;
  lua_pushnumber(L, (lua_Number)id);
  return 1;
}

static int port_gc(lua_State *L) {
  struct sbx_port **box = luaL_checkudata(L, 1, PORT_CLASS);
  if (*box != NULL && sbx_engine_usable()) sbx_port_unref(*box);
  *box = NULL;
  return 0;
}

static const luaL_Reg op_methods[] = {{"id", op_id},         {"done", op_done},
                                      {"wait", op_wait},     {"notify", op_notify},
                                      {"cancel", op_cancel}, {NULL, NULL}};
static const luaL_Reg op_meta[] = {{"__gc", op_gc}, {NULL, NULL}};
static const luaL_Reg port_methods[] = {{"fd", port_fd}, {"take", port_take}, {NULL, NULL}};
static const luaL_Reg port_meta[] = {{"__gc", port_gc}, {NULL, NULL}};

void sbx_lua_open_ops(lua_State *L) {
  sbx_lua_new_class(L, OP_CLASS, op_methods, op_meta);
}

SBX_EXPORT int luaopen__sbx_engine(lua_State *L);
int luaopen__sbx_engine(lua_State *L) {
  sbx_lua_open_ops(L);
  sbx_lua_new_class(L, PORT_CLASS, port_methods, port_meta);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, port_new);
  lua_setfield(L, -2, "port");
  lua_pushcfunction(L, engine_usable);
  lua_setfield(L, -2, "usable");
  return 1;
}
