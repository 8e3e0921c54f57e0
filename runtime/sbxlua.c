/* SPDX-License-Identifier: MIT
 *
 * The host program: a LuaJIT interpreter with the C modules of the runtime preloaded.
 *
 * It owns the process: the signal dispositions and standard descriptors it starts with, the one
 * lua_State, and the exit code. Every path that opened the state closes it again, so that __gc
 * clean-up runs. Nothing but the standard libraries is loaded at the start.
 *
 * Modules are found relative to the executable, before LUA_PATH: below a source tree
 * (<root>/build/<flavour>/sbxlua) in <root>/lua and <root>/providers, else in
 * <prefix>/share/lua/5.1. A provider's directory has no place of its own below lua/, hence the
 * extra searcher for `sbx.providers.*`, needed in a source tree only.
 *
 * Exit codes: 0, 1 for an error raised by Lua code, 2 for wrong usage, or what a sub-command or
 * os.exit gives.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <luajit.h>
#include <lualib.h>

#ifndef SBXLUA_VERSION
#define SBXLUA_VERSION "dev"
#endif

#define PROVIDER_PREFIX "sbx.providers."

enum { EXIT_ERROR = 1, EXIT_USAGE = 2 };

int luaopen__sbx_engine(lua_State *L);
int luaopen__sbx_exec(lua_State *L);
int luaopen__sbx_files(lua_State *L);
int luaopen__sbx_owner(lua_State *L);

static const luaL_Reg preloaded_modules[] = {
    {"_sbx.engine", luaopen__sbx_engine},
    {"_sbx.exec", luaopen__sbx_exec},
    {"_sbx.files", luaopen__sbx_files},
    {"_sbx.owner", luaopen__sbx_owner},
    {NULL, NULL},
};

/* Words that the command line door takes; any other first argument is a file. */
static const char *const sub_commands[] = {"run", "conformance", NULL};

static const char usage_text[] =
    "usage: sbxlua [-e CODE]... [FILE [ARGS]...]\n"
    "       sbxlua run [OPTIONS] -- COMMAND...\n"
    "       sbxlua conformance MODULE [OPTIONS]\n"
    "  -e CODE        run CODE, before FILE; may be given several times\n"
    "  -v, --version  print the version\n"
    "  -h, --help     print this text\n"
    "  --             end of the options\n"
    "  -              read the program from standard input\n"
    "Without CODE and FILE the program is read from standard input. A file named like a\n"
    "sub-command is reached as ./NAME.\n"
    "exit codes: 0 success, 1 an error in the program, 2 wrong usage\n";

/* What the command line asks for. argv is borrowed. */
struct request {
  int argc;
  char **argv;
  int first;    /* index of FILE or the sub-command, argc when there is none */
  int has_code; /* at least one -e */
  int exit_code;
};

/* --- the process ------------------------------------------------------------------------------ */

/* An ignored SIGCHLD, inherited over exec, would make the kernel reap the commands. A standard
 * descriptor that is closed would be taken by the next open, and then be given to a command. */
static void settle_process(void) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &action, NULL);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", O_RDWR) != fd) {
      _exit(EXIT_ERROR);
    }
  }
}

/* --- errors ----------------------------------------------------------------------------------- */

static void report(const char *message) {
  fflush(stdout);
  fprintf(stderr, "sbxlua: %s\n", message);
  fflush(stderr);
}

/* Message handler: an error object's own text stands alone, as it is written for readers; a
 * string gets a traceback. */
static int handle_message(lua_State *L) {
  int with_traceback = 1;
  if (!lua_isstring(L, 1)) {
    if (luaL_callmeta(L, 1, "__tostring") && lua_isstring(L, -1)) {
      with_traceback = getenv("SBXLUA_TRACEBACK") != NULL;
    } else {
      lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
    }
    lua_replace(L, 1);
  }
  lua_settop(L, 1);
  if (with_traceback) {
    luaL_traceback(L, L, lua_tostring(L, 1), 1);
  }
  return 1;
}

/* Calls the function below `arguments` values; -1 when it failed, with the message printed. */
static int call(lua_State *L, int arguments, int results) {
  int base = lua_gettop(L) - arguments;
  lua_pushcfunction(L, handle_message);
  lua_insert(L, base);
  int status = lua_pcall(L, arguments, results, base);
  lua_remove(L, base);
  if (status == 0) {
    return 0;
  }
  const char *message = lua_tostring(L, -1);
  report(message != NULL ? message : "(error object is not a string)");
  lua_pop(L, 1);
  return -1;
}

static int load_failed(lua_State *L) {
  const char *message = lua_tostring(L, -1);
  report(message != NULL ? message : "(error object is not a string)");
  lua_pop(L, 1);
  return -1;
}

/* --- finding modules -------------------------------------------------------------------------- */

/* Pushes what a searcher gives for `path`: a loader, or nothing when it is no readable file. */
static int try_provider_file(lua_State *L, const char *path) {
  if (access(path, R_OK) != 0) {
    return 0;
  }
  if (luaL_loadfile(L, path) != 0) {
    return luaL_error(L, "error loading module '%s' from file '%s':\n\t%s", lua_tostring(L, 1),
                      path, lua_tostring(L, -1));
  }
  return 1;
}

/* package.loaders entry: sbx.providers.a.b -> <providers>/a/b.lua or <providers>/a/b/init.lua.
 * Upvalue 1 is the directory. */
static int search_provider(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  size_t prefix_length = strlen(PROVIDER_PREFIX);
  if (strncmp(name, PROVIDER_PREFIX, prefix_length) != 0) {
    return 0;
  }
  const char *directory = lua_tostring(L, lua_upvalueindex(1));
  const char *relative = luaL_gsub(L, name + prefix_length, ".", "/");
  const char *file = lua_pushfstring(L, "%s/%s.lua", directory, relative);
  if (try_provider_file(L, file)) {
    return 1;
  }
  const char *init = lua_pushfstring(L, "%s/%s/init.lua", directory, relative);
  if (try_provider_file(L, init)) {
    return 1;
  }
  lua_pushfstring(L, "\n\tno file '%s'\n\tno file '%s'", file, init);
  return 1;
}

/* Puts the searcher right behind package.preload's, before any copy that is installed elsewhere. */
static void add_provider_searcher(lua_State *L, const char *root) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
    lua_rawgeti(L, -1, i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushfstring(L, "%s/providers", root);
  lua_pushcclosure(L, search_provider, 1);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 2);
}

/* Puts templates before a field of package, with `directory` for each '@'. */
static void prepend(lua_State *L, const char *field, const char *templates, const char *directory) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, field);
  luaL_gsub(L, templates, "@", directory);
  lua_pushfstring(L, "%s;%s", lua_tostring(L, -1), lua_tostring(L, -2));
  lua_setfield(L, -4, field);
  lua_pop(L, 3);
}

static void prepend_path(lua_State *L, const char *directory) {
  prepend(L, "path", "@/?.lua;@/?/init.lua", directory);
}

/* Cuts the last component off a path without a trailing slash; returns the component. */
static const char *cut_component(char *path) {
  char *slash = strrchr(path, '/');
  if (slash == NULL) {
    return "";
  }
  *slash = '\0';
  return slash + 1;
}

static void set_module_paths(lua_State *L) {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) {
    return;
  }
  path[length] = '\0';
  cut_component(path);
  char modules[PATH_MAX];
  memcpy(modules, path, sizeof modules);
  cut_component(path);
  const char *directory = strrchr(path, '/');
  if (directory != NULL && strcmp(directory, "/build") == 0) {
    cut_component(path);
    prepend(L, "cpath", "@/?.so", modules);
    prepend_path(L, lua_pushfstring(L, "%s/lua", path));
    add_provider_searcher(L, path);
  } else {
    prepend(L, "cpath", "@/?.so", lua_pushfstring(L, "%s/lib/lua/5.1", path));
    prepend_path(L, lua_pushfstring(L, "%s/share/lua/5.1", path));
  }
  lua_settop(L, 0);
}

static void preload_modules(lua_State *L) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  for (const luaL_Reg *module = preloaded_modules; module->name != NULL; module++) {
    lua_pushcfunction(L, module->func);
    lua_setfield(L, -2, module->name);
  }
  lua_pop(L, 2);
}

/* --- running ---------------------------------------------------------------------------------- */

/* arg[0] is the program's name, what stands before it has negative indexes, as in lua. */
static void set_arg_table(lua_State *L, const struct request *request) {
  int arguments = request->argc - request->first;
  lua_createtable(L, arguments > 0 ? arguments : 0, request->first + 1);
  for (int i = 0; i < request->argc; i++) {
    lua_pushstring(L, request->argv[i]);
    lua_rawseti(L, -2, i - request->first);
  }
  lua_setglobal(L, "arg");
}

static int run_code_options(lua_State *L, const struct request *request) {
  for (int i = 1; i < request->first; i++) {
    const char *option = request->argv[i];
    if (strncmp(option, "-e", 2) != 0) {
      continue;
    }
    const char *code = option[2] != '\0' ? option + 2 : request->argv[++i];
    if (luaL_loadbuffer(L, code, strlen(code), "=(command line)") != 0) {
      return load_failed(L);
    }
    if (call(L, 0, 0) != 0) {
      return -1;
    }
  }
  return 0;
}

/* Runs a file, or standard input when `path` is NULL, with the arguments behind it. */
static int run_file(lua_State *L, const struct request *request, const char *path) {
  if (luaL_loadfile(L, path) != 0) {
    return load_failed(L);
  }
  int arguments = 0;
  luaL_checkstack(L, request->argc + 3, "too many arguments");
  for (int i = request->first + 1; i < request->argc; i++) {
    lua_pushstring(L, request->argv[i]);
    arguments++;
  }
  return call(L, arguments, 0);
}

static int is_sub_command(const char *word) {
  for (const char *const *command = sub_commands; *command != NULL; command++) {
    if (strcmp(word, *command) == 0) {
      return 1;
    }
  }
  return 0;
}

/* Protected: returns the exit code that the command line door gives for the words at index 1. */
static int dispatch(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "sbx.doors.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  lua_Integer code = lua_tointeger(L, -1);
  if (lua_type(L, -1) != LUA_TNUMBER || code < 0 || code > 255) {
    return luaL_error(L, "sbx.doors.cli gave no exit code between 0 and 255");
  }
  return 1;
}

static int run_sub_command(lua_State *L, struct request *request) {
  lua_pushcfunction(L, dispatch);
  lua_createtable(L, request->argc - request->first, 0);
  for (int i = request->first; i < request->argc; i++) {
    lua_pushstring(L, request->argv[i]);
    lua_rawseti(L, -2, i - request->first + 1);
  }
  if (call(L, 1, 1) != 0) {
    return -1;
  }
  request->exit_code = (int)lua_tointeger(L, -1);
  lua_pop(L, 1);
  return 0;
}

static int run_request(lua_State *L, struct request *request) {
  if (run_code_options(L, request) != 0) {
    return -1;
  }
  if (request->first == request->argc) {
    return request->has_code ? 0 : run_file(L, request, NULL);
  }
  const char *word = request->argv[request->first];
  if (is_sub_command(word)) {
    return run_sub_command(L, request);
  }
  return run_file(L, request, strcmp(word, "-") == 0 ? NULL : word);
}

/* --- leaving ---------------------------------------------------------------------------------- */

/* luv 1.44 frees a handle that is still closing when the state ends, and libuv then walks freed
 * memory (SPEC A4). So the loop is turned until all are closed, while the state is whole. */
static const char settle_luv_code[] =
    "local uv = package.loaded.luv\n"
    "if type(uv) ~= 'table' then return end\n"
    "uv.walk(function(handle) if not handle:is_closing() then handle:close() end end)\n"
    "for _ = 1, 1000 do if not uv.loop_alive() then break end uv.run('nowait') end\n";

static void settle_luv(lua_State *L) {
  if (luaL_loadbuffer(L, settle_luv_code, sizeof settle_luv_code - 1, "=sbxlua") == 0) {
    call(L, 0, 0);
  } else {
    lua_pop(L, 1);
  }
}

/* os.exit(code, close): the state is closed inside, so what comes before has to come here. Upvalue
 * 1 is the original. */
static int exit_settled(lua_State *L) {
  int arguments = lua_gettop(L);
  if (lua_toboolean(L, 2)) {
    settle_luv(L);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, arguments, 0);
  return 0;
}

static void wrap_exit(lua_State *L) {
  lua_getglobal(L, "os");
  lua_getfield(L, -1, "exit");
  lua_pushcclosure(L, exit_settled, 1);
  lua_setfield(L, -2, "exit");
  lua_pop(L, 1);
}

/* Protected: everything that may raise for want of memory. Light userdata 1 is the request. */
static int protected_main(lua_State *L) {
  struct request *request = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_gc(L, LUA_GCSTOP, 0);
  luaL_openlibs(L);
  preload_modules(L);
  set_module_paths(L);
  set_arg_table(L, request);
  wrap_exit(L);
  lua_gc(L, LUA_GCRESTART, -1);
  if (run_request(L, request) != 0) {
    request->exit_code = EXIT_ERROR;
  }
  settle_luv(L);
  return 0;
}

/* --- the command line ------------------------------------------------------------------------- */

static int usage_error(const char *format, const char *word) {
  fputs("sbxlua: ", stderr);
  fprintf(stderr, format, word);
  fprintf(stderr, "\n%s", usage_text);
  return EXIT_USAGE;
}

/* Reads the options. Returns -1 to go on, else the exit code to end with at once. */
static int parse_options(struct request *request) {
  int i = 1;
  for (; i < request->argc; i++) {
    const char *option = request->argv[i];
    if (option[0] != '-' || strcmp(option, "-") == 0) {
      break;
    }
    if (strcmp(option, "--") == 0) {
      i++;
      break;
    }
    if (strcmp(option, "-v") == 0 || strcmp(option, "--version") == 0) {
      printf("sbxlua %s, %s\n", SBXLUA_VERSION, LUAJIT_VERSION);
      return 0;
    }
    if (strcmp(option, "-h") == 0 || strcmp(option, "--help") == 0) {
      fputs(usage_text, stdout);
      return 0;
    }
    if (strncmp(option, "-e", 2) != 0) {
      return usage_error("unknown option '%s'", option);
    }
    request->has_code = 1;
    if (option[2] == '\0' && ++i == request->argc) {
      return usage_error("option '%s' needs an argument", option);
    }
  }
  request->first = i;
  return -1;
}

int main(int argc, char **argv) {
  settle_process();
  struct request request = {.argc = argc, .argv = argv};
  int code = parse_options(&request);
  if (code >= 0) {
    return code;
  }
  if (request.first >= argc && !request.has_code && isatty(STDIN_FILENO)) {
    fputs(usage_text, stderr);
    return EXIT_USAGE;
  }
  lua_State *L = luaL_newstate();
  if (L == NULL) {
    report("cannot create a Lua state: not enough memory");
    return EXIT_ERROR;
  }
  if (lua_cpcall(L, protected_main, &request) != 0) {
    load_failed(L);
    request.exit_code = EXIT_ERROR;
  }
  lua_close(L);
  return request.exit_code;
}
