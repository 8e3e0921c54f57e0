/* SPDX-License-Identifier: MIT
 *
 * One exec: a command run in a session, from its start to the end of its output (SPEC X).
 *
 * sbx_exec_start starts the process on the calling thread and hands it to the engine, which drains
 * its output, feeds its stdin, keeps its deadline and stops its group, whatever the caller does.
 * Callers only look at what the engine has gathered. All functions may be called from any thread.
 *
 * A one-shot exec gathers its output whole and has an end op. An interactive exec has a stream of
 * items, writes and kills; it keeps its group's id until it is killed. In a forked child only
 * sbx_exec_unref may be called.
 */
#ifndef SBX_EXEC_H
#define SBX_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "files.h"
#include "op.h"
#include "output.h"

struct sbx_exec;

/* What went wrong, and in which step of the exec; the words are for the caller to choose. */
enum sbx_exec_step {
  SBX_STEP_NONE,
  SBX_STEP_CWD,    /* opening the working directory */
  SBX_STEP_START,  /* pipes, process */
  SBX_STEP_ENGINE, /* handing it to the engine */
  SBX_STEP_STDIN,  /* writing its stdin */
  SBX_STEP_HELD,   /* it exited while another process held its stdin, input unwritten */
  SBX_STEP_OUTPUT, /* keeping its output */
  SBX_STEP_STATUS, /* reading its exit status */
  SBX_STEP_LIMIT,  /* its output passed the limit that was set for it */
  SBX_STEP_STOP,   /* its group survived SIGKILL for the stop's limit */
};

struct sbx_fault {
  enum sbx_exec_step step;
  int error; /* -errno */
};

struct sbx_exec_request {
  const struct sbx_files_root *root; /* borrowed for the call */
  const char *cwd;                   /* NULL: the root itself */
  char *const *argv;                 /* borrowed for the call, as envp */
  char *const *envp;
  const char *stdin_data; /* lent until the end op completes; NULL: the command reads end-of-file */
  size_t stdin_len;
  bool interactive;
  bool end_at_exit;     /* SPEC X18: wait = "exit" */
  uint64_t deadline_ns; /* sbx_now_ns() clock */
  uint64_t max_output;  /* bytes of both streams together; 0: no limit */
};

/* What ended an exec: its own doing, or the first thing that stopped it. */
enum sbx_exec_cause {
  SBX_CAUSE_EXITED,
  SBX_CAUSE_SIGNALED,
  SBX_CAUSE_TIMEOUT,
  SBX_CAUSE_KILLED,
  SBX_CAUSE_CANCELLED,
  SBX_CAUSE_OUTPUT_LIMIT,
  SBX_CAUSE_FAILED,
};

/* What is known of an exec that has ended. */
struct sbx_exec_record {
  enum sbx_exec_cause cause;
  uint64_t wall_ns;            /* from the start to the end */
  uint64_t user_us, system_us; /* CPU time of the command and of what it waited for */
  uint64_t peak_kib;           /* resident size, the largest of those; 0: not known */
  uint64_t stdin_bytes;        /* taken by the command's pipe */
  uint64_t output_bytes[2];    /* received, by stream */
};

/* How a one-shot exec ended. */
enum sbx_exec_end { SBX_END_EXIT, SBX_END_TIMEOUT, SBX_END_CANCELLED, SBX_END_FAULT };

struct sbx_exec_result {
  enum sbx_exec_end end;
  int exit_code;          /* SBX_END_EXIT */
  struct sbx_fault fault; /* SBX_END_FAULT */
  const char *output[2];  /* borrowed from the exec, by stream; one-shot only */
  uint64_t output_len[2]; /* bytes received, by stream */
  bool held;              /* a process outside the group still held the output at the stop */
};

/* The next thing in an interactive exec's stream. */
enum sbx_item_kind {
  SBX_ITEM_NOTHING_YET,
  SBX_ITEM_CHUNK,
  SBX_ITEM_EXIT,
  SBX_ITEM_END, /* the exit was given before */
  SBX_ITEM_TIMEOUT,
  SBX_ITEM_FAULT,
};

struct sbx_item {
  enum sbx_item_kind kind;
  struct sbx_chunk *chunk; /* owned by the caller */
  int exit_code;
  struct sbx_fault fault;
  uint64_t output_len[2];
  bool held;
};

/* On failure *fault says why and nothing is left behind. *exec is owned by the caller. */
int sbx_exec_start(const struct sbx_exec_request *request, struct sbx_exec **exec,
                   struct sbx_fault *fault);
void sbx_exec_unref(struct sbx_exec *exec);
/* False until the exec has ended. */
bool sbx_exec_record(struct sbx_exec *exec, struct sbx_exec_record *record);
/* For a caller that lets go of an exec, whatever state it is in: has it stopped, without waiting
 * for that, and lends it nothing from here on. sbx_exec_unref comes next. */
void sbx_exec_abandon(struct sbx_exec *exec);

/* One-shot. The op completes with 0 when the exec has ended, however it did; cancelling it stops
 * the group first. */
struct sbx_op *sbx_exec_end_op(struct sbx_exec *exec);                       /* borrowed */
void sbx_exec_result(struct sbx_exec *exec, struct sbx_exec_result *result); /* once it is done */

/* Interactive. Ops are owned by the caller. */
void sbx_exec_next(struct sbx_exec *exec, struct sbx_item *item);
int sbx_exec_readable(struct sbx_exec *exec, struct sbx_op **op);
/* 0 and *op NULL: taken. 0 and *op: waits for room, data is lent until it completes. -EPIPE: the
 * stdin is closed, or the exec has exited or been killed. */
int sbx_exec_write(struct sbx_exec *exec, const char *data, size_t len, struct sbx_op **op);
int sbx_exec_close_stdin(struct sbx_exec *exec);
/* The op completes when the group is gone and the exec's resources are given back: 0, or
 * -ETIMEDOUT when a process survived SIGKILL for the stop's limit. */
int sbx_exec_kill(struct sbx_exec *exec, struct sbx_op **op);

#endif
