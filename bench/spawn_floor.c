/* SPDX-License-Identifier: MIT
 *
 * The floor of a one-shot exec: posix_spawn, two pipes read to their ends, waitpid (SPEC N1, N5).
 *
 *   bench_spawn_floor COUNT [PROGRAM [ARGUMENT...]]     default: /bin/true
 *
 * Runs the program COUNT times, one after the other, and prints the microseconds that one run took.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char *const environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", NULL};

static void fail(const char *what, int error) {
  fprintf(stderr, "bench_spawn_floor: %s: %s\n", what, strerror(error));
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void read_to_end(int fd) {
  static char buffer[64 * 1024];
  ssize_t got;
  do {
    got = read(fd, buffer, sizeof buffer);
  } while (got > 0);
  close(fd);
}

static void run_once(char *const *argv) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) fail("pipe2", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  pid_t pid;
  int error = posix_spawn(&pid, argv[0], &actions, NULL, argv, environment);
  if (error != 0) fail(argv[0], error);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  read_to_end(out[0]);
  read_to_end(err[0]);
  int status;
  waitpid(pid, &status, 0);
}

int main(int argc, char **argv) {
  static char *const plain[] = {"/bin/true", NULL};
  long count = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
  if (count < 1) {
    fputs("usage: bench_spawn_floor COUNT [PROGRAM [ARGUMENT...]]\n", stderr);
    return 2;
  }
  char *const *command = argc > 2 ? argv + 2 : plain;
  run_once(command);
  uint64_t start = now_ns();
  for (long i = 0; i < count; i++)
    run_once(command);
  printf("%.3f\n", (double)(now_ns() - start) / 1000.0 / (double)count);
  return 0;
}
