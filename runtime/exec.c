/* SPDX-License-Identifier: MIT
 *
 * What callers do with an exec: start it, read, write, kill (see exec.h).
 *
 * A command that cannot be executed never reaches the engine: its exec is born ended, with the exit
 * code and the line on stderr that a shell would give (SPEC X4).
 */
#define _GNU_SOURCE
#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec_private.h"

void sbx_exec_ref(struct sbx_exec *exec) {
  atomic_fetch_add_explicit(&exec->refs, 1, memory_order_relaxed);
}

void sbx_exec_unref(struct sbx_exec *exec) {
  if (atomic_fetch_sub_explicit(&exec->refs, 1, memory_order_acq_rel) != 1) return;
  sbx_process_close(&exec->process);
  for (int i = 0; i < 2; i++) {
    if (exec->out_fd[i] >= 0) close(exec->out_fd[i]);
    free(exec->gathered[i].data);
  }
  if (exec->in_fd >= 0) close(exec->in_fd);
  sbx_feed_drop(&exec->feed, -EPIPE);
  sbx_output_free(&exec->output);
  pthread_mutex_destroy(&exec->lock);
  /* The end op's memory is the exec's own; nobody refers to it any more. */
  sbx_op_unref(&exec->end);
}

static void destroy_exec(struct sbx_op *end) {
  free(SBX_EXEC_OF(end, end));
}

/* Posts work that is embedded in exec: it holds a reference until it has run. */
static int post(struct sbx_exec *exec, struct sbx_work *work) {
  sbx_exec_ref(exec);
  int rc = sbx_engine_post(work);
  if (rc != 1) sbx_exec_unref(exec);
  return rc < 0 ? rc : 0;
}

/* The end op may outlive the exec it is part of: then it is done, or about to be. */
static void cancel_one_shot(struct sbx_op *end) {
  struct sbx_exec *exec = SBX_EXEC_OF(end, end);
  unsigned refs = atomic_load(&exec->refs);
  do {
    if (refs == 0) return;
  } while (!atomic_compare_exchange_weak(&exec->refs, &refs, refs + 1));
  post(exec, &exec->cancel_work);
  sbx_exec_unref(exec);
}

static struct sbx_exec *new_exec(const struct sbx_exec_request *request) {
  struct sbx_exec *exec = calloc(1, sizeof *exec);
  if (exec == NULL) return NULL;
  atomic_init(&exec->refs, 1);
  exec->interactive = request->interactive;
  exec->end_at_exit = request->end_at_exit;
  exec->deadline_ns = request->deadline_ns;
  exec->max_output = request->max_output != 0 ? request->max_output : UINT64_MAX;
  exec->start_ns = sbx_now_ns();
  exec->process = (struct sbx_process)SBX_PROCESS_NONE;
  exec->attach.run = sbx_exec_run_attach;
  exec->feed_work.run = sbx_exec_run_feed;
  exec->kill_work.run = sbx_exec_run_kill;
  exec->cancel_work.run = sbx_exec_run_cancel;
  exec->resume_work.run = sbx_exec_run_resume;
  exec->out_fd[0] = exec->out_fd[1] = exec->in_fd = -1;
  sbx_output_init(&exec->output);
  if (pthread_mutex_init(&exec->lock, NULL) != 0) {
    free(exec);
    return NULL;
  }
  if (sbx_op_init(&exec->end, cancel_one_shot, destroy_exec) != 0) {
    pthread_mutex_destroy(&exec->lock);
    free(exec);
    return NULL;
  }
  return exec;
}

static const char *refusal_text(const struct sbx_refusal *refusal) {
  if (refusal->interpreter) return "bad interpreter: No such file or directory";
  return refusal->error == ENOENT ? "command not found" : strerror(refusal->error);
}

/* The exec of a command that was never executed. */
static int end_refused(struct sbx_exec *exec, const char *name, const struct sbx_refusal *refusal) {
  const char *why = refusal_text(refusal);
  size_t room = strlen(name) + strlen(why) + sizeof "sbxlua: : \n";
  char *line = malloc(room);
  if (line == NULL) return -ENOMEM;
  int len = snprintf(line, room, "sbxlua: %s: %s\n", name, why);
  int rc = 0;
  if (exec->interactive) {
    for (int at = 0; at < len && rc == 0; at += (int)SBX_CHUNK_MAX) {
      int left = len - at;
      size_t take = (size_t)left < SBX_CHUNK_MAX ? (size_t)left : SBX_CHUNK_MAX;
      rc = sbx_output_put(&exec->output, SBX_STDERR, line + at, take);
    }
    free(line);
  } else {
    exec->gathered[SBX_STDERR] = (struct sbx_gather){line, (size_t)len, room};
  }
  exec->received[SBX_STDERR] = (uint64_t)len;
  exec->exited = exec->ended = exec->gone = exec->released = true;
  exec->exit.exit_code = refusal->exit_code;
  exec->end_ns = sbx_now_ns();
  exec->how = SBX_END_EXIT;
  sbx_op_complete(&exec->end, 0);
  return rc;
}

struct pipes {
  int in[2], out[2], err[2];
};

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static void close_pipes(struct pipes *pipes) {
  for (int i = 0; i < 2; i++) {
    close_fd(&pipes->in[i]);
    close_fd(&pipes->out[i]);
    close_fd(&pipes->err[i]);
  }
}

static int open_pipes(struct pipes *pipes, bool with_stdin) {
  *pipes = (struct pipes){{-1, -1}, {-1, -1}, {-1, -1}};
  int rc = 0;
  if (with_stdin) {
    if (pipe2(pipes->in, O_CLOEXEC) != 0) rc = -errno;
  } else {
    pipes->in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (pipes->in[0] < 0) rc = -errno;
  }
  if (rc == 0 && pipe2(pipes->out, O_CLOEXEC) != 0) rc = -errno;
  if (rc == 0 && pipe2(pipes->err, O_CLOEXEC) != 0) rc = -errno;
  if (rc != 0) close_pipes(pipes);
  return rc;
}

static int start_process(struct sbx_exec *exec, const struct sbx_exec_request *request, int cwd_fd,
                         struct sbx_refusal *refusal) {
  struct pipes pipes;
  bool feeds = exec->interactive || request->stdin_len > 0;
  int rc = open_pipes(&pipes, feeds);
  if (rc != 0) return rc;
  if (request->stdin_len > 0)
    rc = sbx_feed_lend(&exec->feed, request->stdin_data, request->stdin_len, NULL);
  struct sbx_spawn spawn = {.argv = request->argv,
                            .envp = request->envp,
                            .cwd_fd = cwd_fd,
                            .stdio = {pipes.in[0], pipes.out[1], pipes.err[1]}};
  if (rc == 0) rc = sbx_process_spawn(&spawn, &exec->process, refusal);
  if (rc == 0 && refusal->exit_code == 0) {
    exec->in_fd = pipes.in[1];
    exec->out_fd[SBX_STDOUT] = pipes.out[0];
    exec->out_fd[SBX_STDERR] = pipes.err[0];
    pipes.in[1] = pipes.out[0] = pipes.err[0] = -1;
    exec->in_closing = !exec->interactive;
  }
  close_pipes(&pipes);
  return rc;
}

static int start(struct sbx_exec *exec, const struct sbx_exec_request *request,
                 struct sbx_fault *fault) {
  int cwd_fd = -1;
  struct sbx_refusal refusal = {0};
  fault->step = SBX_STEP_ENGINE;
  int rc = sbx_engine_start();
  if (rc != 0) return rc;
  fault->step = SBX_STEP_CWD;
  rc = sbx_files_open_dir(request->root, request->cwd, &cwd_fd);
  if (rc != 0) return rc;
  fault->step = SBX_STEP_START;
  rc = start_process(exec, request, cwd_fd, &refusal);
  close(cwd_fd);
  if (rc != 0) return rc;
  if (refusal.exit_code != 0) return end_refused(exec, request->argv[0], &refusal);
  fault->step = SBX_STEP_ENGINE;
  rc = post(exec, &exec->attach);
  if (rc == 0) return 0;
  sbx_process_signal_group(&exec->process, SIGKILL); /* the engine did not take it over */
  sbx_process_reap_when_dead(&exec->process);
  return rc;
}

int sbx_exec_start(const struct sbx_exec_request *request, struct sbx_exec **out,
                   struct sbx_fault *fault) {
  *fault = (struct sbx_fault){SBX_STEP_START, -ENOMEM};
  struct sbx_exec *exec = new_exec(request);
  if (exec == NULL) return -ENOMEM;
  int rc = start(exec, request, fault);
  fault->error = rc;
  if (rc != 0) {
    sbx_exec_unref(exec);
    return rc;
  }
  fault->step = SBX_STEP_NONE;
  *out = exec;
  return 0;
}

struct sbx_op *sbx_exec_end_op(struct sbx_exec *exec) {
  return &exec->end;
}

void sbx_exec_result(struct sbx_exec *exec, struct sbx_exec_result *result) {
  pthread_mutex_lock(&exec->lock);
  *result = (struct sbx_exec_result){.end = exec->how,
                                     .exit_code = exec->exit.exit_code,
                                     .fault = exec->fault,
                                     .held = exec->held};
  for (int i = 0; i < 2; i++) {
    result->output[i] = exec->gathered[i].data;
    result->output_len[i] = exec->received[i];
  }
  pthread_mutex_unlock(&exec->lock);
}

bool sbx_exec_record(struct sbx_exec *exec, struct sbx_exec_record *record) {
  pthread_mutex_lock(&exec->lock);
  bool ended = exec->ended;
  *record = (struct sbx_exec_record){
      .cause = exec->stopped_by,
      .wall_ns = exec->end_ns - exec->start_ns,
      .user_us = exec->exit.user_us,
      .system_us = exec->exit.system_us,
      .peak_kib = exec->exit.peak_kib,
      .stdin_bytes = exec->feed.written,
      .output_bytes = {exec->received[0], exec->received[1]},
  };
  if (exec->stopped_by == SBX_CAUSE_EXITED && exec->exit.signaled)
    record->cause = SBX_CAUSE_SIGNALED;
  pthread_mutex_unlock(&exec->lock);
  return ended;
}

/* What ends the stream, once its output is read. */
static void last_item(struct sbx_exec *exec, struct sbx_item *item) {
  if (exec->fault.step != SBX_STEP_NONE) {
    item->kind = SBX_ITEM_FAULT;
    item->fault = exec->fault;
  } else if (exec->exit_given) {
    item->kind = SBX_ITEM_END;
  } else {
    exec->exit_given = true;
    item->kind = SBX_ITEM_EXIT;
    item->exit_code = exec->exit.exit_code;
  }
}

void sbx_exec_next(struct sbx_exec *exec, struct sbx_item *item) {
  *item = (struct sbx_item){.kind = SBX_ITEM_NOTHING_YET};
  bool resume = false;
  pthread_mutex_lock(&exec->lock);
  bool timed_out = exec->how == SBX_END_TIMEOUT && !exec->killed;
  if (timed_out && exec->ended) {
    sbx_output_discard(&exec->output);
    item->kind = SBX_ITEM_TIMEOUT;
    item->held = exec->held;
    item->output_len[0] = exec->received[0];
    item->output_len[1] = exec->received[1];
  } else if (!timed_out && !sbx_output_is_empty(&exec->output)) {
    int rc = sbx_output_take(&exec->output, &item->chunk);
    item->kind = rc == 0 ? SBX_ITEM_CHUNK : SBX_ITEM_FAULT;
    exec->taken++;
    if (exec->wants_resume && exec->output.in_memory <= SBX_RESUME_MEMORY) {
      resume = true;
      exec->wants_resume = false;
    }
    item->fault = (struct sbx_fault){SBX_STEP_OUTPUT, rc};
  } else if (exec->ended) {
    last_item(exec, item);
  } else if (!timed_out && !exec->killed) {
    sbx_exec_read_directly(exec, item);
  }
  pthread_mutex_unlock(&exec->lock);
  if (resume) post(exec, &exec->resume_work);
}

static void destroy_exec_op(struct sbx_op *op) {
  struct sbx_exec_op *eop = (struct sbx_exec_op *)op;
  sbx_exec_unref(eop->exec);
  free(eop);
}

static int new_op(struct sbx_exec *exec, void (*cancel)(struct sbx_op *),
                  struct sbx_exec_op **out) {
  struct sbx_exec_op *eop = calloc(1, sizeof *eop);
  if (eop == NULL) return -ENOMEM;
  int rc = sbx_op_init(&eop->op, cancel, destroy_exec_op);
  if (rc != 0) {
    free(eop);
    return rc;
  }
  sbx_exec_ref(exec);
  eop->exec = exec;
  *out = eop;
  return 0;
}

/* Under the exec's lock. */
static void push(struct sbx_exec_op **list, struct sbx_exec_op *eop) {
  sbx_op_ref(&eop->op);
  eop->next = *list;
  *list = eop;
}

static bool take_out(struct sbx_exec_op **list, struct sbx_exec_op *eop) {
  for (; *list != NULL; list = &(*list)->next) {
    if (*list != eop) continue;
    *list = eop->next;
    return true;
  }
  return false;
}

void sbx_exec_complete_all(struct sbx_exec_op *list, int result) {
  while (list != NULL) {
    struct sbx_exec_op *eop = list;
    list = eop->next;
    sbx_op_complete(&eop->op, result);
    sbx_op_unref(&eop->op);
  }
}

static void cancel_read(struct sbx_op *op) {
  struct sbx_exec_op *eop = (struct sbx_exec_op *)op;
  pthread_mutex_lock(&eop->exec->lock);
  bool waited = take_out(&eop->exec->readers, eop);
  pthread_mutex_unlock(&eop->exec->lock);
  if (!waited) return;
  sbx_op_complete(op, -ECANCELED);
  sbx_op_unref(op);
}

int sbx_exec_readable(struct sbx_exec *exec, struct sbx_op **out) {
  struct sbx_exec_op *eop;
  int rc = new_op(exec, cancel_read, &eop);
  if (rc != 0) return rc;
  pthread_mutex_lock(&exec->lock);
  bool stopping = exec->how == SBX_END_TIMEOUT && !exec->killed;
  bool ready = exec->ended || (!stopping && !sbx_output_is_empty(&exec->output));
  if (!ready) push(&exec->readers, eop);
  pthread_mutex_unlock(&exec->lock);
  if (ready) sbx_op_complete(&eop->op, 0);
  *out = &eop->op;
  return 0;
}

static void cancel_write(struct sbx_op *op) {
  struct sbx_exec *exec = ((struct sbx_exec_op *)op)->exec;
  pthread_mutex_lock(&exec->lock);
  /* Out of memory for the rest of a begun write: nothing that follows may pass for it. */
  if (sbx_feed_abandon(&exec->feed, op) != 0) {
    sbx_feed_drop(&exec->feed, -ENOMEM);
    exec->in_closing = true;
    exec->fault = (struct sbx_fault){SBX_STEP_STDIN, -ENOMEM};
  }
  pthread_mutex_unlock(&exec->lock);
  sbx_op_complete(op, -ECANCELED);
  post(exec, &exec->feed_work);
}

/* Whether the command's end of the pipe is gone, as the kernel knows it now. */
static bool reader_is_gone(int fd) {
  struct pollfd look = {.fd = fd};
  return poll(&look, 1, 0) > 0 && (look.revents & (POLLERR | POLLNVAL)) != 0;
}

int sbx_exec_write(struct sbx_exec *exec, const char *data, size_t len, struct sbx_op **out) {
  struct sbx_exec_op *eop = NULL;
  *out = NULL;
  pthread_mutex_lock(&exec->lock);
  bool open = exec->in_fd >= 0 && !exec->in_closing && !exec->exited && !exec->ended &&
              !exec->killed && exec->how != SBX_END_TIMEOUT && !reader_is_gone(exec->in_fd);
  int rc = open ? 0 : -EPIPE;
  if (rc == 0 && len > 0) {
    rc = sbx_feed_copy(&exec->feed, data, len);
    if (rc == -EAGAIN) {
      rc = new_op(exec, cancel_write, &eop);
      if (rc == 0) rc = sbx_feed_lend(&exec->feed, data, len, &eop->op);
    }
  }
  pthread_mutex_unlock(&exec->lock);
  if (rc == 0 && len > 0) rc = post(exec, &exec->feed_work);
  if (rc < 0) {
    if (eop != NULL) sbx_op_unref(&eop->op);
    return rc;
  }
  if (eop != NULL) *out = &eop->op;
  return 0;
}

int sbx_exec_close_stdin(struct sbx_exec *exec) {
  pthread_mutex_lock(&exec->lock);
  bool open = exec->in_fd >= 0 && !exec->in_closing;
  exec->in_closing = true;
  pthread_mutex_unlock(&exec->lock);
  return open ? post(exec, &exec->feed_work) : 0;
}

int sbx_exec_kill(struct sbx_exec *exec, struct sbx_op **out) {
  struct sbx_exec_op *eop;
  int rc = new_op(exec, NULL, &eop);
  if (rc != 0) return rc;
  pthread_mutex_lock(&exec->lock);
  exec->killed = true;
  bool gone = exec->gone;
  if (!gone) push(&exec->killers, eop);
  pthread_mutex_unlock(&exec->lock);
  if (gone)
    sbx_op_complete(&eop->op, 0);
  else
    rc = post(exec, &exec->kill_work);
  if (rc < 0) {
    sbx_op_unref(&eop->op);
    return rc;
  }
  *out = &eop->op;
  return 0;
}

void sbx_exec_abandon(struct sbx_exec *exec) {
  pthread_mutex_lock(&exec->lock);
  exec->killed = true;
  bool gone = exec->gone;
  sbx_feed_drop(&exec->feed, -EPIPE);
  exec->in_closing = true;
  pthread_mutex_unlock(&exec->lock);
  if (!gone) post(exec, exec->interactive ? &exec->kill_work : &exec->cancel_work);
}
