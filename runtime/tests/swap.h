/* SPDX-License-Identifier: MIT
 *
 * A race that must never be won: a thread exchanges the directory "d" of a root with a link to
 * outside ("l") as fast as it can, and puts a link at "e" where a directory may have been made.
 * "d/secret" and "abs/secret" are a decoy, never the secret.
 */
#ifndef SBX_TESTS_SWAP_H
#define SBX_TESTS_SWAP_H

#include <pthread.h>
#include <time.h>

#include "scratch.h"

struct swap_count {
  int wins;
  int refusals;
};

struct swap_race {
  const struct scratch *s;
  atomic_bool stop;
};

/* Notes what a call on a path through "d" or "e" has answered. */
static inline void swap_counts(struct swap_count *count, int rc) {
  count->wins += rc == 0;
  count->refusals += rc == -EXDEV;
  CHECK(rc == 0 || rc == -EXDEV || rc == -ENOENT || rc == -ENOTDIR || rc == -EAGAIN);
}

static inline void *swap_directories(void *arg) {
  struct swap_race *race = arg;
  int fd = race->s->fd;
  char gone[32];
  for (unsigned i = 0; !atomic_load(&race->stop); i++) {
    renameat2(fd, "ws/d", fd, "ws/l", RENAME_EXCHANGE);
    snprintf(gone, sizeof gone, "ws/gone%u", i);
    renameat(fd, "ws/e", fd, gone);
    symlinkat(race->s->path, fd, "ws/e");
    unlinkat(fd, "ws/e", 0);
    if (i % 16 == 0) usleep(1); /* valgrind runs one thread at a time, and not fairly */
  }
  return NULL;
}

static inline double swap_now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* scratch_drop sees whether anything came or went outside. */
static inline void run_swap_race(void (*round)(const struct scratch *, struct swap_count *),
                                 double seconds) {
  struct scratch s;
  pthread_t thread;
  struct swap_count count = {0};
  scratch_make(&s);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/d", 0755), 0);
  CHECK_EQ_INT(put_text(&s, "d/secret", "a decoy"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/l"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "ws/d"), s.fd, "ws/abs"), 0);
  struct swap_race race = {.s = &s};
  CHECK_EQ_INT(pthread_create(&thread, NULL, swap_directories, &race), 0);
  for (double end = swap_now() + seconds; swap_now() < end;) {
    round(&s, &count);
  }
  atomic_store(&race.stop, true);
  pthread_join(thread, NULL);
  CHECK(count.wins > 0);
  CHECK(count.refusals > 0);
  scratch_drop(&s);
}

#endif
