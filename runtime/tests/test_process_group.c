/* SPDX-License-Identifier: MIT
 *
 * proves: X4, X16, L3
 *
 * A started command and its group: its status, signals that reach the group and never, whatever the
 * numbers of processes, anybody else, and who counts as alive.
 */
#define _GNU_SOURCE
#include "process_try.h"

TEST(status_of_an_exit_and_of_a_signal) {
  static const struct {
    const char *script;
    int exit_code;
  } cases[] = {{"exit 0", 0},          {"exit 3", 3},
               {"exit 255", 255},      {"kill -TERM $$", 143},
               {"kill -KILL $$", 137}, {"kill -SEGV $$", 139},
               {"exit 137", 137},      {"kill -HUP $$", 128 + SIGHUP}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct started started = start_shell(cases[i].script);
    int exit_code = -1;
    CHECK_EQ_INT(exit_code_of(&started), cases[i].exit_code);
    /* Reading it does not reap: the number stays taken. */
    CHECK_EQ_INT(status_of(&started.process, &exit_code), 0);
    CHECK_EQ_INT(exit_code, cases[i].exit_code);
    CHECK_EQ_INT(process_state(started.process.pid, NULL, NULL), 'Z');
    sbx_process_reap(&started.process);
    CHECK_EQ_INT(process_state(started.process.pid, NULL, NULL), 0);
    sbx_process_reap(&started.process);
    finish(&started);
  }
  CHECK_COMES(count_children() == 0);
}

TEST(status_of_what_runs_and_of_what_is_stopped) {
  struct started started = start_shell("echo ready; exec sleep 100");
  char text[16];
  int exit_code = -1;
  read_line(&started, text, sizeof text);
  CHECK_EQ_INT(status_of(&started.process, &exit_code), -EAGAIN);
  sbx_process_signal_group(&started.process, SIGSTOP);
  CHECK_COMES(process_state(started.process.pid, NULL, NULL) == 'T');
  CHECK_EQ_INT(status_of(&started.process, &exit_code), -EAGAIN);
  CHECK_EQ_INT(exit_code, -1);
  sbx_process_signal_group(&started.process, SIGKILL);
  CHECK_EQ_INT(exit_code_of(&started), 137);
  finish(&started);
}

TEST(signal_reaches_the_whole_group) {
  struct started started =
      start_shell("sleep 100 & sh -c 'sleep 100 & sleep 100' & echo ready; wait");
  char text[16];
  pid_t group = started.process.pid;
  read_line(&started, text, sizeof text);
  CHECK_COMES(running_in_group(group) == 5);
  sbx_process_signal_group(&started.process, SIGKILL);
  CHECK_EQ_INT(exit_code_of(&started), 137);
  sbx_process_reap(&started.process);
  CHECK_COMES(!sbx_process_group_alive(&started.process));
  CHECK_EQ_INT(running_in_group(group), 0);
  finish(&started);
}

TEST(group_outlives_its_leader) {
  struct started started = start_shell("sleep 100 & echo ready; exit 4");
  char text[16];
  read_line(&started, text, sizeof text);
  CHECK_EQ_INT(exit_code_of(&started), 4);
  CHECK_EQ_INT(running_in_group(started.process.pid), 1);
  sbx_process_signal_group(&started.process, SIGKILL); /* the leader is a zombie by now */
  CHECK_COMES(running_in_group(started.process.pid) == 0);
  CHECK_EQ_INT(exit_code_of(&started), 4);
  finish(&started);
}

TEST(alive_after_the_reap_as_long_as_somebody_is) {
  struct started started = start_shell("sleep 100 & echo $!; exit 0");
  char text[16];
  read_line(&started, text, sizeof text);
  pid_t left = (pid_t)atoi(text);
  wait_exit(&started);
  sbx_process_reap(&started.process);
  CHECK(sbx_process_group_alive(&started.process));
  sbx_process_signal_group(&started.process, SIGKILL); /* no longer ours to signal */
  sleep_us(20000);
  CHECK(is_running(left));
  CHECK(sbx_process_group_alive(&started.process));
  kill(left, SIGKILL);
  CHECK_COMES(!sbx_process_group_alive(&started.process));
  finish(&started);
}

/* A process of ours that has exactly this number and leads a group of it; -1 if that is not to be
 * had. */
static pid_t be_number(pid_t number) {
  struct {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size;
  } args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1};
  pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
  if (pid != 0) return pid;
  syscall(SYS_setpgid, 0, 0);
  for (;;)
    syscall(SYS_pause);
}

/* Gives the number of a command that is gone to another process, which no signal may reach. */
static void check_number_is_not_hit(struct started *started) {
  pid_t number = started->process.pid;
  CHECK_EQ_INT(process_state(number, NULL, NULL), 0);
  pid_t other = be_number(number);
  if (other < 0) SKIP("cannot choose a process's number here");
  CHECK_EQ_INT(other, number);
  CHECK_COMES(running_in_group(number) == 1);
  sbx_process_signal_group(&started->process, SIGKILL);
  sbx_process_reap(&started->process);
  sbx_process_signal_group(&started->process, SIGKILL);
  sleep_us(20000);
  CHECK(is_running(other));
  kill(other, SIGKILL);
  CHECK_EQ_INT(waitpid(other, NULL, 0), other);
}

TEST(number_that_is_anothers_by_now_is_never_signalled) {
  if (in_valgrind()) SKIP("valgrind does not know this clone3");
  struct started started = start_shell("exit 0");
  wait_exit(&started);
  sbx_process_reap(&started.process);
  check_number_is_not_hit(&started);
  started.process.pid = 0;
  finish(&started);
}

static void die_without_a_status(void *flags) {
  struct sigaction action = {.sa_handler = flags != NULL ? SIG_DFL : SIG_IGN,
                             .sa_flags = flags != NULL ? SA_NOCLDWAIT : 0};
  int exit_code = -1;
  sigaction(SIGCHLD, &action, NULL);
  struct started started = start_shell("exit 5");
  CHECK(started.process.autoreap);
  wait_exit(&started);
  CHECK_COMES(status_of(&started.process, &exit_code) == -ECHILD);
  CHECK_EQ_INT(exit_code, -1);
  signal(SIGCHLD, SIG_DFL); /* so that the other process stays until it is waited for */
  if (!in_valgrind()) check_number_is_not_hit(&started);
  started.process.pid = 0;
  finish(&started);
}

static void stop_without_a_status(void *arg) {
  (void)arg;
  signal(SIGCHLD, SIG_IGN);
  struct started started = start_shell("sleep 100 & echo ready; wait");
  char text[16];
  int exit_code = -1;
  pid_t group = started.process.pid;
  read_line(&started, text, sizeof text);
  CHECK_EQ_INT(status_of(&started.process, &exit_code), -EAGAIN);
  sbx_process_signal_group(&started.process, SIGKILL);
  CHECK_COMES(running_in_group(group) == 0);
  sbx_process_reap(&started.process);
  finish(&started);
}

TEST(program_that_ignores_its_children) {
  check_in_child(die_without_a_status, NULL);
  check_in_child(die_without_a_status, "SA_NOCLDWAIT");
  if (!in_valgrind()) check_in_child(stop_without_a_status, NULL);
  struct started started = start_shell("exit 0");
  CHECK(!started.process.autoreap);
  finish(&started);
}

static void take_the_status(void *arg) {
  (void)arg;
  struct started started = start_shell("exit 5");
  int status, exit_code = -1;
  CHECK_EQ_INT(waitpid(-1, &status, 0), started.process.pid);
  CHECK_EQ_INT(status_of(&started.process, &exit_code), -ECHILD);
  CHECK_EQ_INT(exit_code, -1);
  sbx_process_reap(&started.process);
  finish(&started);
}

TEST(status_that_somebody_else_took) {
  check_in_child(take_the_status, NULL);
}

/* Nobody reaps the member that is left: this process is its init, and does not. */
static void keep_a_zombie(void *arg) {
  char text[16];
  (void)arg;
  CHECK_EQ_INT(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  struct started started = start_shell("sleep 100 & echo $!; exit 0");
  read_line(&started, text, sizeof text);
  pid_t member = (pid_t)atoi(text);
  wait_exit(&started);
  kill(member, SIGKILL);
  CHECK_COMES(process_state(member, NULL, NULL) == 'Z');
  sbx_process_reap(&started.process);
  CHECK_EQ_INT(kill(-started.process.pid, 0), 0); /* the kernel still knows the group */
  CHECK(!sbx_process_group_alive(&started.process));
  finish(&started);
  CHECK_EQ_INT(waitpid(member, NULL, 0), member);
}

TEST(zombie_counts_as_gone) {
  check_in_child(keep_a_zombie, NULL);
}

/* Names that look like the rest of the line in /proc. */
TEST(name_of_a_process_deceives_nobody) {
  static const char *const names[] = {"a) Z 1 1 (", ") Z 0 0", "Z", "x (y)"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char script[128], text[16];
    copy_file("/bin/sleep", names[i], 0);
    snprintf(script, sizeof script, "'./%s' 100 & echo $!", names[i]);
    struct started started = start_shell(script);
    read_line(&started, text, sizeof text);
    pid_t left = (pid_t)atoi(text);
    wait_exit(&started);
    sbx_process_reap(&started.process);
    CHECK_COMES(process_state(left, NULL, NULL) == 'S');
    CHECK(sbx_process_group_alive(&started.process));
    kill(left, SIGKILL);
    CHECK_COMES(!sbx_process_group_alive(&started.process));
    finish(&started);
  }
}

TEST(nothing_started_is_nothing_to_stop) {
  struct sbx_process none = SBX_PROCESS_NONE;
  sbx_process_signal_group(&none, SIGKILL); /* kill(0) would be ourselves */
  sbx_process_reap(&none);
  CHECK(!sbx_process_group_alive(&none));
  sbx_process_close(&none);
}

int main(void) {
  return run_all_in_place();
}
