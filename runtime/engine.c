/* SPDX-License-Identifier: MIT
 *
 * The engine's thread, its queue of posted work and its end (see engine.h).
 *
 * The thread blocks every signal: handlers belong to the program's own threads, and a broken pipe
 * is an error code here. Posted work is run in slices of a few milliseconds, so that a burst of
 * starts cannot hold up a deadline. The end runs as a destructor of the library: it is there for
 * exit() from anywhere, and the library is linked so that it is never unloaded before.
 */
#include "engine.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "output.h"

/* Something that kills every guard at once would keep this thread busy. */
#define GUARD_RESTARTS_MAX 100
#define SLICE_NS (2ull * 1000 * 1000)

static struct {
  pthread_mutex_t lock;
  atomic_bool started;
  atomic_bool forked;
  atomic_bool ended;
  pthread_t thread;
  uv_loop_t loop;
  uv_async_t wake;
  uv_poll_t guard_poll;
  int guard_restarts;
  struct sbx_work *head, *tail; /* under lock */
  struct sbx_live *live;        /* engine's thread */
  struct sbx_chunk *scratch;
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t sbx_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct sbx_work *next_work(void) {
  pthread_mutex_lock(&engine.lock);
  struct sbx_work *work = engine.head;
  if (work != NULL) {
    engine.head = work->next;
    work->next = NULL;
    work->queued = false;
  }
  pthread_mutex_unlock(&engine.lock);
  return work;
}

static void on_wake(uv_async_t *wake) {
  uint64_t until = 0;
  struct sbx_work *work;
  while ((work = next_work()) != NULL) {
    work->run(work);
    uint64_t now = sbx_now_ns();
    if (until == 0) until = now + SLICE_NS;
    if (now >= until) {
      uv_async_send(wake);
      return;
    }
  }
}

static void watch_guard(void);

static void on_guard_closed(uv_handle_t *handle) {
  (void)handle;
  if (sbx_guard_restart() == 0) watch_guard();
}

/* Somebody has killed the guard: without one the next death of the program would leave commands. */
static void on_guard_dead(uv_poll_t *poll, int status, int events) {
  (void)status;
  (void)events;
  if (engine.guard_restarts++ < GUARD_RESTARTS_MAX)
    uv_close((uv_handle_t *)poll, on_guard_closed);
  else
    uv_poll_stop(poll);
}

static void watch_guard(void) {
  if (uv_poll_init(&engine.loop, &engine.guard_poll, sbx_guard_fd()) == 0)
    uv_poll_start(&engine.guard_poll, UV_READABLE, on_guard_dead);
}

static void *engine_main(void *unused) {
  (void)unused;
  watch_guard();
  uv_run(&engine.loop, UV_RUN_DEFAULT);
  return NULL;
}

static void after_fork_in_child(void) {
  atomic_store(&engine.forked, true);
}

/* From the load on, not from the start: a child of a program that has loaded us shares luv's loop
 * and our identity with it, engine or not. */
__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, after_fork_in_child);
}

static int start_thread(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = -pthread_create(&engine.thread, NULL, engine_main, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return rc;
}

/* libuv aborts the program, or leaks, when its first loop cannot have all of its descriptors, which
 * are an epoll, two pipes and an eventfd. */
static int check_descriptors(void) {
  int fd[7], count = 0, rc = 0;
  while (rc == 0 && count < 7) {
    fd[count] = eventfd(0, EFD_CLOEXEC);
    if (fd[count] < 0)
      rc = -errno;
    else
      count++;
  }
  while (count > 0)
    close(fd[--count]);
  return rc;
}

static void undo_loop(void) {
  uv_close((uv_handle_t *)&engine.wake, NULL);
  uv_run(&engine.loop, UV_RUN_DEFAULT);
  uv_loop_close(&engine.loop);
}

static int start_loop(void) {
  int rc = uv_loop_init(&engine.loop);
  if (rc != 0) return rc;
  rc = uv_async_init(&engine.loop, &engine.wake, on_wake);
  if (rc != 0) uv_loop_close(&engine.loop);
  return rc;
}

static int start_locked(void) {
  int rc = check_descriptors();
  if (rc != 0) return rc;
  if (engine.scratch == NULL) engine.scratch = sbx_chunk_new();
  if (engine.scratch == NULL) return -ENOMEM;
  rc = start_loop();
  if (rc != 0) return rc;
  rc = sbx_guard_start();
  if (rc == 0) {
    rc = start_thread();
    if (rc != 0) sbx_guard_stop();
  }
  if (rc != 0) {
    undo_loop();
    return rc;
  }
  atomic_store(&engine.started, true);
  return 0;
}

bool sbx_engine_usable(void) {
  return !atomic_load_explicit(&engine.forked, memory_order_relaxed);
}

int sbx_engine_start(void) {
  if (!sbx_engine_usable()) return -EOWNERDEAD;
  if (atomic_load(&engine.started)) return atomic_load(&engine.ended) ? -ECANCELED : 0;
  pthread_mutex_lock(&engine.lock);
  int rc = atomic_load(&engine.started) ? 0 : start_locked();
  pthread_mutex_unlock(&engine.lock);
  return rc;
}

int sbx_engine_post(struct sbx_work *work) {
  int rc = sbx_engine_start();
  if (rc != 0) return rc;
  pthread_mutex_lock(&engine.lock);
  bool was_queued = work->queued;
  bool was_empty = engine.head == NULL;
  if (!was_queued) {
    work->queued = true;
    work->next = NULL;
    if (was_empty)
      engine.head = work;
    else
      engine.tail->next = work;
    engine.tail = work;
  }
  pthread_mutex_unlock(&engine.lock);
  if (was_empty && !was_queued) uv_async_send(&engine.wake);
  return was_queued ? 0 : 1;
}

uv_loop_t *sbx_engine_loop(void) {
  return &engine.loop;
}

char *sbx_engine_scratch(void) {
  if (engine.scratch == NULL) engine.scratch = sbx_chunk_new();
  return engine.scratch != NULL ? engine.scratch->data : NULL;
}

struct sbx_chunk *sbx_engine_take_scratch(void) {
  struct sbx_chunk *scratch = engine.scratch;
  engine.scratch = NULL;
  return scratch;
}

void sbx_engine_add_live(struct sbx_live *live) {
  live->prev = NULL;
  live->next = engine.live;
  if (engine.live != NULL) engine.live->prev = live;
  engine.live = live;
}

void sbx_engine_remove_live(struct sbx_live *live) {
  if (live->prev != NULL)
    live->prev->next = live->next;
  else
    engine.live = live->next;
  if (live->next != NULL) live->next->prev = live->prev;
  live->prev = live->next = NULL;
}

static void stop_all(struct sbx_work *work) {
  (void)work;
  for (struct sbx_live *live = engine.live; live != NULL; live = live->next)
    live->stop(live);
  uv_stop(&engine.loop);
}

/* Process exit, after atexit handlers: what still runs is stopped, and the thread is gone before
 * the process's memory is. Handles are left to the system. */
__attribute__((destructor)) static void end_engine(void) {
  static struct sbx_work end = {.run = stop_all};
  if (!atomic_load(&engine.started) || !sbx_engine_usable()) return;
  if (sbx_engine_post(&end) < 0) return;
  atomic_store(&engine.ended, true);
  pthread_join(engine.thread, NULL);
  sbx_guard_end();
}
