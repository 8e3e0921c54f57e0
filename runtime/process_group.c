/* SPDX-License-Identifier: MIT
 *
 * A started process and its group: status, signals, the end (see process.h).
 *
 * Status is read with WNOWAIT, so that the leader stays a zombie and keeps the group's id from
 * being given to anyone else for as long as a stop may come. Where the program ignores SIGCHLD the
 * system reaps by itself and that protection is gone; then only the pidfd, which can never mean
 * another process, is used.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guard.h"
#include "process.h"
#include "procfs.h"

#define PIDFD_TYPE 3            /* P_PIDFD, which older headers do not name */
#define SIGNAL_PROCESS_GROUP 4u /* PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9 */

/* The system call itself, for the C library's function leaves out the usage. */
static int wait_status(const struct sbx_process *process, int options, siginfo_t *info,
                       struct rusage *usage) {
  info->si_pid = 0;
  long rc;
  do {
    rc = syscall(SYS_waitid, PIDFD_TYPE, process->pidfd, info, WEXITED | options, usage);
  } while (rc != 0 && errno == EINTR);
  return rc == 0 ? 0 : -errno;
}

static uint64_t microseconds(const struct timeval *time) {
  return (uint64_t)time->tv_sec * 1000000u + (uint64_t)time->tv_usec;
}

/* A process that borrowed our memory until its exec is told to have been as large as we were. So a
 * figure that we have reached ourselves says nothing. */
static uint64_t known_peak(const struct rusage *usage) {
  struct rusage own;
  if (getrusage(RUSAGE_SELF, &own) != 0 || usage->ru_maxrss <= own.ru_maxrss) return 0;
  return (uint64_t)usage->ru_maxrss;
}

int sbx_process_status(const struct sbx_process *process, struct sbx_process_exit *exit) {
  siginfo_t info;
  struct rusage usage = {0};
  int rc = wait_status(process, WNOHANG | WNOWAIT, &info, &usage);
  if (rc != 0) return rc;
  if (info.si_pid == 0) return -EAGAIN;
  exit->signaled = info.si_code != CLD_EXITED;
  exit->exit_code = exit->signaled ? 128 + info.si_status : info.si_status;
  exit->user_us = microseconds(&usage.ru_utime);
  exit->system_us = microseconds(&usage.ru_stime);
  exit->peak_kib = known_peak(&usage);
  return 0;
}

void sbx_process_signal_group(const struct sbx_process *process, int sig) {
  if (process->pid <= 0 || process->reaped) return;
  if (!process->autoreap) {
    kill(-process->pid, sig);
    return;
  }
  if (syscall(SYS_pidfd_send_signal, process->pidfd, sig, NULL, SIGNAL_PROCESS_GROUP) == 0) return;
  if (errno == EINVAL) syscall(SYS_pidfd_send_signal, process->pidfd, sig, NULL, 0);
}

void sbx_process_reap(struct sbx_process *process) {
  if (process->pid <= 0 || process->reaped) return;
  siginfo_t info;
  sbx_guard_give(process->slot);
  process->slot = NULL;
  /* -ECHILD: the system or another part of the program has reaped it. Either way the id is gone. */
  wait_status(process, WNOHANG, &info, NULL);
  process->reaped = true;
}

void sbx_process_reap_when_dead(struct sbx_process *process) {
  siginfo_t info;
  wait_status(process, WNOWAIT, &info, NULL);
  sbx_process_reap(process);
}

static bool is_living_member(int pid, pid_t group) {
  struct sbx_procfs process;
  return sbx_procfs_read(pid, &process) == 0 && process.group == group &&
         sbx_procfs_is_alive(&process);
}

bool sbx_process_group_alive(const struct sbx_process *process) {
  /* Most groups are gone with their leader, and this says so in one call. */
  if (process->pid <= 0 || (kill(-process->pid, 0) != 0 && errno == ESRCH)) return false;
  DIR *proc = opendir("/proc");
  if (proc == NULL) return true; /* cannot tell: the caller's limit decides */
  bool alive = false;
  struct dirent *entry;
  while (!alive && (entry = readdir(proc)) != NULL)
    alive = isdigit((unsigned char)entry->d_name[0]) &&
            is_living_member(atoi(entry->d_name), process->pid);
  closedir(proc);
  return alive;
}

void sbx_process_close(struct sbx_process *process) {
  if (process->pidfd >= 0) close(process->pidfd);
  process->pidfd = -1;
}
