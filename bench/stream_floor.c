/* SPDX-License-Identifier: MIT
 *
 * The floor of streamed output: one pipe, read in 64 KiB pieces, nothing done with them (SPEC N2).
 *
 *   bench_stream_floor PROGRAM [ARGUMENT...]
 *
 * Prints the bytes read and the seconds from before the start to after the end of the program.
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

static void fail(const char *what, int error) {
  fprintf(stderr, "bench_stream_floor: %s: %s\n", what, strerror(error));
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
  static char buffer[64 * 1024];
  static char *const environment[] = {NULL};
  if (argc < 2) {
    fputs("usage: bench_stream_floor PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
  }
  uint64_t start = now_ns();
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) fail("pipe2", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  pid_t pid;
  int error = posix_spawn(&pid, argv[1], &actions, NULL, argv + 1, environment);
  if (error != 0) fail(argv[1], error);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  uint64_t total = 0;
  ssize_t got;
  while ((got = read(out[0], buffer, sizeof buffer)) > 0)
    total += (uint64_t)got;
  close(out[0]);
  int status;
  waitpid(pid, &status, 0);
  printf("%llu %.9f\n", (unsigned long long)total, (double)(now_ns() - start) / 1e9);
  return 0;
}
