/* SPDX-License-Identifier: MIT
 *
 * The inside of an exec, shared by exec.c (what callers do) and exec_run.c (what the engine does).
 *
 * Two owners of its fields: those under "engine" are touched on the engine's thread only; those
 * under "lock" by anyone who holds it. References: the caller's one, one for queued work, one
 * from attach to release, one for each open loop handle, one for each op that is about it.
 */
#ifndef SBX_EXEC_PRIVATE_H
#define SBX_EXEC_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "engine.h"
#include "exec.h"
#include "feed.h"
#include "process.h"

/* One-shot output of one stream. */
struct sbx_gather {
  char *data; /* owned */
  size_t len, room;
};

/* An op of an exec other than its end op. */
struct sbx_exec_op {
  struct sbx_op op;
  struct sbx_exec *exec;    /* owned reference */
  struct sbx_exec_op *next; /* link in one of the exec's lists */
};

struct sbx_exec {
  atomic_uint refs;
  bool interactive, end_at_exit;
  uint64_t deadline_ns;
  struct sbx_op end; /* one-shot; its references are the exec's */

  /* engine */
  struct sbx_process process;
  struct sbx_live live;
  struct sbx_work attach, feed_work, kill_work, cancel_work;
  uv_poll_t out_poll[2], exit_poll, in_poll;
  bool out_open[2], exit_open, in_open; /* whether the handle above is open */
  int in_events;                        /* what in_poll waits for */
  uv_timer_t timer;                     /* the deadline; once stopping, the next look */
  bool timer_open;
  int out_fd[2];
  bool attached, stopping, released, discarding, status_lost;
  uint64_t stop_until_ns;
  unsigned stop_pause_ms;
  struct sbx_gather gathered[2];

  /* lock */
  pthread_mutex_t lock;
  int in_fd;
  struct sbx_feed feed;
  bool in_closing; /* close once the feed is empty */
  struct sbx_output output;
  bool eof[2];
  uint64_t received[2];
  bool exited;
  int exit_code;
  bool ended;
  enum sbx_exec_end how;
  struct sbx_fault fault;
  bool held;
  bool killed; /* a kill was asked for */
  bool gone;   /* what `released` is, for callers */
  bool exit_given;
  struct sbx_exec_op *readers, *killers; /* each with a reference */
};

/* The exec that a pointer to one of its members belongs to. */
#define SBX_EXEC_OF(pointer, member) \
  ((struct sbx_exec *)(void *)((char *)(pointer)-offsetof(struct sbx_exec, member)))

void sbx_exec_ref(struct sbx_exec *exec);
/* Posted by sbx_exec_start and the callers' functions; run on the engine's thread. */
void sbx_exec_run_attach(struct sbx_work *work);
void sbx_exec_run_feed(struct sbx_work *work);
void sbx_exec_run_kill(struct sbx_work *work);
void sbx_exec_run_cancel(struct sbx_work *work);
/* Completes every op of a list taken out under the lock. */
void sbx_exec_complete_all(struct sbx_exec_op *list, int result);

#endif
