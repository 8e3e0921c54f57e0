/* SPDX-License-Identifier: MIT
 *
 * A command started with sbx_process_spawn alone, for the tests of that core: its stdout and stderr
 * are one pipe, its stdin is /dev/null, its directory is the one of the test.
 */
#ifndef SBX_TESTS_PROCESS_TRY_H
#define SBX_TESTS_PROCESS_TRY_H

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "../process.h"
#include "procs.h"
#include "scratch.h"

#define USUAL_PATH "PATH=/usr/local/bin:/usr/bin:/bin"

static struct scratch place;

struct started {
  int rc;
  struct sbx_process process;
  struct sbx_refusal refusal;
  int out; /* owned */
};

/* The exit code alone. */
static inline int status_of(const struct sbx_process *process, int *exit_code) {
  struct sbx_process_exit exit;
  int rc = sbx_process_status(process, &exit);
  if (rc == 0) *exit_code = exit.exit_code;
  return rc;
}

static inline struct started start_with(char *const *argv, char *const *envp) {
  struct started started = {.process = SBX_PROCESS_NONE};
  int pipe_fd[2], null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int cwd_fd = openat(place.fd, "ws", O_PATH | O_DIRECTORY | O_CLOEXEC);
  CHECK_EQ_INT(pipe2(pipe_fd, O_CLOEXEC), 0);
  struct sbx_spawn spawn = {
      .argv = argv, .envp = envp, .cwd_fd = cwd_fd, .stdio = {null_fd, pipe_fd[1], pipe_fd[1]}};
  started.rc = sbx_process_spawn(&spawn, &started.process, &started.refusal);
  close(pipe_fd[1]);
  close(null_fd);
  close(cwd_fd);
  started.out = pipe_fd[0];
  return started;
}

static inline struct started start_shell(const char *script) {
  char *argv[] = {"sh", "-c", (char *)(uintptr_t)script, NULL};
  char *envp[] = {USUAL_PATH, NULL};
  struct started started = start_with(argv, envp);
  CHECK_EQ_INT(started.rc, 0);
  CHECK_EQ_INT(started.refusal.exit_code, 0);
  CHECK(started.process.pid > 0 && started.process.pidfd >= 0);
  return started;
}

/* Reads a line, without its end. */
static inline void read_line(const struct started *started, char *text, size_t room) {
  size_t len = 0;
  while (len < room - 1 && read(started->out, text + len, 1) == 1 && text[len] != '\n')
    len++;
  text[len] = '\0';
}

static inline void read_rest(const struct started *started, char *text, size_t room) {
  size_t len = 0;
  ssize_t got;
  while (len < room - 1 && (got = read(started->out, text + len, room - 1 - len)) > 0)
    len += (size_t)got;
  text[len] = '\0';
}

static inline void wait_exit(const struct started *started) {
  struct pollfd look = {.fd = started->process.pidfd, .events = POLLIN};
  int ready;
  do {
    ready = poll(&look, 1, 20000);
  } while (ready < 0 && errno == EINTR);
  CHECK_EQ_INT(ready, 1);
}

static inline int exit_code_of(const struct started *started) {
  int exit_code = -1;
  wait_exit(started);
  CHECK_EQ_INT(status_of(&started->process, &exit_code), 0);
  return exit_code;
}

/* Ends it whatever it does, and gives everything back. */
static inline void finish(struct started *started) {
  if (started->process.pid > 0) {
    sbx_process_signal_group(&started->process, SIGKILL);
    if (!started->process.reaped) wait_exit(started);
    sbx_process_reap(&started->process);
  }
  sbx_process_close(&started->process);
  sbx_process_close(&started->process);
  CHECK_EQ_INT(started->process.pidfd, -1);
  close(started->out);
}

/* The exit code of a script; its output is in text. */
static inline int run_shell(const char *script, char *text, size_t room) {
  struct started started = start_shell(script);
  read_rest(&started, text, room);
  int exit_code = exit_code_of(&started);
  finish(&started);
  return exit_code;
}

static inline void write_file(const char *name, const char *text, mode_t mode) {
  char path[300];
  snprintf(path, sizeof path, "ws/%.250s", name);
  int fd = openat(place.fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  CHECK(fd >= 0);
  CHECK_EQ_INT(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  CHECK_EQ_INT(fchmod(fd, mode), 0);
  close(fd);
}

static inline void copy_file(const char *from, const char *name, off_t limit) {
  static char bytes[4 * 1024 * 1024];
  char path[300];
  int in = open(from, O_RDONLY | O_CLOEXEC);
  ssize_t len = read(in, bytes, limit > 0 ? (size_t)limit : sizeof bytes);
  CHECK(len > 0);
  close(in);
  snprintf(path, sizeof path, "ws/%.250s", name);
  int out = openat(place.fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
  CHECK_EQ_INT(write(out, bytes, (size_t)len), len);
  close(out);
}

/* Makes the place, runs the tests, removes it. */
static inline int run_all_in_place(void) {
  alarm(in_valgrind() ? 900 : 300); /* a hang ends the program */
  scratch_make(&place);
  int rc = check_run_all();
  scratch_drop(&place);
  return atomic_load(&check_failures) > 0 ? 1 : rc;
}

#endif
