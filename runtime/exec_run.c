/* SPDX-License-Identifier: MIT
 *
 * What the engine does with an exec: drain, feed, notice the exit, keep the deadline, stop, end.
 *
 * An exec runs, may be stopped (its group killed, for a kill, the deadline, a cancelled call or a
 * fault), ends (nothing more will come), and is released (group gone, leader reaped). A one-shot is
 * released when it ends; an interactive one keeps its unreaped leader, hence its group's id, until
 * a stop. Every event leads to one of four functions: begin_stop, look_at_group, end_exec, release.
 * Everything here runs on the engine's thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec_private.h"

#define STOP_LIMIT_NS (5ull * 1000 * 1000 * 1000)
#define STOP_PAUSE_MAX_MS 50u
#define SETTLE_NS (100ull * 1000 * 1000)

static void begin_stop(struct sbx_exec *exec, enum sbx_exec_end how);
static bool look_at_exit(struct sbx_exec *exec);
static void set_timer(struct sbx_exec *exec, uint64_t at_ns);
static void on_in(uv_poll_t *poll, int status, int events);
static void settled(struct sbx_exec *exec);

/* Loop handles. Each open one holds a reference, given back when libuv has let go of it. */

static void on_closed(uv_handle_t *handle) {
  sbx_exec_unref(handle->data);
}

void sbx_exec_close_handle(bool *open, uv_handle_t *handle) {
  if (!*open) return;
  *open = false;
  uv_close(handle, on_closed);
}

int sbx_exec_open_poll(struct sbx_exec *exec, uv_poll_t *poll, bool *open, int fd) {
  int rc = uv_poll_init(sbx_engine_loop(), poll, fd);
  if (rc != 0) return rc;
  poll->data = exec;
  *open = true;
  sbx_exec_ref(exec);
  return 0;
}

static void close_in(struct sbx_exec *exec, int error) {
  sbx_exec_close_handle(&exec->in_open, (uv_handle_t *)&exec->in_poll);
  pthread_mutex_lock(&exec->lock);
  sbx_feed_drop(&exec->feed, error);
  if (exec->in_fd >= 0) close(exec->in_fd);
  exec->in_fd = -1;
  pthread_mutex_unlock(&exec->lock);
}

static void set_fault(struct sbx_exec *exec, enum sbx_exec_step step, int error) {
  pthread_mutex_lock(&exec->lock);
  if (exec->fault.step == SBX_STEP_NONE) exec->fault = (struct sbx_fault){step, error};
  pthread_mutex_unlock(&exec->lock);
}

void sbx_exec_fail(struct sbx_exec *exec, enum sbx_exec_step step, int error) {
  set_fault(exec, step, error);
  begin_stop(exec, SBX_END_FAULT);
}

/* Stdin. */

static void watch_in(struct sbx_exec *exec, int events) {
  if (!exec->in_open || exec->in_events == events) return;
  exec->in_events = events;
  uv_poll_start(&exec->in_poll, events, on_in);
}

/* Writes what the pipe takes. A reader that has closed is no fault: what it did not read is
 * dropped (SPEC X6). */
static void pump_in(struct sbx_exec *exec) {
  pthread_mutex_lock(&exec->lock);
  int rc = exec->in_fd < 0 ? -EPIPE : sbx_feed_write(&exec->feed, exec->in_fd);
  bool closing = exec->in_closing;
  bool faulty = exec->fault.step != SBX_STEP_NONE;
  pthread_mutex_unlock(&exec->lock);
  if (rc == -EAGAIN) {
    watch_in(exec, UV_WRITABLE | UV_DISCONNECT);
  } else if (exec->settling) {
    settled(exec);
  } else if (rc == 0 && !closing) {
    watch_in(exec, UV_DISCONNECT);
  } else {
    close_in(exec, -EPIPE);
    if (rc != 0 && rc != -EPIPE)
      sbx_exec_fail(exec, SBX_STEP_STDIN, rc);
    else if (faulty)
      begin_stop(exec, SBX_END_FAULT);
  }
}

static void on_in(uv_poll_t *poll, int status, int events) {
  struct sbx_exec *exec = poll->data;
  (void)events;
  if (status == 0)
    pump_in(exec);
  else if (exec->settling)
    settled(exec);
  else
    close_in(exec, -EPIPE);
}

void sbx_exec_run_feed(struct sbx_work *work) {
  struct sbx_exec *exec = SBX_EXEC_OF(work, feed_work);
  if (!exec->stopping && !exec->released && exec->in_fd >= 0) pump_in(exec);
  sbx_exec_unref(exec);
}

/* The end. */

/* Gives back all that belongs to the process. The timer goes too, so nothing can come after. */
static void release(struct sbx_exec *exec, int result) {
  exec->released = true;
  close_in(exec, -EPIPE);
  sbx_exec_close_handle(&exec->timer_open, (uv_handle_t *)&exec->timer);
  sbx_exec_close_handle(&exec->pause_open, (uv_handle_t *)&exec->pause_timer);
  /* A process that would not die keeps its watch, so that it is reaped if it ever does. */
  if (exec->process.reaped) {
    sbx_exec_close_handle(&exec->exit_open, (uv_handle_t *)&exec->exit_poll);
    sbx_process_close(&exec->process);
  }
  pthread_mutex_lock(&exec->lock);
  exec->gone = true;
  struct sbx_exec_op *killers = exec->killers;
  exec->killers = NULL;
  pthread_mutex_unlock(&exec->lock);
  sbx_exec_complete_all(killers, result);
  sbx_engine_remove_live(&exec->live);
  sbx_exec_unref(exec);
}

/* Nothing more will come: tells the readers, or the caller of a one-shot. */
static void end_exec(struct sbx_exec *exec, enum sbx_exec_end how) {
  if (!exec->discarding) {
    sbx_exec_close_output(exec, SBX_STDOUT);
    sbx_exec_close_output(exec, SBX_STDERR);
  }
  pthread_mutex_lock(&exec->lock);
  exec->how = exec->fault.step != SBX_STEP_NONE && how == SBX_END_EXIT ? SBX_END_FAULT : how;
  exec->ended = true;
  exec->end_ns = sbx_now_ns();
  struct sbx_exec_op *readers = exec->readers;
  exec->readers = NULL;
  pthread_mutex_unlock(&exec->lock);
  sbx_exec_complete_all(readers, 0);
}

/* Ended by itself: the exit, and the end of its output unless only the exit counts (SPEC X18). */
void sbx_exec_maybe_end(struct sbx_exec *exec) {
  if (exec->stopping || exec->ended || !exec->exited || exec->settling) return;
  /* Without a status the call has failed, and a failed call stops its group (SPEC X9). */
  if (!exec->interactive && exec->status_lost) {
    begin_stop(exec, SBX_END_FAULT);
    return;
  }
  if (exec->end_at_exit) {
    int rc = sbx_exec_drain_pipe(exec, SBX_STDOUT);
    if (rc == 0) rc = sbx_exec_drain_pipe(exec, SBX_STDERR);
    if (rc != 0) {
      sbx_exec_fail(exec, sbx_exec_output_step(rc), rc);
      return;
    }
    /* What it left running may go on writing: the pipes stay open, or it would die of SIGPIPE. */
    exec->discarding = true;
  } else if (!exec->eof[SBX_STDOUT] || !exec->eof[SBX_STDERR]) {
    return;
  }
  uv_timer_stop(&exec->timer);
  end_exec(exec, SBX_END_EXIT);
  if (exec->interactive) return;
  sbx_process_reap(&exec->process);
  sbx_exec_ref(exec);
  release(exec, 0);
  sbx_op_complete(&exec->end, 0);
  sbx_exec_unref(exec);
}

/* The stop is over: the group is gone (0) or would not go. */
static void end_stop(struct sbx_exec *exec, int result) {
  sbx_exec_ref(exec);
  if (!exec->ended) {
    int rc = sbx_exec_drain_pipe(exec, SBX_STDOUT);
    if (rc == 0) rc = sbx_exec_drain_pipe(exec, SBX_STDERR);
    if (rc != 0) set_fault(exec, sbx_exec_output_step(rc), rc);
    if (result != 0) set_fault(exec, SBX_STEP_STOP, result);
    pthread_mutex_lock(&exec->lock);
    exec->held = !exec->eof[SBX_STDOUT] || !exec->eof[SBX_STDERR];
    pthread_mutex_unlock(&exec->lock);
    end_exec(exec, result != 0 ? SBX_END_FAULT : exec->how);
  } else {
    exec->discarding = true;
    sbx_exec_close_output(exec, SBX_STDOUT);
    sbx_exec_close_output(exec, SBX_STDERR);
  }
  release(exec, result);
  sbx_op_complete(&exec->end, 0);
  sbx_exec_unref(exec);
}

/* After SIGKILL: everybody in the group is bound to die, and this waits for it (SPEC X16). The
 * leader goes first, for the number of a group without a zombie leader says who is left. */
static void look_at_group(struct sbx_exec *exec) {
  look_at_exit(exec);
  if (exec->exited) sbx_process_reap(&exec->process);
  if (exec->exited && !sbx_process_group_alive(&exec->process)) {
    end_stop(exec, 0);
    return;
  }
  uint64_t now = sbx_now_ns();
  if (now >= exec->stop_until_ns) {
    end_stop(exec, -ETIMEDOUT);
    return;
  }
  if (exec->stop_pause_ms < STOP_PAUSE_MAX_MS) exec->stop_pause_ms *= 2;
  set_timer(exec, now + exec->stop_pause_ms * 1000000ull);
}

/* What a stop is put down to. A kill after the exit changes nothing about how it ended. */
static enum sbx_exec_cause cause_of(const struct sbx_exec *exec, enum sbx_exec_end how) {
  switch (how) {
  case SBX_END_TIMEOUT:
    return SBX_CAUSE_TIMEOUT;
  case SBX_END_CANCELLED:
    return SBX_CAUSE_CANCELLED;
  case SBX_END_FAULT:
    return exec->fault.step == SBX_STEP_LIMIT ? SBX_CAUSE_OUTPUT_LIMIT : SBX_CAUSE_FAILED;
  case SBX_END_EXIT:
    break;
  }
  return exec->exited ? SBX_CAUSE_EXITED : SBX_CAUSE_KILLED;
}

static void begin_stop(struct sbx_exec *exec, enum sbx_exec_end how) {
  if (exec->stopping || exec->released) return;
  exec->stopping = true;
  exec->stop_until_ns = sbx_now_ns() + STOP_LIMIT_NS;
  exec->stop_pause_ms = 1;
  if (!exec->ended) {
    pthread_mutex_lock(&exec->lock);
    exec->how = how;
    exec->stopped_by = cause_of(exec, how);
    pthread_mutex_unlock(&exec->lock);
  }
  sbx_process_signal_group(&exec->process, SIGKILL);
  close_in(exec, -EPIPE);
  look_at_group(exec);
}

/* The exit. */

static void note_exit(struct sbx_exec *exec, int rc, const struct sbx_process_exit *exit) {
  sbx_exec_close_handle(&exec->exit_open, (uv_handle_t *)&exec->exit_poll);
  if (rc != 0) {
    set_fault(exec, SBX_STEP_STATUS, rc);
    exec->status_lost = true;
    exec->process.autoreap = true; /* somebody reaped it: its number may be another's by now */
  }
  pthread_mutex_lock(&exec->lock);
  exec->exited = true;
  exec->exit = *exit;
  pthread_mutex_unlock(&exec->lock);
}

/* Input that only a process the command left behind could still read was accepted and will not be
 * delivered: that is a failure of the exec (SPEC L5). */
static void fail_held(struct sbx_exec *exec) {
  exec->settling = false;
  close_in(exec, -EPIPE);
  set_fault(exec, SBX_STEP_HELD, -EPIPE);
  if (!exec->interactive) {
    begin_stop(exec, SBX_END_FAULT);
    return;
  }
  if (sbx_exec_drain_pipe(exec, SBX_STDOUT) == 0) sbx_exec_drain_pipe(exec, SBX_STDERR);
  uv_timer_stop(&exec->timer);
  pthread_mutex_lock(&exec->lock);
  exec->stopped_by = SBX_CAUSE_FAILED;
  pthread_mutex_unlock(&exec->lock);
  end_exec(exec, SBX_END_FAULT);
}

/* After the exit: what the pipe does not take now is owed to nobody once its last reader is gone. A
 * shell's background child holds the pipe for a moment before it turns to /dev/null, so there is a
 * moment to wait before the input counts as held. */
static void settle_in(struct sbx_exec *exec) {
  if (exec->in_fd < 0) return;
  pthread_mutex_lock(&exec->lock);
  bool held = sbx_feed_write(&exec->feed, exec->in_fd) == -EAGAIN;
  pthread_mutex_unlock(&exec->lock);
  if (!held) {
    close_in(exec, -EPIPE);
    return;
  }
  exec->settling = true;
  exec->settle_until_ns = sbx_now_ns() + SETTLE_NS;
  watch_in(exec, UV_WRITABLE | UV_DISCONNECT);
  set_timer(exec,
            exec->settle_until_ns < exec->deadline_ns ? exec->settle_until_ns : exec->deadline_ns);
}

/* The stdin of an exited command has closed, or taken all: nothing is owed any more. */
static void settled(struct sbx_exec *exec) {
  if (!exec->settling) return;
  exec->settling = false;
  close_in(exec, -EPIPE);
  set_timer(exec, exec->deadline_ns);
  sbx_exec_maybe_end(exec);
}

/* Looks whether the leader has exited; true if it has and this was the first to see it. */
static bool look_at_exit(struct sbx_exec *exec) {
  if (exec->exited) return false;
  struct sbx_process_exit exit = {.exit_code = -1};
  int rc = sbx_process_status(&exec->process, &exit);
  if (rc == -EAGAIN) return false;
  note_exit(exec, rc, &exit);
  return true;
}

static void on_exit_event(uv_poll_t *poll, int status, int events) {
  struct sbx_exec *exec = poll->data;
  (void)status;
  (void)events;
  if (!look_at_exit(exec)) return;
  if (exec->released) {
    sbx_process_reap(&exec->process);
    sbx_process_close(&exec->process);
  } else if (exec->stopping) {
    look_at_group(exec);
  } else {
    settle_in(exec);
    sbx_exec_maybe_end(exec);
  }
}

/* Time. */

/* The deadline has come by the clock, but this thread may be late: a command that has ended by now
 * is taken to have ended in time, for nobody can tell otherwise. */
static void on_deadline(struct sbx_exec *exec) {
  if (look_at_exit(exec)) settle_in(exec);
  if (exec->settling) {
    fail_held(exec);
    return;
  }
  if (exec->exited && !exec->stopping && !exec->ended) {
    int rc = sbx_exec_drain_pipe(exec, SBX_STDOUT);
    if (rc == 0) rc = sbx_exec_drain_pipe(exec, SBX_STDERR);
    if (rc != 0) set_fault(exec, sbx_exec_output_step(rc), rc);
    sbx_exec_maybe_end(exec);
  }
  if (!exec->ended) begin_stop(exec, SBX_END_TIMEOUT);
}

static void on_timer(uv_timer_t *timer) {
  struct sbx_exec *exec = timer->data;
  uint64_t now = sbx_now_ns();
  if (exec->stopping)
    look_at_group(exec);
  else if (exec->settling && now >= exec->settle_until_ns)
    fail_held(exec);
  else if (exec->settling && now < exec->deadline_ns)
    set_timer(exec, exec->settle_until_ns);
  else if (now < exec->deadline_ns)
    set_timer(exec, exec->deadline_ns); /* libuv's clock is coarse: never early */
  else
    on_deadline(exec);
}

static void set_timer(struct sbx_exec *exec, uint64_t at_ns) {
  uint64_t now = sbx_now_ns();
  uint64_t wait_ms = at_ns > now ? (at_ns - now + 999999) / 1000000 : 0;
  uv_update_time(sbx_engine_loop()); /* its cached now may be old, which would fire early */
  uv_timer_start(&exec->timer, on_timer, wait_ms, 0);
}

/* Work posted by callers. */

static void stop_live(struct sbx_live *live) {
  struct sbx_exec *exec = SBX_EXEC_OF(live, live);
  sbx_process_signal_group(&exec->process, SIGKILL);
}

static int open_handles(struct sbx_exec *exec) {
  uv_timer_init(sbx_engine_loop(), &exec->timer);
  exec->timer.data = exec;
  exec->timer_open = true;
  sbx_exec_ref(exec);
  int rc = sbx_exec_open_poll(exec, &exec->exit_poll, &exec->exit_open, exec->process.pidfd);
  if (rc == 0) rc = sbx_exec_watch_output(exec);
  if (rc == 0 && exec->in_fd >= 0)
    rc = sbx_exec_open_poll(exec, &exec->in_poll, &exec->in_open, exec->in_fd);
  if (rc == 0) rc = uv_poll_start(&exec->exit_poll, UV_READABLE, on_exit_event);
  return rc;
}

void sbx_exec_run_attach(struct sbx_work *work) {
  struct sbx_exec *exec = SBX_EXEC_OF(work, attach);
  exec->live.stop = stop_live;
  sbx_engine_add_live(&exec->live);
  int rc = open_handles(exec);
  if (rc != 0) {
    sbx_exec_fail(exec, SBX_STEP_ENGINE, rc);
    return;
  }
  set_timer(exec, exec->deadline_ns);
  if (exec->in_open) pump_in(exec);
}

void sbx_exec_run_kill(struct sbx_work *work) {
  struct sbx_exec *exec = SBX_EXEC_OF(work, kill_work);
  if (!exec->released) {
    begin_stop(exec, SBX_END_EXIT);
  } else {
    pthread_mutex_lock(&exec->lock);
    struct sbx_exec_op *killers = exec->killers;
    exec->killers = NULL;
    pthread_mutex_unlock(&exec->lock);
    sbx_exec_complete_all(killers, 0);
  }
  sbx_exec_unref(exec);
}

void sbx_exec_run_cancel(struct sbx_work *work) {
  struct sbx_exec *exec = SBX_EXEC_OF(work, cancel_work);
  if (!exec->released) begin_stop(exec, SBX_END_CANCELLED);
  sbx_exec_unref(exec);
}
