/* SPDX-License-Identifier: MIT
 *
 * One process of a command: find its program, start it in a group of its own, read its status, stop
 * its group. No loop, no output, no deadline: those are exec.c's.
 *
 * The group's id is the leader's process id. It stays reserved while the leader is not reaped, so
 * between start and sbx_process_reap a signal to the group can only reach the group (SPEC X16).
 */
#ifndef SBX_PROCESS_H
#define SBX_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sbx_guard_slot;

struct sbx_process {
  pid_t pid;                   /* also the group's id; 0: nothing was started */
  int pidfd;                   /* owned; -1 after release */
  struct sbx_guard_slot *slot; /* owned: where the guard finds the group until it is reaped */
  bool reaped;
  bool autoreap; /* the program ignores SIGCHLD: the system reaps by itself, no status */
};

#define SBX_PROCESS_NONE \
  { .pidfd = -1 }

struct sbx_spawn {
  char *const *argv;
  char *const *envp;
  int cwd_fd;   /* borrowed: the directory the command starts in */
  int stdio[3]; /* borrowed: become descriptors 0, 1, 2 */
};

/* Why a command was not executed although the system had all it takes: an errno of the exec itself
 * and the exit code a shell would give (SPEC X4). */
struct sbx_refusal {
  int error;
  int exit_code;    /* 126 or 127; 0: not refused */
  bool interpreter; /* the program is there, what it names to run it is not */
};

/* Starts argv. 0 with *process running or *refusal filled; else -errno for want of a resource, and
 * nothing is left behind. Blocks the calling thread until the program is loaded, no other. */
int sbx_process_spawn(const struct sbx_spawn *spawn, struct sbx_process *process,
                      struct sbx_refusal *refusal);

/* How a process ended and what it used, its own children that it waited for included. */
struct sbx_process_exit {
  int exit_code; /* 128 + N for signal N */
  bool signaled;
  uint64_t user_us, system_us; /* CPU time */
  uint64_t peak_kib;           /* the largest resident size of any of them; 0: not known */
};

/* How a process has ended, without reaping it. 0 with *exit filled; -EAGAIN: still running;
 * -ECHILD: somebody else took the status. */
int sbx_process_status(const struct sbx_process *process, struct sbx_process_exit *exit);
/* Sends sig to the group, unless its id may belong to others by now. */
void sbx_process_signal_group(const struct sbx_process *process, int sig);
/* Gives the status and the group's id back to the system. Idempotent. */
void sbx_process_reap(struct sbx_process *process);
/* Waits for the leader's end first: for one that is bound to die now. */
void sbx_process_reap_when_dead(struct sbx_process *process);
/* Whether a member of the group is still alive, after sbx_process_reap. A zombie counts as gone:
 * the init of a small machine may never reap it. */
bool sbx_process_group_alive(const struct sbx_process *process);
void sbx_process_close(struct sbx_process *process); /* closes the pidfd; idempotent */

#endif
