/* SPDX-License-Identifier: MIT
 *
 * What the bindings share: the Lua 5.2 helpers that LuaJIT's headers may lack, the way an errno
 * goes to Lua, and the boxes that one binding makes and another takes.
 *
 * A binding checks its arguments, makes its userdata with a sentinel, calls its core without
 * touching the Lua state, then pushes: a raised error never crosses a raw resource.
 */
#ifndef SBX_LUA_SHARED_H
#define SBX_LUA_SHARED_H

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>

#include "files.h"
#include "op.h"

#define SBX_EXPORT __attribute__((visibility("default")))

/* Pushes nil, the errno's name and its text; returns 3. error is -errno. */
int sbx_lua_push_error(lua_State *L, int error);
/* Makes a metatable: methods below __index, meta beside it. Leaves the stack as it was. */
void sbx_lua_new_class(lua_State *L, const char *name, const luaL_Reg *methods,
                       const luaL_Reg *meta);
/* The longest string LuaJIT can hold; pushing a longer one would raise an untyped error. */
#define SBX_LUA_STRING_MAX ((size_t)0x7fffff00 - 64)
/* Raises a Lua error in a forked child, where the engine is not. */
void sbx_lua_check_usable(lua_State *L);
/* A string argument without NUL bytes. */
const char *sbx_lua_check_path(lua_State *L, int index);
/* Registers the class of ops. Every module that makes ops calls it when opened. */
void sbx_lua_open_ops(lua_State *L);
/* Pushes a box for an op; *box is where to put it (owned reference). anchor (a stack index, or 0)
 * is kept alive as long as the box. */
struct sbx_op **sbx_lua_new_op(lua_State *L, int anchor);
/* The open root at a stack index. */
const struct sbx_files_root *sbx_lua_check_root(lua_State *L, int index);

#endif
