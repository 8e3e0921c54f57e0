/* SPDX-License-Identifier: MIT
 *
 * Tests of guard.h: what is left of the commands when their program is gone, however it went. Each
 * program is this one run again as a scenario, for a guard outlives its test otherwise.
 */
/* proves: L6 */
#define _GNU_SOURCE
#include <sys/syscall.h>

#include "../guard.h"
#include "exec_try.h"

#define COMMANDS 8

static void tell(const char *format, long value) {
  char line[64];
  int len = snprintf(line, sizeof line, format, value);
  if (write(STDOUT_FILENO, line, (size_t)len) != len) exit(3);
}

/* Starts commands with processes of their own in their groups, waits until all run, and tells
 * their groups. */
static void start_commands(void) {
  for (int i = 0; i < COMMANDS; i++) {
    struct sbx_exec *exec =
        start_shell(i % 2 == 0 ? "sleep 100 & sleep 100 & echo $$; wait" : "sleep 100 & echo $$",
                    100, INTERACTIVE);
    char group[32] = "";
    struct sbx_item item = {.kind = SBX_ITEM_NOTHING_YET};
    while (item.kind != SBX_ITEM_CHUNK) {
      struct sbx_op *op;
      CHECK_EQ_INT(sbx_exec_readable(exec, &op), 0);
      sbx_op_wait(op);
      sbx_op_unref(op);
      sbx_exec_next(exec, &item);
    }
    memcpy(group, item.chunk->data, item.chunk->len < 31 ? item.chunk->len : 31);
    sbx_chunk_free(item.chunk);
    tell("%ld\n", atol(group));
  }
}

static void die_by_sigkill(void) {
  start_commands();
  kill(getpid(), SIGKILL);
}

static void die_by_abort(void) {
  start_commands();
  abort();
}

static void die_at_once(void) {
  start_commands();
  _exit(0);
}

static void die_by_exit(void) {
  start_commands();
  exit(0);
}

/* A fork without exec keeps every descriptor; the guard must not wait for it. */
static void die_with_a_forked_child_left(void) {
  start_commands();
  if (fork() == 0) {
    sleep_us(3000000);
    _exit(0);
  }
  kill(getpid(), SIGKILL);
}

/* Whoever kills the guard gets another one. */
static void die_after_the_guard(void) {
  struct sbx_exec *exec = start_shell("true", 10, ONE_SHOT);
  result_of(exec);
  sbx_exec_unref(exec);
  int first = sbx_guard_fd();
  syscall(SYS_pidfd_send_signal, first, SIGKILL, NULL, 0);
  sleep_us(300000);
  die_by_sigkill();
}

static const struct scenario scenarios[] = {{"sigkill", die_by_sigkill},
                                            {"abort", die_by_abort},
                                            {"_exit", die_at_once},
                                            {"exit", die_by_exit},
                                            {"forked", die_with_a_forked_child_left},
                                            {"guard-killed", die_after_the_guard}};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

TEST(no_process_of_a_group_outlives_its_program_by_a_second) {
  if (in_valgrind()) SKIP("valgrind makes a fork of the clone that a spawn is");
  for (size_t i = 0; i < SCENARIOS; i++) {
    char text[512] = "";
    run_scenario(scenarios[i].name, text, sizeof text);
    uint64_t until = now_ms() + (IS_SANITIZED ? 5000 : 1000);
    int groups = 0;
    for (char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
      pid_t group = (pid_t)atol(line);
      CHECK(group > 1);
      while (running_in_group(group) > 0 && now_ms() < until)
        sleep_us(5000);
      CHECK_EQ_INT(running_in_group(group), 0);
      groups++;
    }
    CHECK_EQ_INT(groups, COMMANDS);
  }
}

TEST(slots_are_used_again) {
  struct sbx_guard_slot *first, *second;
  CHECK_EQ_INT(sbx_guard_take(&first), 0);
  atomic_store(&first->pid, 1);
  sbx_guard_give(first);
  CHECK_EQ_INT(atomic_load(&first->pid), 0);
  CHECK_EQ_INT(sbx_guard_take(&second), 0);
  CHECK(first == second);
  sbx_guard_give(second);
  sbx_guard_give(NULL);
}

TEST(a_full_table_is_told) {
  static struct sbx_guard_slot *slots[40000];
  int taken = 0;
  while (taken < 40000 && sbx_guard_take(&slots[taken]) == 0)
    taken++;
  CHECK(taken > 1000 && taken < 40000);
  struct sbx_guard_slot *none = slots[0];
  CHECK_EQ_INT(sbx_guard_take(&none), -EAGAIN);
  CHECK(none == NULL);
  while (taken > 0)
    sbx_guard_give(slots[--taken]);
}

int main(int argc, char **argv) {
  /* No directory of its own: nobody could remove it. */
  CHECK_EQ_INT(sbx_files_root_open(&place.root, "/"), 0);
  /* Before the tests, whose descriptors are counted. */
  if (argc < 2) CHECK_EQ_INT(sbx_guard_start(), 0);
  return scenario_main(argc, argv, scenarios, SCENARIOS);
}
