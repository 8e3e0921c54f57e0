/* SPDX-License-Identifier: MIT
 *
 * Execs for the tests of that core: shell scripts run in the test's directory ("ws" of place), a
 * reader that gathers a stream to its end, and a main that also runs scenarios.
 */
#ifndef SBX_TESTS_EXEC_TRY_H
#define SBX_TESTS_EXEC_TRY_H

#include <pthread.h>

#include "../engine.h"
#include "../exec.h"
#include "procs.h"
#include "scratch.h"

static struct scratch place;

static inline struct sbx_exec_request request_of(char *const *argv, double seconds) {
  static char *envp[] = {"PATH=/usr/local/bin:/usr/bin:/bin", NULL};
  return (struct sbx_exec_request){.root = &place.root,
                                   .argv = argv,
                                   .envp = envp,
                                   .deadline_ns = sbx_now_ns() + (uint64_t)(seconds * 1e9)};
}

static inline struct sbx_exec *start_request(const struct sbx_exec_request *request) {
  struct sbx_exec *exec = NULL;
  struct sbx_fault fault;
  CHECK_EQ_INT(sbx_exec_start(request, &exec, &fault), 0);
  if (exec == NULL) {
    fprintf(stderr, "no exec: step %d, %s\n", fault.step, strerror(-fault.error));
    exit(2);
  }
  return exec;
}

enum how { ONE_SHOT = 0, INTERACTIVE = 1, AT_EXIT = 2 };

static inline struct sbx_exec *start_shell(const char *script, double seconds, int how) {
  char *argv[] = {"sh", "-c", (char *)(uintptr_t)script, NULL};
  struct sbx_exec_request request = request_of(argv, seconds);
  request.interactive = (how & INTERACTIVE) != 0;
  request.end_at_exit = (how & AT_EXIT) != 0;
  return start_request(&request);
}

static inline struct sbx_exec_result result_of(struct sbx_exec *exec) {
  struct sbx_exec_result result;
  CHECK_EQ_INT(sbx_op_wait(sbx_exec_end_op(exec)), 0);
  sbx_exec_result(exec, &result);
  return result;
}

static inline bool output_is(const struct sbx_exec_result *result, enum sbx_stream stream,
                             const char *text) {
  size_t len = strlen(text);
  return result->output_len[stream] == len &&
         (len == 0 || memcmp(result->output[stream], text, len) == 0);
}

static inline void wait_and_drop(struct sbx_op *op, int expected) {
  CHECK_EQ_INT(sbx_op_wait(op), expected);
  sbx_op_unref(op);
}

/* A stream read to its end. */
struct story {
  char *data[2]; /* terminated; the first MiB or so of each stream */
  size_t len[2];
  int chunks;
  char streams[64]; /* which stream each of the first chunks was of: "oe..." */
  struct sbx_item last;
};

#define STORY_ROOM ((size_t)1024 * 1024)

static inline void add_chunk(struct story *story, struct sbx_chunk *chunk) {
  int i = (int)chunk->stream;
  CHECK(chunk->len > 0 && chunk->len <= SBX_CHUNK_MAX);
  if (story->chunks < 63) story->streams[story->chunks] = i == SBX_STDOUT ? 'o' : 'e';
  story->chunks++;
  if (story->len[i] < STORY_ROOM) {
    size_t room = STORY_ROOM - story->len[i], part = chunk->len < room ? chunk->len : room;
    memcpy(story->data[i] + story->len[i], chunk->data, part);
    story->data[i][story->len[i] + part] = '\0';
  }
  story->len[i] += chunk->len;
  free(chunk);
}

static inline void wait_readable(struct sbx_exec *exec) {
  struct sbx_op *op;
  CHECK_EQ_INT(sbx_exec_readable(exec, &op), 0);
  wait_and_drop(op, 0);
}

static inline void next_item(struct sbx_exec *exec, struct sbx_item *item) {
  sbx_exec_next(exec, item);
  while (item->kind == SBX_ITEM_NOTHING_YET) {
    wait_readable(exec);
    sbx_exec_next(exec, item);
  }
}

static inline void story_begin(struct story *story) {
  *story = (struct story){.data = {malloc(STORY_ROOM + 1), malloc(STORY_ROOM + 1)}};
  story->data[0][0] = story->data[1][0] = '\0';
}

/* Goes on reading; the item that is no chunk stays in last. */
static inline void story_read(struct sbx_exec *exec, struct story *story) {
  next_item(exec, &story->last);
  while (story->last.kind == SBX_ITEM_CHUNK) {
    add_chunk(story, story->last.chunk);
    next_item(exec, &story->last);
  }
}

/* Reads until so many bytes of stdout have come. */
static inline void story_read_some(struct sbx_exec *exec, struct story *story, size_t bytes) {
  while (story->len[SBX_STDOUT] < bytes) {
    next_item(exec, &story->last);
    CHECK_EQ_INT(story->last.kind, SBX_ITEM_CHUNK);
    if (story->last.kind != SBX_ITEM_CHUNK) return;
    add_chunk(story, story->last.chunk);
  }
}

static inline void story_end(struct story *story) {
  free(story->data[0]);
  free(story->data[1]);
}

static inline void check_exit(struct sbx_exec *exec, struct story *story, int exit_code) {
  struct sbx_item item;
  story_read(exec, story);
  CHECK_EQ_INT(story->last.kind, SBX_ITEM_EXIT);
  CHECK_EQ_INT(story->last.exit_code, exit_code);
  for (int i = 0; i < 3; i++) { /* and it is the only one */
    next_item(exec, &item);
    CHECK_EQ_INT(item.kind, SBX_ITEM_END);
  }
}

static inline void kill_and_wait(struct sbx_exec *exec) {
  struct sbx_op *op;
  CHECK_EQ_INT(sbx_exec_kill(exec, &op), 0);
  wait_and_drop(op, 0);
}

/* Whatever it is doing. */
static inline void drop_exec(struct sbx_exec *exec) {
  sbx_exec_abandon(exec);
  sbx_exec_unref(exec);
}

/* The number in a file of the workspace, once it is there with its line's end. */
static inline pid_t number_in(const char *name) {
  char path[64], text[32] = "";
  uint64_t until = now_ms() + 10000;
  snprintf(path, sizeof path, "ws/%.40s", name);
  while (strchr(text, '\n') == NULL && now_ms() < until) {
    sleep_us(1000);
    read_text(scratch_path(&place, path), text, sizeof text);
  }
  CHECK(strchr(text, '\n') != NULL);
  unlinkat(place.fd, path, 0);
  return (pid_t)atoi(text);
}

struct idle {
  struct sbx_work work;
  struct sbx_op *op;
};

static inline void engine_idle(struct sbx_work *work) {
  sbx_op_complete(((struct idle *)(void *)work)->op, 0);
}

static inline void free_op(struct sbx_op *op) {
  free(op);
}

/* Returns when the engine has gone twice through what it had to do. */
static inline void settle_engine(void) {
  for (int i = 0; i < 2; i++) {
    struct idle idle = {.work.run = engine_idle, .op = calloc(1, sizeof *idle.op)};
    CHECK_EQ_INT(sbx_op_init(idle.op, NULL, free_op), 0);
    sbx_op_ref(idle.op); /* the engine's, that it may let go of after we have woken */
    CHECK_EQ_INT(sbx_engine_post(&idle.work), 1);
    wait_and_drop(idle.op, 0);
    sleep_us(1000);
    sbx_op_unref(idle.op);
  }
}

/* Killed, let go of, and all that was its is given back. */
static inline void kill_and_drop(struct sbx_exec *exec) {
  kill_and_wait(exec);
  drop_exec(exec);
  settle_engine();
}

/* The process that left its group by setsid, once it has. */
static inline pid_t outsider_in(const char *name) {
  pid_t pid = number_in(name), group = 0;
  CHECK_COMES(process_state(pid, &group, NULL) != 0 && group == pid);
  return pid;
}

static inline void kill_outsider(pid_t pid) {
  CHECK(pid > 1 && is_running(pid));
  if (pid > 1) kill(pid, SIGKILL);
  CHECK_COMES(!is_running(pid));
}

static inline int exec_tests_main(int argc, char **argv, const struct scenario *scenarios,
                                  size_t count) {
  alarm(argc > 1 ? 60 : in_valgrind() ? 900 : 300); /* a hang ends the program */
  CHECK_EQ_INT(sbx_engine_start(), 0);              /* whose descriptors are not any test's */
  scratch_make(&place);
  int rc = scenario_main(argc, argv, scenarios, count);
  scratch_drop(&place);
  return atomic_load(&check_failures) > 0 ? 1 : rc;
}

#endif
