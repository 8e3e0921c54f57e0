/* SPDX-License-Identifier: MIT
 *
 * Small things for tests with processes and threads: time, loops that grow smaller where everything
 * is slow, processes as /proc shows them, and scenarios: this program run again from its start, for
 * what a test must not do to its own process.
 */
#ifndef SBX_TESTS_PROCS_H
#define SBX_TESTS_PROCS_H

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

/* Valgrind is told of by the runner. It makes a fork of the clone that a spawn is, so what the
 * child says through shared memory is lost. */
static inline bool in_valgrind(void) {
  return getenv("SBX_VALGRIND") != NULL;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define IS_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define IS_SANITIZED true
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED false
#endif

#ifdef __SANITIZE_THREAD__
#define IS_TSAN true
#else
#define IS_TSAN false
#endif

static inline int scaled(int count, int least) {
  if (IS_SANITIZED) count /= 4;
  if (in_valgrind() || getenv("SBX_QUICK") != NULL) count /= 20;
  return count < least ? least : count;
}

static inline uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline void sleep_us(long us) {
  struct timespec left = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR)
    ;
}

/* Waits, ten seconds at most, until condition holds; a check that it came to. */
#define CHECK_COMES(condition)                     \
  do {                                             \
    uint64_t comes_until = now_ms() + 10000;       \
    while (!(condition) && now_ms() < comes_until) \
      sleep_us(1000);                              \
    CHECK(condition);                              \
  } while (0)

static inline uint32_t next_random(uint32_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 17;
  *seed ^= *seed << 5;
  return *seed;
}

/* Reads a small file; the text is terminated, "" if there is none. */
static inline void read_text(const char *path, char *text, size_t room) {
  size_t len = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got;
  while (fd >= 0 && len < room - 1 && (got = read(fd, text + len, room - 1 - len)) > 0)
    len += (size_t)got;
  if (fd >= 0) close(fd);
  text[len] = '\0';
}

/* 'R', 'S', 'Z' ...; 0 when there is no such process. */
static inline char process_state(pid_t pid, pid_t *group, pid_t *parent) {
  char path[64], text[512];
  int of, by;
  char state;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  read_text(path, text, sizeof text);
  const char *after = strrchr(text, ')');
  if (after == NULL || sscanf(after + 1, " %c %d %d", &state, &by, &of) != 3) return 0;
  if (group != NULL) *group = of;
  if (parent != NULL) *parent = by;
  return state;
}

/* The engine's guard is a child that stays: no test counts it. */
static inline bool is_guard(pid_t pid) {
  char path[64], name[32];
  snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
  read_text(path, name, sizeof name);
  return strcmp(name, "sbx-guard\n") == 0;
}

static inline bool is_running(pid_t pid) {
  char state = process_state(pid, NULL, NULL);
  return state != 0 && state != 'Z' && state != 'X';
}

/* How many processes wanted by the two conditions there are: running members of a group, or
 * children of this process in any state. */
static inline int count_processes(pid_t wanted_group, pid_t wanted_parent) {
  int count = 0;
  struct dirent *entry;
  DIR *proc = opendir("/proc");
  while (proc != NULL && (entry = readdir(proc)) != NULL) {
    pid_t group, parent;
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    char state = process_state((pid_t)atoi(entry->d_name), &group, &parent);
    if (state == 0) continue;
    if (wanted_group != 0 && group == wanted_group && state != 'Z' && state != 'X') count++;
    if (wanted_parent != 0 && parent == wanted_parent && !is_guard((pid_t)atoi(entry->d_name)))
      count++;
  }
  if (proc != NULL) closedir(proc);
  return count;
}

static inline int running_in_group(pid_t group) {
  return count_processes(group, 0);
}
static inline int count_children(void) {
  return count_processes(0, getpid());
}

/* Waits for a child, ten seconds at most (a hang ends in SIGKILL); its wait status. */
static inline int wait_for(pid_t pid) {
  int status = -1;
  uint64_t until = now_ms() + (in_valgrind() ? 60000 : 10000);
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (now_ms() > until) kill(pid, SIGKILL);
    sleep_us(1000);
  }
  return status;
}

struct scenario {
  const char *name;
  void (*run)(void); /* may return, or exit by itself */
};

static const char *scenario_program;

/* Runs this program again with a scenario's name and reads its standard output, as far as text has
 * room. The wait status; a check that failed in there is exit code 1. */
static inline int run_scenario(const char *name, char *text, size_t room) {
  int out[2];
  size_t len = 0;
  ssize_t got;
  CHECK_EQ_INT(pipe2(out, O_CLOEXEC), 0);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], 1);
    execl(scenario_program, scenario_program, name, (char *)NULL);
    _exit(99);
  }
  close(out[1]);
  while (len < room - 1 && (got = read(out[0], text + len, room - 1 - len)) > 0)
    len += (size_t)got;
  text[len] = '\0';
  close(out[0]);
  return wait_for(pid);
}

static inline int scenario_main(int argc, char **argv, const struct scenario *scenarios,
                                size_t count) {
  scenario_program = argv[0];
  if (argc < 2) return check_run_all();
  for (size_t i = 0; i < count; i++) {
    if (strcmp(argv[1], scenarios[i].name) != 0) continue;
    scenarios[i].run();
    return atomic_load(&check_failures) > 0 ? 1 : 0;
  }
  fprintf(stderr, "no scenario %s\n", argv[1]);
  return 2;
}

#endif
