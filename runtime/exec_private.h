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

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "engine.h"
#include "exec.h"
#include "feed.h"
#include "process.h"

/* A reader that keeps up is waited for when this much is unread, and let go on with that much. */
#define SBX_PAUSE_MEMORY (SBX_OUTPUT_MEMORY / 2)
#define SBX_RESUME_MEMORY (SBX_OUTPUT_MEMORY / 8)

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
  uint64_t deadline_ns, max_output;
  struct sbx_op end; /* one-shot; its references are the exec's */

  /* engine */
  struct sbx_process process;
  struct sbx_live live;
  struct sbx_work attach, feed_work, kill_work, cancel_work, resume_work;
  uv_poll_t out_poll[2], exit_poll, in_poll;
  bool out_open[2], exit_open, in_open; /* whether the handle above is open */
  int in_events;                        /* what in_poll waits for */
  uv_timer_t timer;                     /* the deadline; once stopping, the next look */
  bool timer_open;
  int out_fd[2];
  bool grown[2];          /* whether the pipe was made larger */
  uv_timer_t pause_timer; /* runs while reading is paused for a reader that keeps up */
  bool pause_open, paused;
  uint64_t taken_at_pause; /* chunks taken by readers when the last pause began */
  bool stopping, released, discarding, status_lost;
  bool settling; /* exited, with input that somebody else may still read */
  uint64_t settle_until_ns;
  uint64_t stop_until_ns;
  unsigned stop_pause_ms;
  struct sbx_gather gathered[2];

  /* lock */
  pthread_mutex_t lock;
  int in_fd;
  struct sbx_feed feed;
  bool in_closing; /* close once the feed is empty */
  struct sbx_output output;
  uint64_t taken;    /* chunks given to readers */
  bool wants_resume; /* paused: a reader that has taken enough posts resume_work */
  bool eof[2];
  uint64_t received[2];
  bool exited;
  struct sbx_process_exit exit;
  uint64_t start_ns, end_ns;
  enum sbx_exec_cause stopped_by; /* what a stop was for; EXITED: there was none before the exit */
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
void sbx_exec_run_resume(struct sbx_work *work);
void sbx_exec_run_cancel(struct sbx_work *work);

/* Between exec_run.c and exec_output.c, on the engine's thread. */
void sbx_exec_close_handle(bool *open, uv_handle_t *handle);
int sbx_exec_open_poll(struct sbx_exec *exec, uv_poll_t *poll, bool *open, int fd);
int sbx_exec_watch_output(struct sbx_exec *exec);
void sbx_exec_close_output(struct sbx_exec *exec, int stream);
/* Drains what a pipe can hold, so that all that was written before is in; notes its end. */
int sbx_exec_drain_pipe(struct sbx_exec *exec, int stream);
/* What a failed drain means: output that could not be kept, or that passed its limit. */
static inline enum sbx_exec_step sbx_exec_output_step(int error) {
  return error == -EFBIG ? SBX_STEP_LIMIT : SBX_STEP_OUTPUT;
}
void sbx_exec_maybe_end(struct sbx_exec *exec);
void sbx_exec_fail(struct sbx_exec *exec, enum sbx_exec_step step, int error);
/* Under the lock, on any thread, when nothing is unread: takes what a pipe that was seen full has
 * now. Waiting for the engine to hand over each piece costs more than the piece. End of file and
 * errors are left to the engine. */
void sbx_exec_read_directly(struct sbx_exec *exec, struct sbx_item *item);
/* Completes every op of a list taken out under the lock. */
void sbx_exec_complete_all(struct sbx_exec_op *list, int result);

#endif
