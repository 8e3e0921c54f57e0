/* SPDX-License-Identifier: MIT
 *
 * An exec's output on its way in: from the command's pipes to a one-shot's memory or to the stream
 * of an interactive exec (SPEC X7, X10, X12).
 *
 * The engine's thread reads as output comes. Two things make a flood cheap without ever making the
 * command wait for a slow reader: a pipe that was seen full is made larger and from then on read by
 * the reader's own thread too, and a reader that keeps up is waited for a moment before what it has
 * not read goes to a file. Every read of a pipe and what becomes of it are one step under the lock,
 * so order is kept whoever reads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec_private.h"

/* How much one readiness event may read before other execs have their turn. */
#define DRAIN_SLICE ((size_t)256 * 1024)
#define PIPE_BYTES (1024 * 1024)
#define PAUSE_MS 10

void sbx_exec_close_output(struct sbx_exec *exec, int stream) {
  sbx_exec_close_handle(&exec->out_open[stream], (uv_handle_t *)&exec->out_poll[stream]);
  pthread_mutex_lock(&exec->lock);
  if (exec->out_fd[stream] >= 0) close(exec->out_fd[stream]);
  exec->out_fd[stream] = -1;
  pthread_mutex_unlock(&exec->lock);
}

/* Room to read into: a one-shot's large output goes straight into its place. */
static char *read_room(struct sbx_exec *exec, int stream, size_t *room) {
  struct sbx_gather *gather = &exec->gathered[stream];
  *room = SBX_ENGINE_SCRATCH;
  if (exec->interactive || exec->discarding || gather->len < SBX_ENGINE_SCRATCH)
    return sbx_engine_scratch();
  if (gather->room - gather->len < SBX_ENGINE_SCRATCH) {
    char *grown = realloc(gather->data, gather->room * 2);
    if (grown == NULL) return NULL;
    gather->data = grown;
    gather->room *= 2;
  }
  *room = gather->room - gather->len;
  return gather->data + gather->len;
}

static int gather_put(struct sbx_gather *gather, const char *data, size_t len) {
  if (gather->data == NULL || data != gather->data + gather->len) {
    if (gather->room - gather->len < len) {
      size_t room = gather->room * 2 > gather->len + len ? gather->room * 2 : gather->len + len;
      char *grown = realloc(gather->data, room);
      if (grown == NULL) return -ENOMEM;
      gather->data = grown;
      gather->room = room;
    }
    memcpy(gather->data + gather->len, data, len);
  }
  gather->len += len;
  return 0;
}

static int keep_stream(struct sbx_exec *exec, int stream, const char *data, size_t len) {
  if (len <= SBX_CHUNK_MAX / 2)
    return sbx_output_put(&exec->output, (enum sbx_stream)stream, data, len);
  struct sbx_chunk *whole = sbx_engine_take_scratch();
  whole->len = len;
  return sbx_output_give(&exec->output, (enum sbx_stream)stream, whole);
}

/* How much of what came may be kept; less than all of it ends the exec with -EFBIG. */
static size_t within_limit(const struct sbx_exec *exec, size_t got) {
  uint64_t left = exec->max_output - exec->received[0] - exec->received[1];
  return got <= left ? got : (size_t)left;
}

/* Reads once and keeps what came, in one step: readers read too (see sbx_exec_next). Returns as
 * read, or -errno. */
static ssize_t read_once(struct sbx_exec *exec, int stream, char *to, size_t room) {
  pthread_mutex_lock(&exec->lock);
  ssize_t got = read(exec->out_fd[stream], to, room);
  int rc = got < 0 ? -errno : 0;
  size_t keep = got > 0 && !exec->discarding ? within_limit(exec, (size_t)got) : 0;
  if (keep > 0)
    rc = exec->interactive ? keep_stream(exec, stream, to, keep)
                           : gather_put(&exec->gathered[stream], to, keep);
  exec->received[stream] += keep;
  if (rc == 0 && got > 0 && !exec->discarding && keep < (size_t)got) rc = -EFBIG;
  pthread_mutex_unlock(&exec->lock);
  return rc != 0 ? rc : got;
}

static void tell_readers(struct sbx_exec *exec) {
  if (!exec->interactive) return;
  struct sbx_exec_op *readers = NULL;
  pthread_mutex_lock(&exec->lock);
  if (!sbx_output_is_empty(&exec->output) && (exec->how != SBX_END_TIMEOUT || exec->killed)) {
    readers = exec->readers;
    exec->readers = NULL;
  }
  pthread_mutex_unlock(&exec->lock);
  sbx_exec_complete_all(readers, 0);
}

/* A command that fills its pipe has much to say: a larger one lets it go on while this thread and
 * the reader are busy. The system may refuse (a limit per user); then it stays as it is. */
static void grow_pipe(struct sbx_exec *exec, int stream) {
  pthread_mutex_lock(&exec->lock);
  exec->grown[stream] = true;
  pthread_mutex_unlock(&exec->lock);
  fcntl(exec->out_fd[stream], F_SETPIPE_SZ, PIPE_BYTES);
}

/* Reads up to limit bytes and says how many in *taken. 0: end of file; -EAGAIN: no more for now, or
 * the limit; -errno. */
static int drain(struct sbx_exec *exec, int stream, size_t limit, size_t *taken) {
  *taken = 0;
  while (*taken < limit) {
    size_t room;
    char *to = read_room(exec, stream, &room);
    if (to == NULL) return -ENOMEM;
    ssize_t got = read_once(exec, stream, to, room);
    if (got == -EINTR) continue;
    if (got <= 0) return (int)got;
    *taken += (size_t)got;
    if (*taken == SBX_CHUNK_MAX && !exec->grown[stream]) grow_pipe(exec, stream);
    /* A short read has emptied the pipe: asking again would only be told so. */
    if ((size_t)got < room && (size_t)got < SBX_ENGINE_SCRATCH) return -EAGAIN;
  }
  return -EAGAIN;
}

static void set_eof(struct sbx_exec *exec, int stream) {
  sbx_exec_close_output(exec, stream);
  pthread_mutex_lock(&exec->lock);
  exec->eof[stream] = true;
  pthread_mutex_unlock(&exec->lock);
}

int sbx_exec_drain_pipe(struct sbx_exec *exec, int stream) {
  if (exec->out_fd[stream] < 0) return 0;
  int capacity = fcntl(exec->out_fd[stream], F_GETPIPE_SZ);
  size_t left = capacity > 0 ? (size_t)capacity : DRAIN_SLICE;
  size_t taken;
  int rc;
  do {
    rc = left > 0 ? drain(exec, stream, left, &taken) : -EAGAIN;
    if (left == 0 || taken == 0) break;
    left -= taken < left ? taken : left;
  } while (rc == -EAGAIN);
  if (rc == 0) set_eof(exec, stream);
  return rc == -EAGAIN ? 0 : rc;
}

static void on_out(uv_poll_t *poll, int status, int events);

static void watch_out(struct sbx_exec *exec) {
  for (int i = 0; i < 2; i++)
    if (exec->out_open[i]) uv_poll_start(&exec->out_poll[i], UV_READABLE, on_out);
}

static void resume(struct sbx_exec *exec) {
  if (!exec->paused) return;
  exec->paused = false;
  pthread_mutex_lock(&exec->lock);
  exec->wants_resume = false;
  pthread_mutex_unlock(&exec->lock);
  if (exec->pause_open) uv_timer_stop(&exec->pause_timer);
  watch_out(exec);
}

static void on_pause_over(uv_timer_t *timer) {
  resume(timer->data);
}

void sbx_exec_run_resume(struct sbx_work *work) {
  struct sbx_exec *exec = SBX_EXEC_OF(work, resume_work);
  resume(exec);
  sbx_exec_unref(exec);
}

/* Much is unread, and the reader has taken something since it was last waited for: it gets a
 * moment, for a file would cost both more. A reader that lets the moment pass is not waited for
 * again until it takes something, so nobody can hold up the command (SPEC X12). */
static bool pause_for_reader(struct sbx_exec *exec) {
  if (!exec->interactive || exec->discarding || exec->stopping) return false;
  pthread_mutex_lock(&exec->lock);
  const struct sbx_output *output = &exec->output;
  bool pause = output->in_memory >= SBX_PAUSE_MEMORY && output->spill_read == output->spill_write &&
               exec->taken != exec->taken_at_pause;
  if (pause) {
    exec->wants_resume = true;
    exec->taken_at_pause = exec->taken;
  }
  pthread_mutex_unlock(&exec->lock);
  if (!pause) return false;
  if (!exec->pause_open) {
    uv_timer_init(sbx_engine_loop(), &exec->pause_timer);
    exec->pause_timer.data = exec;
    exec->pause_open = true;
    sbx_exec_ref(exec);
  }
  exec->paused = true;
  for (int i = 0; i < 2; i++)
    if (exec->out_open[i]) uv_poll_stop(&exec->out_poll[i]);
  uv_timer_start(&exec->pause_timer, on_pause_over, PAUSE_MS, 0);
  return true;
}

static void on_out(uv_poll_t *poll, int status, int events) {
  struct sbx_exec *exec = poll->data;
  int stream = poll == &exec->out_poll[SBX_STDOUT] ? SBX_STDOUT : SBX_STDERR;
  (void)events;
  (void)status; /* a poll error shows in the read */
  if (pause_for_reader(exec)) return;
  size_t taken;
  int rc = drain(exec, stream, DRAIN_SLICE, &taken);
  tell_readers(exec);
  if (rc == -EAGAIN) return;
  set_eof(exec, stream);
  if (rc == 0)
    sbx_exec_maybe_end(exec);
  else
    sbx_exec_fail(exec, sbx_exec_output_step(rc), rc);
}

int sbx_exec_watch_output(struct sbx_exec *exec) {
  int rc = 0;
  for (int i = 0; i < 2 && rc == 0; i++) {
    rc = sbx_exec_open_poll(exec, &exec->out_poll[i], &exec->out_open[i], exec->out_fd[i]);
    if (rc == 0) rc = uv_poll_start(&exec->out_poll[i], UV_READABLE, on_out);
  }
  return rc;
}

void sbx_exec_read_directly(struct sbx_exec *exec, struct sbx_item *item) {
  for (int i = 0; i < 2; i++) {
    if (exec->out_fd[i] < 0 || !exec->grown[i] || exec->max_output != UINT64_MAX) continue;
    struct sbx_chunk *chunk = sbx_chunk_new();
    if (chunk == NULL) return;
    ssize_t got = read(exec->out_fd[i], chunk->data, SBX_CHUNK_MAX);
    if (got <= 0) {
      sbx_chunk_free(chunk);
      continue;
    }
    chunk->len = (size_t)got;
    chunk->stream = (enum sbx_stream)i;
    exec->received[i] += (uint64_t)got;
    exec->taken++;
    item->kind = SBX_ITEM_CHUNK;
    item->chunk = chunk;
    return;
  }
}
