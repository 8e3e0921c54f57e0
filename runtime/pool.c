/* SPDX-License-Identifier: MIT
 *
 * The worker threads (see pool.h). They block every signal, as the engine's thread does: handlers
 * belong to the program's own threads, and a file-size limit is an error code here.
 */
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "engine.h"

#define WORKERS 4

static struct {
  pthread_mutex_t lock;
  pthread_cond_t wanted;
  struct sbx_job *head, *tail;
  int workers;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER};

static void *worker_main(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&pool.lock);
    while (pool.head == NULL)
      pthread_cond_wait(&pool.wanted, &pool.lock);
    struct sbx_job *job = pool.head;
    pool.head = job->next;
    pthread_mutex_unlock(&pool.lock);
    job->run(job);
  }
  return NULL;
}

/* Under the lock. 0 if there is at least one worker. */
static int start_workers(void) {
  sigset_t all, before;
  int rc = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (rc == 0 && pool.workers < WORKERS) {
    pthread_t thread;
    rc = -pthread_create(&thread, NULL, worker_main, NULL);
    if (rc != 0) break;
    pthread_detach(thread);
    pool.workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return pool.workers > 0 ? 0 : rc;
}

int sbx_pool_submit(struct sbx_job *job) {
  if (!sbx_engine_usable()) return -EOWNERDEAD;
  pthread_mutex_lock(&pool.lock);
  int rc = pool.workers > 0 ? 0 : start_workers();
  if (rc == 0) {
    job->next = NULL;
    if (pool.head == NULL)
      pool.head = job;
    else
      pool.tail->next = job;
    pool.tail = job;
    pthread_cond_signal(&pool.wanted);
  }
  pthread_mutex_unlock(&pool.lock);
  return rc;
}
