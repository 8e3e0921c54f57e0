/* SPDX-License-Identifier: MIT
 *
 * Binding of execs: require "_sbx.exec" (see exec.h).
 *
 *   exec.start(root, argv, env, timeout_seconds, interactive, end_at_exit, cwd, stdin,
 *              max_output_bytes)
 *     -> exec | nil, step, errno name, errno text
 *   exec:op(), exec:result()                                          one-shot
 *   exec:next(), exec:readable(), exec:write(data), exec:close_stdin(), exec:kill()  interactive
 *   exec:record() -> table, once it has ended: cause, wall_seconds, user_seconds, system_seconds,
 *     peak_memory_bytes, stdin_bytes, stdout_bytes, stderr_bytes
 *   exec:close()   lets go; what still runs is stopped
 *
 * env is a list of "NAME=value". result and next give a word and what belongs to it:
 *   "exit", code, stdout, stderr | "cancelled"
 *   "chunk", stream, data | "exit", code | "end" | nothing yet: nothing
 *   "timeout", stdout bytes, stderr bytes, held | "fault", step, errno name, errno text
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "exec.h"
#include "lua_shared.h"

#define EXEC_CLASS "sbx.exec"
#define TIMEOUT_MAX_SECONDS 4e9 /* more than a century: what lies beyond is the same to us */

struct box {
  struct sbx_exec *exec;   /* owned reference */
  struct sbx_chunk *chunk; /* owned: taken from the exec, not yet given to Lua */
};

static const char *const step_names[] = {
    [SBX_STEP_NONE] = "none",   [SBX_STEP_LIMIT] = "limit",   [SBX_STEP_CWD] = "cwd",
    [SBX_STEP_START] = "start", [SBX_STEP_ENGINE] = "engine", [SBX_STEP_STDIN] = "stdin",
    [SBX_STEP_HELD] = "held",   [SBX_STEP_OUTPUT] = "output", [SBX_STEP_STATUS] = "status",
    [SBX_STEP_STOP] = "stop"};

static const char *const stream_names[] = {"stdout", "stderr"};

/* Copies the strings' addresses of the list at index into a userdata that it pushes. */
static char **check_strings(lua_State *L, int index, size_t least) {
  luaL_checktype(L, index, LUA_TTABLE);
  size_t count = lua_objlen(L, index);
  luaL_argcheck(L, count >= least, index, "is empty");
  const char **list = lua_newuserdata(L, (count + 1) * sizeof *list);
  for (size_t i = 0; i < count; i++) {
    size_t len;
    lua_rawgeti(L, index, (int)i + 1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, index, "must be a list of strings");
    list[i] = lua_tolstring(L, -1, &len);
    luaL_argcheck(L, strlen(list[i]) == len, index, "must not hold a NUL byte");
    lua_pop(L, 1);
  }
  list[count] = NULL;
  return (char **)list;
}

static uint64_t check_deadline(lua_State *L, int index) {
  lua_Number seconds = luaL_checknumber(L, index);
  luaL_argcheck(L, seconds > 0, index, "must be greater than 0");
  if (seconds > TIMEOUT_MAX_SECONDS) seconds = TIMEOUT_MAX_SECONDS;
  return sbx_now_ns() + (uint64_t)(seconds * 1e9);
}

static uint64_t check_max_output(lua_State *L, int index) {
  if (lua_isnil(L, index)) return 0;
  lua_Number bytes = luaL_checknumber(L, index);
  luaL_argcheck(L, bytes >= 1, index, "must be greater than 0");
  return bytes < 9007199254740992.0 ? (uint64_t)bytes : 0;
}

static int push_fault(lua_State *L, struct sbx_fault fault) {
  lua_pushstring(L, step_names[fault.step]);
  sbx_lua_push_error(L, fault.error);
  lua_remove(L, -3);
  return 3;
}

static int exec_start(lua_State *L) {
  struct sbx_exec_request request = {.deadline_ns = check_deadline(L, 4)};
  sbx_lua_check_usable(L);
  lua_settop(L, 9);
  request.root = sbx_lua_check_root(L, 1);
  request.argv = check_strings(L, 2, 1);
  request.envp = check_strings(L, 3, 0);
  request.interactive = lua_toboolean(L, 5);
  request.end_at_exit = lua_toboolean(L, 6);
  if (!lua_isnil(L, 7)) request.cwd = sbx_lua_check_path(L, 7);
  if (!lua_isnil(L, 8)) request.stdin_data = luaL_checklstring(L, 8, &request.stdin_len);
  request.max_output = check_max_output(L, 9);
  struct box *box = lua_newuserdata(L, sizeof *box);
  *box = (struct box){0};
  luaL_getmetatable(L, EXEC_CLASS);
  lua_setmetatable(L, -2);
  lua_createtable(L, 1, 0);
  lua_pushvalue(L, 8);
  lua_rawseti(L, -2, 1); /* stdin is lent to the exec: it lives as long as the box */
  lua_setfenv(L, -2);
  struct sbx_fault fault;
  if (sbx_exec_start(&request, &box->exec, &fault) == 0) return 1;
  lua_pushnil(L);
  return push_fault(L, fault) + 1;
}

static struct box *check_box(lua_State *L) {
  struct box *box = luaL_checkudata(L, 1, EXEC_CLASS);
  sbx_lua_check_usable(L);
  if (box->exec == NULL) luaL_error(L, "the exec is closed");
  return box;
}

static int exec_op(lua_State *L) {
  struct box *box = check_box(L);
  struct sbx_op **op = sbx_lua_new_op(L, 1);
  *op = sbx_exec_end_op(box->exec);
  sbx_op_ref(*op);
  return 1;
}

static int push_timeout(lua_State *L, const uint64_t output_len[2], bool held) {
  lua_pushliteral(L, "timeout");
  lua_pushnumber(L, (lua_Number)output_len[SBX_STDOUT]);
  lua_pushnumber(L, (lua_Number)output_len[SBX_STDERR]);
  lua_pushboolean(L, held);
  return 4;
}

static int push_fault_item(lua_State *L, struct sbx_fault fault) {
  lua_pushliteral(L, "fault");
  return push_fault(L, fault) + 1;
}

static int exec_result(lua_State *L) {
  struct box *box = check_box(L);
  struct sbx_exec_result result;
  if (!sbx_op_is_done(sbx_exec_end_op(box->exec))) return luaL_error(L, "the exec has not ended");
  sbx_exec_result(box->exec, &result);
  if (result.end == SBX_END_EXIT && (result.output_len[SBX_STDOUT] > SBX_LUA_STRING_MAX ||
                                     result.output_len[SBX_STDERR] > SBX_LUA_STRING_MAX))
    return push_fault_item(L, (struct sbx_fault){SBX_STEP_OUTPUT, -EFBIG});
  switch (result.end) {
  case SBX_END_EXIT:
    lua_pushliteral(L, "exit");
    lua_pushinteger(L, result.exit_code);
    for (int i = 0; i < 2; i++)
      lua_pushlstring(L, result.output[i] != NULL ? result.output[i] : "",
                      (size_t)result.output_len[i]);
    return 4;
  case SBX_END_TIMEOUT:
    return push_timeout(L, result.output_len, result.held);
  case SBX_END_CANCELLED:
    lua_pushliteral(L, "cancelled");
    return 1;
  case SBX_END_FAULT:
    break;
  }
  return push_fault_item(L, result.fault);
}

static int push_chunk(lua_State *L, struct box *box) {
  lua_pushliteral(L, "chunk");
  lua_pushstring(L, stream_names[box->chunk->stream]);
  lua_pushlstring(L, box->chunk->data, box->chunk->len);
  sbx_chunk_free(box->chunk);
  box->chunk = NULL;
  return 3;
}

static int exec_next(lua_State *L) {
  struct box *box = check_box(L);
  struct sbx_item item;
  /* One that an out-of-memory error kept from Lua the last time comes first. */
  if (box->chunk != NULL) return push_chunk(L, box);
  sbx_exec_next(box->exec, &item);
  switch (item.kind) {
  case SBX_ITEM_CHUNK:
    box->chunk = item.chunk;
    return push_chunk(L, box);
  case SBX_ITEM_EXIT:
    lua_pushliteral(L, "exit");
    lua_pushinteger(L, item.exit_code);
    return 2;
  case SBX_ITEM_END:
    lua_pushliteral(L, "end");
    return 1;
  case SBX_ITEM_TIMEOUT:
    return push_timeout(L, item.output_len, item.held);
  case SBX_ITEM_FAULT:
    return push_fault_item(L, item.fault);
  case SBX_ITEM_NOTHING_YET:
    break;
  }
  return 0;
}

static int exec_readable(lua_State *L) {
  struct box *box = check_box(L);
  struct sbx_op **op = sbx_lua_new_op(L, 1);
  int rc = sbx_exec_readable(box->exec, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

/* true: taken; an op: waits for room, and keeps the string alive meanwhile. */
static int exec_write(lua_State *L) {
  struct box *box = check_box(L);
  size_t len;
  const char *data = luaL_checklstring(L, 2, &len);
  struct sbx_op **op = sbx_lua_new_op(L, 2);
  int rc = sbx_exec_write(box->exec, data, len, op);
  if (rc != 0) return sbx_lua_push_error(L, rc);
  if (*op == NULL) lua_pushboolean(L, 1);
  return 1;
}

static int exec_close_stdin(lua_State *L) {
  int rc = sbx_exec_close_stdin(check_box(L)->exec);
  if (rc != 0) return sbx_lua_push_error(L, rc);
  lua_pushboolean(L, 1);
  return 1;
}

static int exec_kill(lua_State *L) {
  struct box *box = check_box(L);
  struct sbx_op **op = sbx_lua_new_op(L, 1);
  int rc = sbx_exec_kill(box->exec, op);
  return rc != 0 ? sbx_lua_push_error(L, rc) : 1;
}

static void set_number(lua_State *L, const char *name, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}

static int exec_record(lua_State *L) {
  static const char *const causes[] = {
      [SBX_CAUSE_EXITED] = "exited",       [SBX_CAUSE_SIGNALED] = "signaled",
      [SBX_CAUSE_TIMEOUT] = "timeout",     [SBX_CAUSE_KILLED] = "killed",
      [SBX_CAUSE_CANCELLED] = "cancelled", [SBX_CAUSE_OUTPUT_LIMIT] = "output_limit",
      [SBX_CAUSE_FAILED] = "failed"};
  struct sbx_exec_record record;
  if (!sbx_exec_record(check_box(L)->exec, &record)) return 0;
  lua_createtable(L, 0, 8);
  lua_pushstring(L, causes[record.cause]);
  lua_setfield(L, -2, "cause");
  set_number(L, "wall_seconds", (double)record.wall_ns / 1e9);
  set_number(L, "user_seconds", (double)record.user_us / 1e6);
  set_number(L, "system_seconds", (double)record.system_us / 1e6);
  if (record.peak_kib != 0) set_number(L, "peak_memory_bytes", (double)record.peak_kib * 1024);
  set_number(L, "stdin_bytes", (double)record.stdin_bytes);
  set_number(L, "stdout_bytes", (double)record.output_bytes[SBX_STDOUT]);
  set_number(L, "stderr_bytes", (double)record.output_bytes[SBX_STDERR]);
  return 1;
}

static int exec_close(lua_State *L) {
  struct box *box = luaL_checkudata(L, 1, EXEC_CLASS);
  sbx_chunk_free(box->chunk);
  box->chunk = NULL;
  struct sbx_exec *exec = box->exec;
  box->exec = NULL;
  if (exec == NULL || !sbx_engine_usable()) return 0;
  sbx_exec_abandon(exec);
  sbx_exec_unref(exec);
  return 0;
}

static const luaL_Reg methods[] = {{"op", exec_op},       {"result", exec_result},
                                   {"next", exec_next},   {"readable", exec_readable},
                                   {"write", exec_write}, {"close_stdin", exec_close_stdin},
                                   {"kill", exec_kill},   {"record", exec_record},
                                   {"close", exec_close}, {NULL, NULL}};
static const luaL_Reg meta[] = {{"__gc", exec_close}, {NULL, NULL}};

SBX_EXPORT int luaopen__sbx_exec(lua_State *L);
int luaopen__sbx_exec(lua_State *L) {
  sbx_lua_open_ops(L);
  sbx_lua_new_class(L, EXEC_CLASS, methods, meta);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, exec_start);
  lua_setfield(L, -2, "start");
  return 1;
}
