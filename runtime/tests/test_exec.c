/* SPDX-License-Identifier: MIT
 *
 * proves: X3, X4, X6, X7, X8, X9, X16, X18, L3, L5
 *
 * One-shot execs over real processes: input and output whole, the deadline, a cancel, what is
 * stopped and what is let go, and faults.
 */
#define _GNU_SOURCE
#include <semaphore.h>

#include "exec_try.h"

static struct sbx_exec *start_with_input(const char *script, const char *data, size_t len,
                                         double seconds) {
  char *argv[] = {"sh", "-c", (char *)(uintptr_t)script, NULL};
  struct sbx_exec_request request = request_of(argv, seconds);
  request.stdin_data = data;
  request.stdin_len = len;
  return start_request(&request);
}

static char *random_bytes(size_t len) {
  uint32_t seed = 99;
  char *data = malloc(len);
  for (size_t i = 0; i + 4 <= len; i += 4) {
    uint32_t word = next_random(&seed);
    memcpy(data + i, &word, 4);
  }
  return data;
}

TEST(large_input_comes_back_whole) {
  size_t len = (size_t)scaled(256, 4) * 1024 * 1024;
  char *data = random_bytes(len);
  struct sbx_exec *exec = start_with_input("exec cat", data, len, 200);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  CHECK_EQ_INT(result.exit_code, 0);
  CHECK_EQ_INT(result.output_len[SBX_STDOUT], len);
  CHECK(result.output_len[SBX_STDOUT] == len && memcmp(result.output[0], data, len) == 0);
  CHECK_EQ_INT(result.output_len[SBX_STDERR], 0);
  drop_exec(exec);
  free(data);
}

TEST(streams_come_whole_and_in_order) {
  struct sbx_exec *exec = start_shell(
      "i=0; while [ $i -lt 3000 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done; exit 3", 60, 0);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.exit_code, 3);
  for (int stream = 0; stream < 2; stream++) {
    char *text = malloc(40000);
    size_t len = 0;
    for (int i = 0; i < 3000; i++)
      len += (size_t)sprintf(text + len, "%s%d\n", stream == 0 ? "out" : "err", i);
    CHECK(output_is(&result, (enum sbx_stream)stream, text));
    free(text);
  }
  drop_exec(exec);
}

static void check_ends(const char *script, const char *data, size_t len, int exit_code,
                       const char *output) {
  struct sbx_exec *exec = start_with_input(script, data, len, 60);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  CHECK_EQ_INT(result.exit_code, exit_code);
  if (!output_is(&result, SBX_STDOUT, output)) fprintf(stderr, "%s\n", script);
  CHECK(output_is(&result, SBX_STDOUT, output));
  drop_exec(exec);
}

TEST(command_need_not_take_its_input) {
  size_t len = 10 * 1024 * 1024;
  char *data = malloc(len);
  memset(data, 'x', len);
  check_ends("exec head -c 10", data, len, 0, "xxxxxxxxxx");
  check_ends("exec true", data, len, 0, "");
  check_ends("exec 0<&-; sleep 0.1; echo later; exit 5", data, len, 5, "later\n");
  check_ends("head -c 70000 >/dev/null; exec 0<&-; sleep 0.1; echo later", data, len, 0, "later\n");
  free(data);
}

TEST(no_input_is_end_of_file) {
  check_ends("cat; echo end", NULL, 0, 0, "end\n");
  check_ends("cat; echo end", "", 0, 0, "end\n");
}

TEST(signal_is_128_and_its_number) {
  check_ends("kill -TERM $$", NULL, 0, 143, "");
  check_ends("kill -KILL $$", NULL, 0, 137, "");
}

static void check_refused(char *name, int exit_code, const char *line) {
  char *argv[] = {name, NULL};
  struct sbx_exec_request request = request_of(argv, 60);
  request.stdin_data = "x";
  request.stdin_len = 1;
  struct sbx_exec *exec = start_request(&request);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  CHECK_EQ_INT(result.exit_code, exit_code);
  CHECK(output_is(&result, SBX_STDOUT, ""));
  CHECK(output_is(&result, SBX_STDERR, line));
  drop_exec(exec);
}

TEST(refused_command_has_a_code_and_a_line) {
  if (in_valgrind()) SKIP("valgrind hides what the child says");
  check_refused("no-such-command", 127, "sbxlua: no-such-command: command not found\n");
  check_refused("/etc", 126, "sbxlua: /etc: Permission denied\n");
  CHECK_EQ_INT(put_text(&place, "script", "#!/no/such/shell\n"), 0);
  CHECK_EQ_INT(fchmodat(place.fd, "ws/script", 0755, 0), 0);
  check_refused("./script", 126, "sbxlua: ./script: bad interpreter: No such file or directory\n");
}

static void check_no_start(struct sbx_exec_request *request, enum sbx_exec_step step, int error) {
  struct sbx_exec *exec = NULL;
  struct sbx_fault fault;
  CHECK_EQ_INT(sbx_exec_start(request, &exec, &fault), error);
  CHECK_EQ_INT(fault.step, step);
  CHECK_EQ_INT(fault.error, error);
  CHECK(exec == NULL);
}

TEST(directory_of_the_command) {
  char *argv[] = {"sh", "-c", "basename \"$(pwd)\"", NULL};
  struct sbx_exec_request request = request_of(argv, 60);
  CHECK_EQ_INT(put_text(&place, "sub/file", ""), 0);
  request.cwd = "sub";
  struct sbx_exec *exec = start_request(&request);
  struct sbx_exec_result result = result_of(exec);
  CHECK(output_is(&result, SBX_STDOUT, "sub\n"));
  drop_exec(exec);
  request.cwd = "none";
  check_no_start(&request, SBX_STEP_CWD, -ENOENT);
  request.cwd = "sub/file";
  check_no_start(&request, SBX_STEP_CWD, -ENOTDIR);
  request.cwd = "../out";
  check_no_start(&request, SBX_STEP_CWD, -EXDEV);
}

/* The deadline. */

TEST(deadline_stops_the_group_and_counts) {
  uint64_t start = now_ms();
  struct sbx_exec *exec = start_shell(
      "echo abc; echo fault >&2; sleep 100 & echo $$ >group; trap '' TERM; sleep 100", 0.4, 0);
  struct sbx_exec_result result = result_of(exec);
  CHECK(now_ms() - start >= 400);
  CHECK(now_ms() - start < 10000);
  CHECK_EQ_INT(result.end, SBX_END_TIMEOUT);
  CHECK_EQ_INT(result.output_len[SBX_STDOUT], 4);
  CHECK_EQ_INT(result.output_len[SBX_STDERR], 6);
  CHECK(!result.held);
  CHECK_EQ_INT(running_in_group(number_in("group")), 0); /* already, not soon */
  drop_exec(exec);
}

TEST(deadline_with_an_outside_holder) {
  struct sbx_exec *exec =
      start_shell("setsid sleep 100 & echo $! >outside; echo $$ >group; echo abc; wait", 1, 0);
  pid_t outside = outsider_in("outside");
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_TIMEOUT);
  CHECK_EQ_INT(result.output_len[SBX_STDOUT], 4);
  CHECK(result.held);
  CHECK_EQ_INT(running_in_group(number_in("group")), 0);
  kill_outsider(outside);
  drop_exec(exec);
}

TEST(exit_is_not_the_end_while_the_output_is_held) {
  struct sbx_exec *exec = start_shell("sleep 100 & echo $$ >group; echo abc; exit 0", 0.5, 0);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_TIMEOUT);
  CHECK(!result.held);
  CHECK_EQ_INT(running_in_group(number_in("group")), 0);
  drop_exec(exec);

  exec = start_shell("{ sleep 0.2; echo late; } & echo early; exit 6", 60, 0);
  result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  CHECK_EQ_INT(result.exit_code, 6);
  CHECK(output_is(&result, SBX_STDOUT, "early\nlate\n"));
  drop_exec(exec);
}

TEST(deadline_that_has_passed_already) {
  struct sbx_exec *exec = start_shell("exec sleep 100", 0, 0);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_TIMEOUT);
  drop_exec(exec);
}

/* Cancel. */

TEST(cancel_stops_the_group) {
  struct sbx_exec *exec = start_shell("sleep 100 & sleep 100 & echo $$ >group; wait", 60, 0);
  pid_t group = number_in("group");
  CHECK_EQ_INT(running_in_group(group), 3);
  struct sbx_op *end = sbx_exec_end_op(exec);
  CHECK(!sbx_op_is_done(end));
  sbx_op_cancel(end);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_CANCELLED);
  CHECK_EQ_INT(running_in_group(group), 0);
  sbx_op_cancel(end);
  drop_exec(exec);
}

TEST(cancel_at_any_moment_ends_it_one_way) {
  uint32_t seed = 5;
  for (int i = 0; i < scaled(200, 10); i++) {
    struct sbx_exec *exec = start_shell("echo x; exit 0", 60, 0);
    sleep_us((long)(next_random(&seed) % 3000));
    sbx_op_cancel(sbx_exec_end_op(exec));
    struct sbx_exec_result result = result_of(exec);
    CHECK(result.end == SBX_END_CANCELLED || (result.end == SBX_END_EXIT && result.exit_code == 0 &&
                                              output_is(&result, SBX_STDOUT, "x\n")));
    drop_exec(exec);
  }
}

/* An op that outlives the caller's exec, cancelled as it completes. */
TEST(end_op_outlives_the_exec) {
  uint32_t seed = 6;
  for (int i = 0; i < scaled(400, 10); i++) {
    struct sbx_exec *exec = start_shell("exit 0", 60, 0);
    struct sbx_op *end = sbx_exec_end_op(exec);
    sbx_op_ref(end);
    sleep_us((long)(next_random(&seed) % 2000));
    drop_exec(exec);
    sbx_op_cancel(end);
    sbx_op_wait(end);
    sbx_op_cancel(end);
    if (i % 20 == 0) {
      settle_engine(); /* the exec is gone, all but the op: what a cancel that lost the race finds
                        */
      end->cancel(end);
      settle_engine();
    }
    sbx_op_unref(end);
  }
  settle_engine();
}

/* What is let go. */

TEST(completed_call_lets_its_group_go) {
  struct sbx_exec *exec = start_shell("sleep 100 >/dev/null 2>&1 & echo $! >left; exit 0", 60, 0);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  drop_exec(exec);
  settle_engine();
  kill_outsider(number_in("left"));
}

TEST(end_at_exit_leaves_a_writer_in_peace) {
  int descriptors = check_open_descriptors();
  struct sbx_exec *exec =
      start_shell("{ i=0; while [ $i -lt 40 ]; do echo tick || exit 1; i=$((i+1)); "
                  "sleep 0.02; done; echo 1 >mark; } & echo now; exit 7",
                  60, AT_EXIT);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  CHECK_EQ_INT(result.exit_code, 7);
  CHECK(result.output_len[SBX_STDOUT] >= 4 && result.output_len[SBX_STDOUT] < 40 * 5);
  CHECK(memcmp(result.output[SBX_STDOUT], "now\n", 4) == 0 ||
        memcmp(result.output[SBX_STDOUT], "tick\n", 5) == 0);
  uint64_t before = result.output_len[SBX_STDOUT];
  CHECK_EQ_INT(number_in("mark"), 1);
  sbx_exec_result(exec, &result);
  CHECK_EQ_INT(result.output_len[SBX_STDOUT], before); /* what came later is nobody's */
  drop_exec(exec);
  CHECK_COMES(check_open_descriptors() == descriptors);
}

TEST(end_at_exit_has_all_that_was_written_before) {
  char *argv[] = {"sh", "-c", "sleep 100 & echo $! >left; head -c 60000 /dev/zero; exit 0", NULL};
  for (int i = 0; i < scaled(20, 2); i++) {
    struct sbx_exec_request request = request_of(argv, 60);
    request.end_at_exit = true;
    struct sbx_exec *exec = start_request(&request);
    struct sbx_exec_result result = result_of(exec);
    CHECK_EQ_INT(result.end, SBX_END_EXIT);
    CHECK_EQ_INT(result.output_len[SBX_STDOUT], 60000);
    drop_exec(exec);
    int descriptors = check_open_descriptors();
    kill_outsider(number_in("left"));
    CHECK_COMES(check_open_descriptors() == descriptors - 2);
  }
}

#define MUCH 900000

static void fill_large_pipe(void) {
  static char data[MUCH];
  CHECK(fcntl(1, F_SETPIPE_SZ, 1024 * 1024) >= MUCH);
  CHECK_EQ_INT(write(1, data, MUCH), MUCH);
}

static sem_t gate;

static void hold_engine(struct sbx_work *work) {
  (void)work;
  while (sem_wait(&gate) != 0)
    ;
}

static bool a_child_has_ended(void) {
  siginfo_t info = {0};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* The exit and more output than one turn of the engine reads come at the same moment. */
TEST(end_at_exit_has_all_of_a_large_pipe) {
  char program[PATH_MAX];
  struct sbx_work hold = {.run = hold_engine};
  if (in_valgrind()) SKIP("valgrind's /proc/self/exe is valgrind");
  CHECK(realpath("/proc/self/exe", program) != NULL);
  int descriptors = check_open_descriptors();
  char *argv[] = {program, "fill-large-pipe", NULL};
  struct sbx_exec_request request = request_of(argv, 60);
  request.end_at_exit = true;
  sem_init(&gate, 0, 0);
  struct sbx_exec *exec = start_request(&request);
  CHECK_EQ_INT(sbx_engine_post(&hold), 1);
  CHECK_COMES(a_child_has_ended());
  sem_post(&gate);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_EXIT);
  CHECK_EQ_INT(result.exit_code, 0);
  CHECK_EQ_INT(result.output_len[SBX_STDOUT], MUCH);
  drop_exec(exec);
  CHECK_COMES(check_open_descriptors() == descriptors); /* the end of the pipes may be seen later */
  sem_destroy(&gate);
}

/* Faults. */

TEST(input_held_by_what_is_left_is_a_fault) {
  size_t len = 1024 * 1024;
  char *data = malloc(len);
  memset(data, 'x', len);
  struct sbx_exec *exec = start_with_input(
      "exec 3<&0; sleep 100 <&3 >/dev/null 2>&1 & echo $! >left; exit 0", data, len, 60);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_FAULT);
  CHECK_EQ_INT(result.fault.step, SBX_STEP_HELD);
  CHECK(!is_running(number_in("left"))); /* a call that failed stops its group */
  drop_exec(exec);
  free(data);
}

static void ignore_children(void) {
  signal(SIGCHLD, SIG_IGN);
  struct sbx_exec *exec = start_shell("sleep 100 >/dev/null 2>&1 & echo $! >left; exit 0", 60, 0);
  struct sbx_exec_result result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_FAULT);
  CHECK_EQ_INT(result.fault.step, SBX_STEP_STATUS);
  CHECK_EQ_INT(result.fault.error, -ECHILD);
  pid_t left = number_in("left");
  CHECK(!is_running(left));
  if (is_running(left)) kill(left, SIGKILL);
  drop_exec(exec);
  exec = start_shell("sleep 100 & echo $! >left; wait", 0.3, 0);
  result = result_of(exec);
  CHECK_EQ_INT(result.end, SBX_END_TIMEOUT);
  CHECK(!is_running(number_in("left")));
  drop_exec(exec);
}

static atomic_bool stealing;

static void *wait_for_anybody(void *arg) {
  int status;
  (void)arg;
  while (atomic_load(&stealing) && waitpid(-1, &status, WNOHANG) <= 0)
    ;
  return NULL;
}

static void steal_status(void) {
  pthread_t thief;
  atomic_store(&stealing, true);
  CHECK_EQ_INT(pthread_create(&thief, NULL, wait_for_anybody, NULL), 0);
  struct sbx_exec *exec = start_shell("sleep 0.2; exit 4", 60, 0);
  struct sbx_exec_result result = result_of(exec);
  atomic_store(&stealing, false);
  pthread_join(thief, NULL);
  if (result.end == SBX_END_EXIT) /* the engine was first */
    CHECK_EQ_INT(result.exit_code, 4);
  else
    CHECK(result.end == SBX_END_FAULT && result.fault.step == SBX_STEP_STATUS);
  drop_exec(exec);
}

static int status_of(const char *scenario) {
  char text[16];
  return run_scenario(scenario, text, sizeof text);
}

TEST(no_status_is_ever_invented) {
  CHECK_EQ_INT(status_of("ignore-children"), 0);
  for (int i = 0; i < scaled(10, 1); i++)
    CHECK_EQ_INT(status_of("steal-status"), 0);
}

static const struct scenario scenarios[] = {
    {"ignore-children", ignore_children},
    {"steal-status", steal_status},
    {"fill-large-pipe", fill_large_pipe},
};

int main(int argc, char **argv) {
  return exec_tests_main(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
