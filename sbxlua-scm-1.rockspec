-- SPDX-License-Identifier: MIT
-- LuaRocks has no wildcards: `make lint` checks that every source stands here.
rockspec_format = "3.0"
package = "sbxlua"
version = "scm-1"
source = { url = "." }
description = {
  summary = "A Lua-scriptable sandbox runtime",
  license = "MIT",
}
dependencies = { "lua == 5.1", "luv" }
external_dependencies = {
  LIBUV = { header = "uv.h", library = "uv" },
}
build = {
  type = "builtin",
  modules = {
    _sbx = {
      sources = {},
      incdirs = { "runtime", "$(LIBUV_INCDIR)" },
      libdirs = { "$(LIBUV_LIBDIR)" },
      libraries = { "uv", "pthread" },
    },
  },
}
