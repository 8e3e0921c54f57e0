/* SPDX-License-Identifier: MIT
 *
 * proves: X11, X14, X16, X17, L3
 *
 * Kills of interactive execs, at every moment and from any thread, and execs whose caller lets go:
 * what was received stays, the stream has one end, nothing of the group is left.
 */
#define _GNU_SOURCE
#include "exec_try.h"

TEST(kill_before_the_read_keeps_what_was_received) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("echo abc; echo fault >&2; echo $$ >group; sleep 100 & wait", 60, INTERACTIVE);
  pid_t group = number_in("group");
  kill_and_wait(exec);
  CHECK_EQ_INT(running_in_group(group), 0);
  story_begin(&story);
  check_exit(exec, &story, 137);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  CHECK(strcmp(story.data[SBX_STDERR], "fault\n") == 0);
  story_end(&story);
  drop_exec(exec);
}

TEST(kill_of_a_heavy_writer_keeps_order_and_ends) {
  for (int i = 0; i < scaled(10, 2); i++) {
    struct story story;
    char expected[16];
    struct sbx_exec *exec = start_shell("exec seq 1 100000000", 60, INTERACTIVE);
    sleep_us(20000);
    kill_and_wait(exec);
    story_begin(&story);
    check_exit(exec, &story, 137);
    size_t at = 0, shown = story.len[SBX_STDOUT] < STORY_ROOM ? story.len[SBX_STDOUT] : STORY_ROOM;
    for (int n = 1; at + 10 < shown; n++) {
      size_t len = (size_t)snprintf(expected, sizeof expected, "%d\n", n);
      if (memcmp(story.data[SBX_STDOUT] + at, expected, len) != 0) {
        CHECK_EQ_INT(n, -1);
        break;
      }
      at += len;
    }
    story_end(&story);
    drop_exec(exec);
    settle_engine();
  }
}

TEST(kill_after_the_exit_keeps_the_status_and_stops_the_rest) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("sleep 100 >/dev/null 2>&1 & echo $! >left; echo abc; exit 5", 60, INTERACTIVE);
  pid_t left = number_in("left");
  wait_readable(exec);
  sleep_us(50000);
  CHECK(is_running(left));
  kill_and_wait(exec);
  CHECK(!is_running(left));
  kill_and_wait(exec);
  story_begin(&story);
  check_exit(exec, &story, 5);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  kill_and_wait(exec);
  story_end(&story);
  drop_exec(exec);
}

TEST(kill_after_all_was_read) {
  struct story story;
  struct sbx_exec *exec = start_shell("exit 6", 60, INTERACTIVE);
  struct sbx_item item;
  story_begin(&story);
  check_exit(exec, &story, 6);
  kill_and_wait(exec);
  next_item(exec, &item);
  CHECK_EQ_INT(item.kind, SBX_ITEM_END);
  story_end(&story);
  drop_exec(exec);
}

static void *kill_often(void *exec) {
  for (int i = 0; i < 5; i++)
    kill_and_wait(exec);
  return NULL;
}

static void check_kills_from_threads(const char *script) {
  struct story story;
  pthread_t thread[6];
  struct sbx_exec *exec = start_shell(script, 60, INTERACTIVE);
  for (int i = 0; i < 6; i++)
    CHECK_EQ_INT(pthread_create(&thread[i], NULL, kill_often, exec), 0);
  story_begin(&story);
  story_read(exec, &story); /* while they kill */
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_EXIT);
  CHECK(story.last.exit_code == 137 || story.last.exit_code == 0);
  for (int i = 0; i < 6; i++)
    pthread_join(thread[i], NULL);
  story_read(exec, &story);
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_END);
  story_end(&story);
  drop_exec(exec);
}

TEST(kills_from_many_threads) {
  for (int i = 0; i < scaled(40, 3); i++) {
    check_kills_from_threads("sleep 100 & wait");
    check_kills_from_threads("echo a; exit 0");
  }
}

TEST(kill_of_what_will_not_hear_and_of_what_is_stopped) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("trap '' TERM INT HUP; echo a; while :; do sleep 1; done", 60, INTERACTIVE);
  story_begin(&story);
  story_read_some(exec, &story, 2);
  kill_and_wait(exec);
  check_exit(exec, &story, 137);
  story_end(&story);
  drop_exec(exec);
  exec = start_shell("echo $$ >group; kill -STOP $$", 60, INTERACTIVE);
  pid_t group = number_in("group");
  CHECK_COMES(process_state(group, NULL, NULL) == 'T');
  kill_and_wait(exec);
  CHECK(!is_running(group));
  story_begin(&story);
  check_exit(exec, &story, 137);
  story_end(&story);
  drop_exec(exec);
}

TEST(kill_though_an_outsider_holds_the_pipes) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("setsid sleep 100 & echo $! >outside; echo abc; wait", 60, INTERACTIVE);
  pid_t outside = outsider_in("outside");
  uint64_t start = now_ms();
  story_begin(&story);
  story_read_some(exec, &story, 4);
  kill_and_wait(exec);
  check_exit(exec, &story, 137);
  CHECK(now_ms() - start < 4000);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  kill_outsider(outside);
  story_end(&story);
  drop_exec(exec);
}

TEST(kill_after_the_exit_while_the_output_is_held) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("setsid sleep 100 & echo $! >outside; echo abc; exit 8", 60, INTERACTIVE);
  pid_t outside = outsider_in("outside");
  sleep_us(50000);
  kill_and_wait(exec);
  story_begin(&story);
  check_exit(exec, &story, 8);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  kill_outsider(outside);
  story_end(&story);
  drop_exec(exec);
}

TEST(kill_past_the_deadline_but_before_a_read_is_no_timeout) {
  struct story story;
  struct sbx_exec *exec = start_shell("echo abc; exec sleep 100", 0.3, INTERACTIVE);
  sleep_us(500000);
  kill_and_wait(exec);
  story_begin(&story);
  check_exit(exec, &story, 137);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  story_end(&story);
  drop_exec(exec);
}

TEST(kill_around_the_deadline_gives_one_end) {
  uint32_t seed = 11;
  for (int i = 0; i < scaled(60, 4); i++) {
    struct story story;
    struct sbx_exec *exec = start_shell("echo abc; exec sleep 100", 0.02, INTERACTIVE);
    sleep_us((long)(15000 + next_random(&seed) % 10000));
    kill_and_wait(exec);
    story_begin(&story);
    check_exit(exec, &story, 137);
    CHECK(story.len[SBX_STDOUT] == 0 || strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
    story_end(&story);
    drop_exec(exec);
  }
}

TEST(kill_at_any_moment_gives_one_end) {
  uint32_t seed = 12;
  for (int i = 0; i < scaled(300, 10); i++) {
    struct story story;
    struct sbx_exec *exec = start_shell("echo a; echo b >&2; exit 3", 60, INTERACTIVE);
    sleep_us((long)(next_random(&seed) % 3000));
    kill_and_wait(exec);
    story_begin(&story);
    story_read(exec, &story);
    CHECK_EQ_INT(story.last.kind, SBX_ITEM_EXIT);
    CHECK(story.last.exit_code == 137 || story.last.exit_code == 3);
    if (story.last.exit_code == 3) CHECK(strcmp(story.data[SBX_STDERR], "b\n") == 0);
    story_read(exec, &story);
    CHECK_EQ_INT(story.last.kind, SBX_ITEM_END);
    story_end(&story);
    drop_exec(exec);
  }
  CHECK_COMES(count_children() == 0);
}

TEST(kill_ends_a_write_that_waits) {
  struct sbx_op *op = NULL, *none = NULL;
  char *data = calloc(1, 1024 * 1024);
  struct sbx_exec *exec = start_shell("exec sleep 100", 60, INTERACTIVE);
  CHECK_EQ_INT(sbx_exec_write(exec, data, 1024 * 1024, &op), 0);
  settle_engine();
  CHECK(!sbx_op_is_done(op));
  kill_and_wait(exec);
  CHECK(sbx_op_is_done(op));
  wait_and_drop(op, -EPIPE);
  CHECK_EQ_INT(sbx_exec_write(exec, data, 1, &none), -EPIPE);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  drop_exec(exec);
  free(data);
}

TEST(kill_refuses_writes_at_once_and_gives_everything_back) {
  int descriptors = check_open_descriptors();
  for (int i = 0; i < scaled(40, 4); i++) {
    struct sbx_op *kill_op, *none = NULL;
    struct sbx_exec *exec = start_shell("sleep 100 & wait", 60, INTERACTIVE);
    CHECK(check_open_descriptors() > descriptors);
    CHECK_EQ_INT(sbx_exec_kill(exec, &kill_op), 0);
    CHECK_EQ_INT(sbx_exec_write(exec, "x", 1, &none), -EPIPE); /* before the kill is done */
    wait_and_drop(kill_op, 0);
    CHECK_EQ_INT(check_open_descriptors(), descriptors); /* and before the exec is let go */
    drop_exec(exec);
  }
  settle_engine();
}

static void *read_to_the_end(void *arg) {
  struct story story;
  story_begin(&story);
  check_exit(arg, &story, 137);
  story_end(&story);
  return NULL;
}

TEST(kill_wakes_a_reader_and_a_cancelled_reader_is_told) {
  pthread_t reader;
  struct sbx_op *op;
  struct sbx_exec *exec = start_shell("exec sleep 100", 60, INTERACTIVE);
  CHECK_EQ_INT(sbx_exec_readable(exec, &op), 0);
  CHECK(!sbx_op_is_done(op));
  sbx_op_cancel(op);
  wait_and_drop(op, -ECANCELED);
  CHECK_EQ_INT(pthread_create(&reader, NULL, read_to_the_end, exec), 0);
  sleep_us(20000);
  kill_and_wait(exec);
  pthread_join(reader, NULL);
  drop_exec(exec);
}

/* A caller that lets go. */

static void check_abandon(const char *script, long after_us, int how) {
  int descriptors = check_open_descriptors();
  struct sbx_exec *exec = start_shell(script, 60, how);
  pid_t group = number_in("group");
  sleep_us(after_us);
  sbx_exec_abandon(exec);
  sbx_exec_unref(exec);
  CHECK_COMES(running_in_group(group) == 0);
  CHECK_COMES(process_state(group, NULL, NULL) == 0); /* and no zombie */
  CHECK_COMES(check_open_descriptors() == descriptors);
}

TEST(abandoned_exec_leaves_no_process) {
  for (int i = 0; i < 2; i++) {
    int how = i == 0 ? ONE_SHOT : INTERACTIVE;
    check_abandon("echo $$ >group; sleep 100 & wait", 0, how);
    check_abandon("echo $$ >group; sleep 100 & wait", 20000, how);
    check_abandon("echo $$ >group; exec cat /dev/zero", 20000, how);
    check_abandon("sleep 0.01; echo $$ >group; exit 0", 20000, how);
  }
  check_abandon("sleep 100 >/dev/null 2>&1 & echo $$ >group; exit 0", 20000, INTERACTIVE);
  check_abandon("sleep 100 & echo $$ >group; exit 0", 20000, INTERACTIVE | AT_EXIT);
}

TEST(abandoned_at_once) {
  int descriptors = check_open_descriptors();
  for (int i = 0; i < scaled(200, 10); i++) {
    struct sbx_exec *exec = start_shell("sleep 100 & wait", 60, i & 1);
    sbx_exec_abandon(exec);
    sbx_exec_unref(exec);
  }
  CHECK_COMES(count_children() == 0);
  CHECK_COMES(check_open_descriptors() == descriptors);
}

/* What was lent is the caller's again when abandon returns, however much is unwritten. */
TEST(abandoned_exec_touches_no_lent_data) {
  int descriptors = check_open_descriptors();
  for (int i = 0; i < scaled(40, 4); i++) {
    struct sbx_op *op = NULL;
    char *argv[] = {"sh", "-c", "sleep 0.01; exec cat >/dev/null", NULL};
    char *data = calloc(1, 1024 * 1024);
    struct sbx_exec_request request = request_of(argv, 60);
    request.interactive = (i & 1) != 0;
    request.stdin_data = request.interactive ? NULL : data;
    request.stdin_len = request.interactive ? 0 : 1024 * 1024;
    struct sbx_exec *exec = start_request(&request);
    if (request.interactive) CHECK_EQ_INT(sbx_exec_write(exec, data, 1024 * 1024, &op), 0);
    sleep_us(i * 500);
    sbx_exec_abandon(exec);
    free(data);
    if (op != NULL) CHECK(sbx_op_is_done(op));
    if (op != NULL) sbx_op_unref(op);
    sbx_exec_unref(exec);
  }
  CHECK_COMES(count_children() == 0);
  CHECK_COMES(check_open_descriptors() == descriptors);
}

int main(int argc, char **argv) {
  return exec_tests_main(argc, argv, NULL, 0);
}
