/* SPDX-License-Identifier: MIT
 *
 * proves: X10, X11, X12, X13, X15, X18, L5
 *
 * Interactive execs, the caller reading and writing: order of the stream, its one end, output that
 * nobody reads, the deadline, and every way a write can be taken or refused. Kills are in
 * test_exec_kill.c.
 */
#define _GNU_SOURCE
#include "exec_try.h"

static struct sbx_op *write_text(struct sbx_exec *exec, const char *text) {
  struct sbx_op *op = NULL;
  CHECK_EQ_INT(sbx_exec_write(exec, text, strlen(text), &op), 0);
  return op;
}

static void check_write_refused(struct sbx_exec *exec) {
  struct sbx_op *op = NULL;
  CHECK_EQ_INT(sbx_exec_write(exec, "x", 1, &op), -EPIPE);
  CHECK(op == NULL);
  CHECK_EQ_INT(sbx_exec_write(exec, "", 0, &op), -EPIPE);
  CHECK(op == NULL);
}

TEST(dialogue_with_a_command) {
  struct story story;
  struct sbx_exec *exec = start_shell("exec cat", 60, INTERACTIVE);
  story_begin(&story);
  CHECK(write_text(exec, "one\n") == NULL);
  story_read_some(exec, &story, 4);
  CHECK(write_text(exec, "two\n") == NULL && write_text(exec, "") == NULL);
  story_read_some(exec, &story, 8);
  struct sbx_item item;
  sbx_exec_next(exec, &item);
  CHECK_EQ_INT(item.kind, SBX_ITEM_NOTHING_YET);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  check_write_refused(exec);
  check_exit(exec, &story, 0);
  CHECK(strcmp(story.data[SBX_STDOUT], "one\ntwo\n") == 0);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  check_write_refused(exec);
  story_end(&story);
  kill_and_drop(exec);
}

TEST(chunks_come_in_order_of_arrival) {
  struct story story;
  struct sbx_exec *exec = start_shell("for i in 1 2 3; do echo o$i; sleep 0.05; echo e$i >&2; "
                                      "sleep 0.05; done; exit 9",
                                      60, INTERACTIVE);
  story_begin(&story);
  check_exit(exec, &story, 9);
  CHECK(strcmp(story.streams, "oeoeoe") == 0);
  CHECK(strcmp(story.data[SBX_STDOUT], "o1\no2\no3\n") == 0);
  CHECK(strcmp(story.data[SBX_STDERR], "e1\ne2\ne3\n") == 0);
  story_end(&story);
  kill_and_drop(exec);
}

TEST(refused_command_is_a_stream_too) {
  struct story story;
  char *argv[] = {"no-such-command", NULL};
  struct sbx_exec_request request = request_of(argv, 60);
  request.interactive = true;
  struct sbx_exec *exec = start_request(&request);
  check_write_refused(exec);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  story_begin(&story);
  check_exit(exec, &story, 127);
  CHECK(strcmp(story.data[SBX_STDERR], "sbxlua: no-such-command: command not found\n") == 0);
  story_end(&story);
  kill_and_drop(exec);
}

/* Output that nobody reads. */

TEST(command_never_stalls_on_a_reader_who_comes_late) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("head -c 8000000 /dev/zero; echo err >&2; echo 1 >mark; exit 3", 3, INTERACTIVE);
  uint64_t start = now_ms();
  CHECK_EQ_INT(number_in("mark"), 1);
  while (now_ms() - start < 3200) /* past the deadline, which was met */
    sleep_us(10000);
  story_begin(&story);
  check_exit(exec, &story, 3);
  CHECK_EQ_INT(story.len[SBX_STDOUT], 8000000);
  CHECK(strcmp(story.data[SBX_STDERR], "err\n") == 0);
  story_end(&story);
  kill_and_drop(exec);
}

TEST(reader_gets_what_a_busy_writer_gives) {
  struct story story;
  struct sbx_exec *exec =
      start_shell("i=0; while [ $i -lt 20000 ]; do echo line$i; i=$((i+1)); done", 60, INTERACTIVE);
  story_begin(&story);
  check_exit(exec, &story, 0);
  size_t at = 0;
  for (int i = 0; i < 20000; i++) {
    char line[32];
    int len = snprintf(line, sizeof line, "line%d\n", i);
    if (strncmp(story.data[SBX_STDOUT] + at, line, (size_t)len) != 0) {
      CHECK(strncmp(story.data[SBX_STDOUT] + at, line, (size_t)len) == 0);
      break;
    }
    at += (size_t)len;
  }
  CHECK_EQ_INT(story.len[SBX_STDOUT], at);
  story_end(&story);
  kill_and_drop(exec);
}

static void fail_to_keep_output(void) {
  struct story story;
  struct sbx_exec *exec = start_shell("echo $$ >group; cat /dev/zero", 60, INTERACTIVE);
  story_begin(&story);
  wait_readable(exec);
  pid_t group = number_in("group");
  CHECK_COMES(running_in_group(group) == 0);
  story_read(exec, &story);
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_FAULT);
  CHECK_EQ_INT(story.last.fault.step, SBX_STEP_OUTPUT);
  CHECK_EQ_INT(story.last.fault.error, -ENOENT);
  CHECK(story.len[SBX_STDOUT] >= SBX_OUTPUT_MEMORY / 2);
  kill_and_wait(exec);
  story_read(exec, &story); /* and a kill does not clear it */
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_FAULT);
  story_end(&story);
  drop_exec(exec);
}

static void spill_nowhere(void) {
  setenv("TMPDIR", "/no/such/place", 1);
  fail_to_keep_output();
}

TEST(output_that_cannot_be_kept_is_a_fault) {
  char text[16];
  CHECK_EQ_INT(run_scenario("spill-nowhere", text, sizeof text), 0);
}

/* The deadline. */

static void check_timeout(struct sbx_exec *exec, uint64_t out, uint64_t err, bool held) {
  for (int i = 0; i < 3; i++) {
    struct sbx_item item;
    next_item(exec, &item);
    CHECK_EQ_INT(item.kind, SBX_ITEM_TIMEOUT);
    CHECK_EQ_INT(item.output_len[SBX_STDOUT], out);
    CHECK_EQ_INT(item.output_len[SBX_STDERR], err);
    CHECK_EQ_INT(item.held, held);
  }
}

TEST(deadline_is_kept_though_nobody_reads) {
  struct sbx_exec *exec =
      start_shell("echo abc; echo d >&2; echo $$ >group; sleep 100 & sleep 100", 0.4, INTERACTIVE);
  pid_t group = number_in("group");
  CHECK_COMES(running_in_group(group) == 0);
  sleep_us(50000);
  check_timeout(exec, 4, 2, false);
  check_write_refused(exec);
  kill_and_drop(exec);
}

TEST(deadline_wakes_who_waits_and_counts_what_was_read) {
  struct story story;
  uint64_t start = now_ms();
  struct sbx_exec *exec = start_shell("echo abc; exec sleep 100", 0.4, INTERACTIVE);
  story_begin(&story);
  story_read(exec, &story);
  CHECK(now_ms() - start >= 400 && now_ms() - start < 10000);
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_TIMEOUT);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  check_timeout(exec, 4, 0, false);
  story_end(&story);
  kill_and_drop(exec);
}

TEST(unread_output_is_gone_after_a_timeout) {
  struct sbx_exec *exec = start_shell("echo abc; exec sleep 100", 0.3, INTERACTIVE);
  struct sbx_item item;
  sleep_us(500000);
  check_timeout(exec, 4, 0, false);
  kill_and_wait(exec);
  next_item(exec, &item);
  CHECK_EQ_INT(item.kind, SBX_ITEM_EXIT);
  CHECK_EQ_INT(item.exit_code, 137);
  drop_exec(exec);
}

TEST(deadline_while_something_holds_the_output) {
  struct sbx_exec *exec =
      start_shell("setsid sleep 100 & echo $! >outside; echo abc; exit 0", 0.4, INTERACTIVE);
  pid_t outside = outsider_in("outside");
  sleep_us(600000);
  check_timeout(exec, 4, 0, true);
  kill_outsider(outside);
  kill_and_drop(exec);
  exec = start_shell("sleep 100 & echo $$ >group; echo abc; exit 0", 0.4, INTERACTIVE);
  pid_t group = number_in("group");
  CHECK_COMES(running_in_group(group) == 0);
  check_timeout(exec, 4, 0, false);
  kill_and_drop(exec);
}

TEST(end_at_exit_lets_the_rest_run_until_the_kill) {
  struct story story;
  struct sbx_exec *exec = start_shell("{ while echo tick; do sleep 0.01; done; } & "
                                      "echo $! >left; sleep 0.1; exit 4",
                                      60, INTERACTIVE | AT_EXIT);
  story_begin(&story);
  check_exit(exec, &story, 4);
  CHECK(story.len[SBX_STDOUT] >= 5);
  pid_t left = number_in("left");
  sleep_us(100000);
  CHECK(is_running(left));
  kill_and_wait(exec);
  CHECK(!is_running(left));
  story_end(&story);
  drop_exec(exec);
}

/* Writes. */

static char big[1024 * 1024];

static void fill_big(void) {
  uint32_t seed = 3;
  for (size_t i = 0; i < sizeof big; i++)
    big[i] = (char)next_random(&seed);
}

static void check_big(const struct story *story, size_t len) {
  CHECK_EQ_INT(story->len[SBX_STDOUT], len);
  CHECK(story->len[SBX_STDOUT] == len && memcmp(story->data[SBX_STDOUT], big, len) == 0);
}

/* A command that waits for the test before it goes on. */
#define WAIT_FOR_GO "until [ -e go ]; do sleep 0.01; done; rm go; "

static void say_go(void) {
  CHECK_EQ_INT(put_text(&place, "go", ""), 0);
}

TEST(close_waits_for_what_is_queued) {
  struct story story;
  struct sbx_op *first = NULL, *second = NULL, *last = NULL;
  struct sbx_exec *exec = start_shell(WAIT_FOR_GO "exec cat", 60, INTERACTIVE);
  fill_big();
  CHECK_EQ_INT(sbx_exec_write(exec, big, 500000, &first), 0);
  CHECK(first != NULL);
  CHECK_EQ_INT(sbx_exec_write(exec, big + 500000, 500000, &second), 0);
  CHECK(second != NULL);
  CHECK_EQ_INT(sbx_exec_write(exec, big + 1000000, 100, &last), 0);
  CHECK(last == NULL); /* there is room for that: it is taken at once */
  CHECK(!sbx_op_is_done(first));
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  check_write_refused(exec);
  say_go();
  story_begin(&story);
  check_exit(exec, &story, 0);
  check_big(&story, 1000100);
  wait_and_drop(first, 0);
  wait_and_drop(second, 0);
  story_end(&story);
  kill_and_drop(exec);
}

TEST(write_fails_once_the_command_has_closed) {
  struct story story;
  struct sbx_exec *exec = start_shell("exec 0<&-; echo closed; exec sleep 100", 60, INTERACTIVE);
  story_begin(&story);
  story_read_some(exec, &story, 7);
  check_write_refused(exec);
  kill_and_drop(exec);
  story_end(&story);

  exec = start_shell("exit 0", 60, INTERACTIVE);
  story_begin(&story);
  check_exit(exec, &story, 0);
  check_write_refused(exec);
  kill_and_wait(exec);
  check_write_refused(exec);
  story_end(&story);
  drop_exec(exec);
}

static void check_waiting_write_fails(const char *script) {
  struct sbx_op *first = NULL, *second = NULL;
  struct sbx_exec *exec = start_shell(script, 60, INTERACTIVE);
  CHECK_EQ_INT(sbx_exec_write(exec, big, sizeof big, &first), 0);
  CHECK_EQ_INT(sbx_exec_write(exec, big, sizeof big, &second), 0);
  wait_and_drop(first, -EPIPE);
  wait_and_drop(second, -EPIPE);
  check_write_refused(exec);
  kill_and_drop(exec);
}

TEST(waiting_write_fails_when_nobody_will_read) {
  check_waiting_write_fails("sleep 0.1; exec 0<&-; exec sleep 100");
  check_waiting_write_fails("head -c 100000 >/dev/null; exec 0<&-; exec sleep 100");
  check_waiting_write_fails("sleep 0.1; exit 0");
}

TEST(cancelled_write_is_whole_or_never_was) {
  struct story story;
  struct sbx_op *begun = NULL, *untouched = NULL;
  struct sbx_exec *exec = start_shell(WAIT_FOR_GO "exec cat", 60, INTERACTIVE);
  char *lent = malloc(500000);
  fill_big();
  memcpy(lent, big, 500000);
  CHECK_EQ_INT(sbx_exec_write(exec, lent, 500000, &begun), 0);
  CHECK_EQ_INT(sbx_exec_write(exec, lent, 500000, &untouched), 0);
  settle_engine(); /* the pipe is full now */
  sbx_op_cancel(untouched);
  sbx_op_cancel(begun);
  wait_and_drop(untouched, -ECANCELED);
  wait_and_drop(begun, -ECANCELED);
  memset(lent, 0, 500000);
  free(lent);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  say_go();
  story_begin(&story);
  check_exit(exec, &story, 0);
  check_big(&story, 500000);
  story_end(&story);
  kill_and_drop(exec);
}

#define WRITERS 4
#define LINES 100
#define LINE_LEN 2000

struct writer {
  struct sbx_exec *exec;
  char name;
};

static void *write_lines(void *arg) {
  struct writer *writer = arg;
  for (int i = 0; i < LINES; i++) {
    char line[LINE_LEN], number[16];
    struct sbx_op *op;
    memset(line, writer->name, LINE_LEN);
    memcpy(line + 1, number, (size_t)snprintf(number, sizeof number, "%d.", i));
    line[LINE_LEN - 1] = '\n';
    CHECK_EQ_INT(sbx_exec_write(writer->exec, line, LINE_LEN, &op), 0);
    if (op != NULL) wait_and_drop(op, 0); /* then the line may go */
  }
  return NULL;
}

static void check_lines(struct story *story) {
  int next[WRITERS] = {0};
  CHECK_EQ_INT(story->len[SBX_STDOUT], WRITERS * LINES * LINE_LEN);
  for (int i = 0; i < WRITERS * LINES; i++) {
    const char *line = story->data[SBX_STDOUT] + i * LINE_LEN;
    int who = line[0] - 'a';
    bool good =
        who >= 0 && who < WRITERS && atoi(line + 1) == next[who] && line[LINE_LEN - 1] == '\n';
    for (int j = 7; good && j < LINE_LEN - 1; j++)
      good = line[j] == line[0]; /* the number is before that */
    CHECK(good);
    if (!good) return;
    next[who]++;
  }
}

TEST(writes_of_several_threads_stay_whole_and_in_order) {
  struct story story;
  struct writer writers[WRITERS];
  pthread_t thread[WRITERS];
  struct sbx_exec *exec = start_shell("exec cat", 60, INTERACTIVE);
  for (int i = 0; i < WRITERS; i++) {
    writers[i] = (struct writer){exec, (char)('a' + i)};
    CHECK_EQ_INT(pthread_create(&thread[i], NULL, write_lines, &writers[i]), 0);
  }
  story_begin(&story);
  story_read_some(exec, &story, 1000);
  for (int i = 0; i < WRITERS; i++)
    pthread_join(thread[i], NULL);
  CHECK_EQ_INT(sbx_exec_close_stdin(exec), 0);
  check_exit(exec, &story, 0);
  check_lines(&story);
  story_end(&story);
  kill_and_drop(exec);
}

TEST(input_held_by_what_is_left_is_a_fault_that_stays) {
  struct story story;
  struct sbx_op *op = NULL;
  struct sbx_exec *exec = start_shell("exec 3<&0; sleep 100 <&3 >/dev/null 2>&1 & echo abc; "
                                      "sleep 0.2; exit 0",
                                      60, INTERACTIVE);
  CHECK_EQ_INT(sbx_exec_write(exec, big, sizeof big, &op), 0);
  story_begin(&story);
  story_read(exec, &story);
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_FAULT);
  CHECK_EQ_INT(story.last.fault.step, SBX_STEP_HELD);
  CHECK(strcmp(story.data[SBX_STDOUT], "abc\n") == 0);
  if (op != NULL) wait_and_drop(op, -EPIPE);
  kill_and_wait(exec);
  story_read(exec, &story);
  CHECK_EQ_INT(story.last.kind, SBX_ITEM_FAULT);
  story_end(&story);
  drop_exec(exec);
}

static const struct scenario scenarios[] = {{"spill-nowhere", spill_nowhere}};

int main(int argc, char **argv) {
  return exec_tests_main(argc, argv, scenarios, 1);
}
