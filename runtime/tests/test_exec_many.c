/* SPDX-License-Identifier: MIT
 *
 * proves: X5, X16, X17, L6 (an orderly exit), R3
 *
 * Many execs, too few resources, and the ends of the program: nothing is left, nothing leaks,
 * nothing hangs.
 */
#define _GNU_SOURCE
#include "exec_try.h"

#include <sys/resource.h>

static long resident_pages(void) {
  char text[128];
  long size = 0, resident = 0;
  read_text("/proc/self/statm", text, sizeof text);
  CHECK_EQ_INT(sscanf(text, "%ld %ld", &size, &resident), 2);
  return resident;
}

static void run_one(int i) {
  struct story story;
  struct sbx_exec *exec = start_shell(i % 5 == 0 ? "cat; sleep 0 & exit 3" : "echo abc; exit 3", 60,
                                      i & 1 ? INTERACTIVE : ONE_SHOT);
  if ((i & 1) == 0) {
    struct sbx_exec_result result = result_of(exec);
    CHECK_EQ_INT(result.exit_code, 3);
    drop_exec(exec);
    return;
  }
  story_begin(&story);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  check_exit(exec, &story, 3);
  story_end(&story);
  kill_and_wait(exec);
  drop_exec(exec);
}

TEST(two_thousand_execs_leave_nothing) {
  int count = scaled(2000, 20);
  for (int i = 0; i < 50 && i < count; i++)
    run_one(i);
  settle_engine();
  int descriptors = check_open_descriptors();
  long pages = resident_pages();
  for (int i = 0; i < count; i++)
    run_one(i);
  settle_engine();
  CHECK_EQ_INT(check_open_descriptors(), descriptors);
  CHECK_COMES(count_children() == 0);
  if (!IS_SANITIZED && !in_valgrind()) CHECK(resident_pages() - pages < 1024);
  CHECK(pages > 0);
}

static void *run_some(void *arg) {
  (void)arg;
  for (int i = 0; i < scaled(100, 4); i++)
    run_one(i);
  return NULL;
}

TEST(threads_run_execs_side_by_side) {
  pthread_t thread[4];
  for (int i = 0; i < 4; i++)
    CHECK_EQ_INT(pthread_create(&thread[i], NULL, run_some, NULL), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(thread[i], NULL);
  settle_engine();
  CHECK_COMES(count_children() == 0);
}

#define OPEN_AT_ONCE 100

TEST(hundred_execs_at_once_each_with_its_own) {
  struct sbx_exec *exec[OPEN_AT_ONCE];
  for (int i = 0; i < OPEN_AT_ONCE; i++) {
    char script[64];
    snprintf(script, sizeof script, "cat; echo is %d; exit %d", i, i);
    exec[i] = start_shell(script, 100, INTERACTIVE);
  }
  for (int i = OPEN_AT_ONCE - 1; i >= 0; i--) {
    struct sbx_op *op;
    CHECK_EQ_INT(sbx_exec_write(exec[i], "it ", 3, &op), 0);
    CHECK_EQ_INT(sbx_exec_close_stdin(exec[i]), 0);
  }
  for (int i = 0; i < OPEN_AT_ONCE; i++) {
    struct story story;
    char expected[32];
    snprintf(expected, sizeof expected, "it is %d\n", i);
    story_begin(&story);
    check_exit(exec[i], &story, i);
    CHECK(strcmp(story.data[SBX_STDOUT], expected) == 0);
    story_end(&story);
    kill_and_wait(exec[i]);
    drop_exec(exec[i]);
  }
  settle_engine();
}

/* A start with so many free descriptors and no more. */
static int start_with_room(int lowest, int room, bool interactive) {
  struct rlimit limit, before;
  struct sbx_exec *exec = NULL;
  struct sbx_fault fault;
  char *argv[] = {"true", NULL};
  struct sbx_exec_request request = request_of(argv, 60);
  request.interactive = interactive;
  getrlimit(RLIMIT_NOFILE, &before);
  limit = before;
  limit.rlim_cur = (rlim_t)(lowest + room);
  CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
  int rc = sbx_exec_start(&request, &exec, &fault);
  CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
  CHECK_EQ_INT(fault.error, rc);
  if (rc == 0) {
    CHECK_EQ_INT(fault.step, SBX_STEP_NONE);
    if (interactive) kill_and_wait(exec);
    if (!interactive) CHECK_EQ_INT(result_of(exec).exit_code, 0);
    drop_exec(exec);
    settle_engine();
    return rc;
  }
  CHECK(exec == NULL);
  CHECK(fault.step == SBX_STEP_START || fault.step == SBX_STEP_CWD);
  return rc;
}

TEST(no_descriptor_at_any_step_of_the_start) {
  if (in_valgrind()) SKIP("valgrind has a limit of its own");
  for (int how = 0; how < 2; how++) {
    int descriptors = check_open_descriptors(), lowest = dup(0), rc = -1, room = 0;
    close(lowest);
    for (; rc != 0 && room < 40; room++) {
      rc = start_with_room(lowest, room, how != 0);
      CHECK(rc == 0 || rc == -EMFILE);
      CHECK_EQ_INT(check_open_descriptors(), descriptors);
      CHECK_COMES(count_children() == 0);
    }
    CHECK_EQ_INT(rc, 0);
    CHECK(room >= 5);
  }
}

TEST(too_many_arguments) {
  if (in_valgrind()) SKIP("valgrind hides what the child says");
  struct sbx_exec *exec = NULL;
  struct sbx_fault fault;
  char *huge = malloc(200000), *argv[] = {"true", huge, NULL};
  memset(huge, 'x', 199999);
  huge[199999] = '\0';
  struct sbx_exec_request request = request_of(argv, 60);
  CHECK_EQ_INT(sbx_exec_start(&request, &exec, &fault), -E2BIG);
  CHECK_EQ_INT(fault.step, SBX_STEP_START);
  CHECK(exec == NULL);
  CHECK_COMES(count_children() == 0);
  free(huge);
}

static void start_in_forked_child(void *exec) {
  struct sbx_exec *none = NULL;
  struct sbx_fault fault;
  char *argv[] = {"true", NULL};
  struct sbx_exec_request request = request_of(argv, 60);
  alarm(10);
  CHECK_EQ_INT(sbx_exec_start(&request, &none, &fault), -EOWNERDEAD);
  CHECK_EQ_INT(fault.step, SBX_STEP_ENGINE);
  CHECK(none == NULL);
  sbx_exec_unref(exec);
}

TEST(forked_child_has_no_execs_and_harms_none) {
  struct story story;
  struct sbx_exec *exec = start_shell("exec cat", 60, INTERACTIVE);
  for (int i = 0; i < scaled(20, 2); i++)
    check_in_child(start_in_forked_child, exec);
  struct sbx_op *op;
  CHECK_EQ_INT(sbx_exec_write(exec, "still\n", 6, &op), 0);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  story_begin(&story);
  check_exit(exec, &story, 0);
  CHECK(strcmp(story.data[SBX_STDOUT], "still\n") == 0);
  story_end(&story);
  kill_and_drop(exec);
}

/* The program's end. The scenarios leave without their directory, which is given to them. */

static void print_and_exit(int how) {
  struct sbx_exec *exec = start_shell("sleep 100 & echo $$ >group; wait", 60, how);
  printf("%d\n", (int)number_in("group"));
  fflush(stdout);
  CHECK(exec != NULL);
  scratch_drop(&place);
  exit(atomic_load(&check_failures) > 0 ? 1 : 12);
}

static void exit_with_one_shot(void) {
  print_and_exit(ONE_SHOT);
}
static void exit_with_interactive(void) {
  print_and_exit(INTERACTIVE);
}

static atomic_bool starting = true;

static void *start_forever(void *arg) {
  while (atomic_load(&starting)) {
    struct sbx_exec *exec = NULL;
    struct sbx_fault fault;
    /* Not for long: one that is started at the very end may be nobody's. */
    char *argv[] = {"sh", "-c", "sleep 2 & wait", NULL};
    struct sbx_exec_request request = request_of(argv, 60);
    request.cwd = "/";
    if (sbx_exec_start(&request, &exec, &fault) == 0) drop_exec(exec);
  }
  return arg;
}

static void exit_while_a_thread_starts(void) {
  pthread_t thread;
  CHECK_EQ_INT(pthread_create(&thread, NULL, start_forever, NULL), 0);
  sleep_us(30000);
  int parent = openat(place.fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
  CHECK_EQ_INT(sbx_files_remove_tree(parent, strrchr(place.path, '/') + 1), 0);
  exit(atomic_load(&check_failures) > 0 ? 1 : 13);
}

TEST(exit_stops_what_runs) {
  static const char *const names[] = {"exit-with-one-shot", "exit-with-interactive"};
  for (int i = 0; i < 2; i++) {
    char text[32];
    int status = run_scenario(names[i], text, sizeof text);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 12);
    pid_t group = (pid_t)atoi(text);
    CHECK(group > 1);
    CHECK_COMES(running_in_group(group) == 0);
  }
}

TEST(exit_never_hangs) {
  for (int i = 0; i < scaled(10, 2); i++) {
    char text[32];
    int status = run_scenario("exit-while-a-thread-starts", text, sizeof text);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 13);
  }
}

static const struct scenario scenarios[] = {
    {"exit-with-one-shot", exit_with_one_shot},
    {"exit-with-interactive", exit_with_interactive},
    {"exit-while-a-thread-starts", exit_while_a_thread_starts},
};

int main(int argc, char **argv) {
  return exec_tests_main(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
