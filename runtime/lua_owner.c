/* SPDX-License-Identifier: MIT
 *
 * Binding of process identities: require "_sbx.owner" (see owner.h).
 *
 *   owner.self() -> text | nil, errno name, errno text
 *   owner.may_live(text) -> boolean
 */
#include "owner.h"

#include "lua_shared.h"

static int owner_self(lua_State *L) {
  char text[SBX_OWNER_MAX];
  int rc = sbx_owner_self(text);
  if (rc != 0) return sbx_lua_push_error(L, rc);
  lua_pushstring(L, text);
  return 1;
}

static int owner_may_live(lua_State *L) {
  lua_pushboolean(L, sbx_owner_may_live(luaL_checkstring(L, 1)));
  return 1;
}

SBX_EXPORT int luaopen__sbx_owner(lua_State *L);
int luaopen__sbx_owner(lua_State *L) {
  lua_createtable(L, 0, 2);
  lua_pushcfunction(L, owner_self);
  lua_setfield(L, -2, "self");
  lua_pushcfunction(L, owner_may_live);
  lua_setfield(L, -2, "may_live");
  return 1;
}
