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
  SQLITE = { header = "sqlite3.h", library = "sqlite3" },
}
build = {
  type = "builtin",
  modules = {
    _sbx = {
      sources = {
        "runtime/engine.c",
        "runtime/exec.c",
        "runtime/exec_output.c",
        "runtime/exec_run.c",
        "runtime/feed.c",
        "runtime/file_op.c",
        "runtime/files.c",
        "runtime/files_list.c",
        "runtime/files_resolve.c",
        "runtime/files_tree.c",
        "runtime/lua_engine.c",
        "runtime/lua_exec.c",
        "runtime/lua_files.c",
        "runtime/lua_owner.c",
        "runtime/op.c",
        "runtime/output.c",
        "runtime/owner.c",
        "runtime/process.c",
        "runtime/process_group.c",
      },
      incdirs = { "runtime", "$(LIBUV_INCDIR)" },
      libdirs = { "$(LIBUV_LIBDIR)" },
      libraries = { "uv", "pthread" },
    },
    ["sbx.conformance.cases.exec"] = "lua/sbx/conformance/cases/exec.lua",
    ["sbx.conformance.cases.files"] = "lua/sbx/conformance/cases/files.lua",
    ["sbx.conformance.cases.handle"] = "lua/sbx/conformance/cases/handle.lua",
    ["sbx.conformance.cases.lifecycle"] = "lua/sbx/conformance/cases/lifecycle.lua",
    ["sbx.conformance.cases.policy"] = "lua/sbx/conformance/cases/policy.lua",
    ["sbx.conformance.cases.stops"] = "lua/sbx/conformance/cases/stops.lua",
    ["sbx.conformance.commands"] = "lua/sbx/conformance/commands.lua",
    ["sbx.conformance.config"] = "lua/sbx/conformance/config.lua",
    ["sbx.conformance.context"] = "lua/sbx/conformance/context.lua",
    ["sbx.conformance"] = "lua/sbx/conformance/init.lua",
    ["sbx.conformance.programs"] = "lua/sbx/conformance/programs.lua",
    ["sbx.doors.cli"] = "lua/sbx/doors/cli.lua",
    ["sbx.doors.cli.options"] = "lua/sbx/doors/cli/options.lua",
    ["sbx.doors.cli.run"] = "lua/sbx/doors/cli/run.lua",
    ["sbx.doors.cli.stdio"] = "lua/sbx/doors/cli/stdio.lua",
    ["sbx.errors"] = "lua/sbx/errors.lua",
    ["sbx"] = "lua/sbx/init.lua",
    ["sbx.json"] = "lua/sbx/json.lua",
    ["sbx.kit.exec"] = "lua/sbx/kit/exec.lua",
    ["sbx.kit"] = "lua/sbx/kit/init.lua",
    ["sbx.kit.ledger_memory"] = "lua/sbx/kit/ledger_memory.lua",
    ["sbx.kit.ledger_sqlite"] = "lua/sbx/kit/ledger_sqlite.lua",
    ["sbx.kit.recovery"] = "lua/sbx/kit/recovery.lua",
    ["sbx.kit.sandbox"] = "lua/sbx/kit/sandbox.lua",
    ["sbx.kit.session"] = "lua/sbx/kit/session.lua",
    ["sbx.log"] = "lua/sbx/log.lua",
    ["sbx.loop"] = "lua/sbx/loop.lua",
    ["sbx.manifest"] = "lua/sbx/manifest.lua",
    ["sbx.models"] = "lua/sbx/models.lua",
    ["sbx.policy"] = "lua/sbx/policy.lua",
    ["sbx.sandboxes"] = "lua/sbx/sandboxes.lua",
    ["sbx.secret"] = "lua/sbx/secret.lua",
    ["sbx.settings"] = "lua/sbx/settings.lua",
    ["sbx.task"] = "lua/sbx/task.lua",
    ["sbx.waits"] = "lua/sbx/waits.lua",
    ["sbx.providers.local"] = "providers/local/init.lua",
    ["sbx.providers.local.session"] = "providers/local/session.lua",
    ["sbx.providers.local.workspaces"] = "providers/local/workspaces.lua",
  },
}
