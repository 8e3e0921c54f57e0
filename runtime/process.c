/* SPDX-License-Identifier: MIT
 *
 * Starting a command (see process.h).
 *
 * clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD) in place of posix_spawn, which has no way to give the
 * child its own umask (SPEC X2) short of changing the whole program's, cannot tell a failed chdir
 * from a failed exec, and leaves a gap between the start and the pidfd. As in posix_spawn the child
 * borrows the caller's memory on a stack of its own while the caller sleeps; it makes raw system
 * calls only, so that neither the C library's state nor a sanitizer's is touched from it.
 */
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard.h"

#define CHILD_STACK ((size_t)64 * 1024)
#define COMMAND_UMASK 022
#define KERNEL_SIGSET_BYTES 8 /* the kernel's sigset_t, not the C library's */

#define RAW __attribute__((no_sanitize("address", "thread", "undefined")))

/* The thread sanitizer's clone() takes every child for a fork, which one that shares our memory is
 * not: it is passed by. */
#ifdef __SANITIZE_THREAD__
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif
#ifdef THREAD_SANITIZER
int __clone(int (*run)(void *), void *stack, int flags, void *arg, ...);
#define clone __clone
#endif

/* The kernel's struct sigaction: the C library's wrapper would be intercepted by sanitizers. */
struct kernel_sigaction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)(void);
  uint64_t mask;
};

struct child {
  const struct sbx_spawn *spawn;
  struct sbx_guard_slot *slot;
  const char *program;
  int error; /* the child's last word: errno of what failed */
  bool at_exec;
};

/* Ignored signals survive an exec, and a handler must not run in the child while it shares our
 * memory: both become the default. SIGKILL and SIGSTOP refuse, which is fine. */
RAW static void reset_signals(void) {
  for (int sig = 1; sig < 65; sig++) {
    struct kernel_sigaction action;
    if (syscall(SYS_rt_sigaction, sig, NULL, &action, KERNEL_SIGSET_BYTES) != 0) continue;
    if (action.handler == SIG_DFL) continue;
    action.handler = SIG_DFL;
    action.flags = 0;
    syscall(SYS_rt_sigaction, sig, &action, NULL, KERNEL_SIGSET_BYTES);
  }
}

/* Puts the three descriptors in place. A source may itself be 0, 1 or 2, so all are first moved
 * above; the copies go with everything else from 3 up. */
RAW static long place_stdio(const int stdio[3]) {
  long copy[3];
  for (int i = 0; i < 3; i++) {
    copy[i] = stdio[i];
    if (copy[i] < 3) copy[i] = syscall(SYS_fcntl, stdio[i], F_DUPFD_CLOEXEC, 3);
    if (copy[i] < 0) return -1;
  }
  for (int i = 0; i < 3; i++)
    if (syscall(SYS_dup3, copy[i], i, 0) < 0) return -1;
  return 0;
}

RAW static int child_main(void *arg) {
  struct child *child = arg;
  const struct sbx_spawn *spawn = child->spawn;
  uint64_t none = 0;
  reset_signals();
  long group = syscall(SYS_setsid);
  if (group < 0) goto failed;
  if (child->slot != NULL) atomic_store(&child->slot->pid, (int)group); /* now the guard knows */
  syscall(SYS_umask, COMMAND_UMASK);
  if (syscall(SYS_fchdir, spawn->cwd_fd) != 0) goto failed;
  if (place_stdio(spawn->stdio) != 0) goto failed;
  if (syscall(SYS_close_range, 3, ~0u, 0) != 0) goto failed;
  if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, KERNEL_SIGSET_BYTES) != 0) goto failed;
  child->at_exec = true;
  syscall(SYS_execve, child->program, spawn->argv, spawn->envp);
failed:
  child->error = errno;
  syscall(SYS_exit_group, 127);
  return 127;
}

static bool child_is_autoreaped(void) {
  struct sigaction action;
  if (sigaction(SIGCHLD, NULL, &action) != 0) return false;
  return action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0;
}

/* One stack at rest: unmapping one each time costs page faults and a TLB shootdown on every core
 * that runs a thread of this program. */
static void *_Atomic idle_stack;

static void *take_stack(void) {
  void *stack = atomic_exchange(&idle_stack, NULL);
  if (stack != NULL) return stack;
  stack = mmap(NULL, CHILD_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
               -1, 0);
  return stack == MAP_FAILED ? NULL : stack;
}

static void give_stack(void *stack) {
  stack = atomic_exchange(&idle_stack, stack);
  if (stack != NULL) munmap(stack, CHILD_STACK);
}

/* Runs child_main on a stack of its own. Signals are held back: a handler of the program that ran
 * in the child would run on the program's memory. */
static int run_child(struct child *child, struct sbx_process *process) {
  void *stack = take_stack();
  if (stack == NULL) return -errno;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  pid_t pid = clone(child_main, (char *)stack + CHILD_STACK,
                    CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, child, &pidfd);
  int error = pid < 0 ? errno : 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  give_stack(stack);
  if (error != 0) return -error;
  process->pid = pid;
  process->pidfd = pidfd;
  return 0;
}

/* PATH of the command's own environment; an unset one means no search, as nothing is promised. */
static const char *search_path(char *const *envp) {
  for (; *envp != NULL; envp++)
    if (strncmp(*envp, "PATH=", 5) == 0) return *envp + 5;
  return "";
}

/* 0: a file that may be executed; else the errno that speaks against it. */
static int executable(int cwd_fd, const char *path) {
  struct stat st;
  if (fstatat(cwd_fd, path, &st, 0) != 0) return errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  if (!S_ISREG(st.st_mode)) return EACCES;
  return faccessat(cwd_fd, path, X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

/* What is found and cannot be run outweighs what is not found, as in a shell. */
static int worse(int so_far, int error) {
  return error == ENOENT || error == ENOTDIR ? so_far : error;
}

/* Searches path for name; 0 and *program (owned), or an errno. An empty entry is the cwd. */
static int search(int cwd_fd, const char *name, const char *path, char **program) {
  size_t name_len = strlen(name);
  char *candidate = malloc(strlen(path) + name_len + 3);
  if (candidate == NULL) return ENOMEM;
  int error = ENOENT;
  bool more = *path != '\0';
  while (more) {
    size_t dir_len = strcspn(path, ":");
    size_t at = 0;
    if (dir_len == 0) candidate[at++] = '.';
    memcpy(candidate + at, path, dir_len);
    at += dir_len;
    candidate[at++] = '/';
    memcpy(candidate + at, name, name_len + 1);
    int found = executable(cwd_fd, candidate);
    if (found == 0) {
      *program = candidate;
      return 0;
    }
    error = worse(error, found);
    more = path[dir_len] == ':';
    path += dir_len + 1;
  }
  free(candidate);
  return error;
}

static void refuse(struct sbx_refusal *refusal, int error) {
  bool missing = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
  refusal->error = error;
  refusal->exit_code = missing ? 127 : 126;
}

/* Whether an errno of execve is about the program, not about what the system has to give. */
static bool is_about_program(int error) {
  switch (error) {
  case ENOENT:
  case ENOTDIR:
  case ENAMETOOLONG:
  case ELOOP:
  case EACCES:
  case EPERM:
  case EISDIR:
  case ENOEXEC:
  case ELIBBAD:
  case EINVAL:
  case ETXTBSY:
  case EIO:
    return true;
  default:
    return false;
  }
}

static int spawn_program(const struct sbx_spawn *spawn, const char *program,
                         struct sbx_process *process, struct sbx_refusal *refusal) {
  struct child child = {.spawn = spawn, .program = program};
  int rc = sbx_guard_take(&child.slot);
  if (rc != 0) return rc;
  process->autoreap = child_is_autoreaped();
  process->reaped = false;
  rc = run_child(&child, process);
  if (rc != 0) {
    sbx_guard_give(child.slot);
    return rc;
  }
  process->slot = child.slot;
  if (child.error == 0) return 0;
  sbx_process_reap_when_dead(process); /* it is exiting, and lets us go before it is a zombie */
  sbx_process_close(process);
  process->pid = 0;
  if (!child.at_exec || !is_about_program(child.error)) return -child.error;
  refuse(refusal, child.error);
  if (refusal->exit_code == 127 && executable(spawn->cwd_fd, program) == 0) {
    refusal->exit_code = 126;
    refusal->interpreter = true;
  }
  return 0;
}

int sbx_process_spawn(const struct sbx_spawn *spawn, struct sbx_process *process,
                      struct sbx_refusal *refusal) {
  *process = (struct sbx_process)SBX_PROCESS_NONE;
  *refusal = (struct sbx_refusal){0};
  const char *name = spawn->argv[0];
  if (strchr(name, '/') != NULL) return spawn_program(spawn, name, process, refusal);
  char *program = NULL;
  int error = search(spawn->cwd_fd, name, search_path(spawn->envp), &program);
  if (error == ENOMEM) return -ENOMEM;
  if (error != 0) {
    refuse(refusal, error);
    return 0;
  }
  int rc = spawn_program(spawn, program, process, refusal);
  free(program);
  return rc;
}
