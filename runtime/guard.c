/* SPDX-License-Identifier: MIT
 *
 * The guard process and its table (see guard.h).
 *
 * A fork without an exec, for a library has no program of its own to run. The copy drops what it
 * does not need of our memory at once, or it would pin what we had when it was made. It blocks all
 * signals and leads a session of its own, so that a terminal's Ctrl-C is not for it, and ends with
 * no signal to us, so that nobody's wait for children ever sees it.
 *
 * Our zombies are reaped by init when we die, and then their ids are free. The guard kills a group
 * only while it has a member that is older than our death: such a member has kept the id.
 */
#define _GNU_SOURCE
#include "guard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "procfs.h"

#define SLOTS 32768
#define STACK_BYTES ((size_t)64 * 1024)
#define TEXT_BYTES 4096
#define LARGE_BYTES ((unsigned long)256 * 1024)

/* What both processes see. */
struct shared {
  atomic_bool clean; /* the program has stopped its commands itself: nothing is left to do */
  struct sbx_guard_slot slots[SLOTS];
};

static struct {
  pthread_mutex_t lock;
  struct shared *shared;
  struct sbx_guard_slot *free; /* slots that were given back; linked below */
  struct sbx_guard_slot *next_free[SLOTS];
  int unused;          /* slots from here on were never taken */
  atomic_int guard_fd; /* owned: pidfd of the guard, -1 without one */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .guard_fd = -1};

/* What follows runs in the guard: no malloc, no lock, nothing that another thread of ours could
 * have been in the middle of. */

struct directory_entry {
  unsigned long long inode;
  long long offset;
  unsigned short length;
  unsigned char type;
  char name[];
};

static bool is_registered(int group) {
  for (int i = 0; i < SLOTS; i++)
    if (atomic_load(&table.shared->slots[i].pid) == group) return true;
  return false;
}

/* One pass over all processes: a registered group with a member from before our program's death
 * is killed. */
static void sweep(unsigned long long death_ticks) {
  char buffer[TEXT_BYTES] __attribute__((aligned(8)));
  int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return;
  long got;
  while ((got = syscall(SYS_getdents64, proc, buffer, sizeof buffer)) > 0) {
    for (long at = 0; at < got;) {
      const struct directory_entry *entry = (const void *)(buffer + at);
      at += entry->length;
      if (!isdigit((unsigned char)entry->name[0])) continue;
      struct sbx_procfs process;
      if (sbx_procfs_read(atoi(entry->name), &process) != 0 || !sbx_procfs_is_alive(&process))
        continue;
      if (process.group > 1 && process.started <= death_ticks && is_registered(process.group))
        kill(-process.group, SIGKILL);
    }
  }
  close(proc);
}

static unsigned long long now_ticks(void) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  long hz = sysconf(_SC_CLK_TCK);
  return (unsigned long long)now.tv_sec * (unsigned long long)hz +
         (unsigned long long)now.tv_nsec * (unsigned long long)hz / 1000000000u;
}

/* Gives back the private memory that was copied from us, in so far as it is large: all but the
 * stack this runs on and the thread's own data. The C library's own is small and stays. */
static void drop_memory(const void *stack) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static char text[64 * 1024];
  int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  size_t len = 0;
  ssize_t got;
  while (len < sizeof text - 1 && (got = read(fd, text + len, sizeof text - 1 - len)) > 0)
    len += (size_t)got;
  close(fd);
  text[len] = '\0';
  const void *keep[] = {stack, &errno, text, &table};
  for (char *line = text; line != NULL && *line != '\0';) {
    char *next = strchr(line, '\n');
    if (next == NULL) break; /* a line that was cut */
    *next++ = '\0';
    unsigned long from, to, inode;
    char flags[8];
    bool wanted = sscanf(line, "%lx-%lx %7s %*x %*x:%*x %lu", &from, &to, flags, &inode) == 4 &&
                  inode == 0 && to - from >= LARGE_BYTES && flags[1] == 'w' && flags[3] == 'p' &&
                  strstr(line, "[stack") == NULL;
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
      if ((unsigned long)keep[i] >= from && (unsigned long)keep[i] < to) wanted = false;
    if (wanted) madvise((void *)from, to - from, MADV_DONTNEED);
    line = next;
  }
#else
  (void)stack;
#endif
}

static bool parent_is_gone(int parent) {
  return getppid() != parent;
}

static int guard_main(void *arg) {
  static const int pauses_ms[] = {20, 50, 150, 280};
  int parent = (int)(intptr_t)arg;
  setsid();
  prctl(PR_SET_NAME, "sbx-guard");
  syscall(SYS_close_range, 0, ~0u, 0);
  if (chdir("/") != 0) _exit(1);
  /* Every function that is called later is called once now: binding one for the first time needs
   * the dynamic linker's memory. No process is as old as tick 0. */
  sweep(0);
  kill(getpid(), 0);
  poll(NULL, 0, 0);
  drop_memory(&parent);
  struct pollfd watch = {.fd = (int)syscall(SYS_pidfd_open, parent, 0), .events = POLLIN};
  while (!parent_is_gone(parent))
    poll(&watch, watch.fd >= 0, watch.fd >= 0 ? -1 : 100);
  if (atomic_load(&table.shared->clean)) _exit(0);
  unsigned long long death = now_ticks();
  sweep(death);
  /* A command that was being started when we died may still be on its way into the table. */
  for (size_t i = 0; i < sizeof pauses_ms / sizeof *pauses_ms; i++) {
    poll(NULL, 0, pauses_ms[i]);
    sweep(death);
  }
  _exit(0);
}

/* From here on: in the program. */

static struct sbx_guard_slot **link_of(const struct sbx_guard_slot *slot) {
  return &table.next_free[slot - table.shared->slots];
}

static int start_process(void) {
  void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return -errno;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  pid_t pid = clone(guard_main, (char *)stack + STACK_BYTES, CLONE_PIDFD,
                    (void *)(intptr_t)getpid(), &pidfd);
  int rc = pid < 0 ? -errno : 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  munmap(stack, STACK_BYTES);
  atomic_store(&table.guard_fd, pidfd);
  return rc;
}

int sbx_guard_start(void) {
  if (table.shared != NULL) return 0;
  void *memory =
      mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -errno;
  table.shared = memory;
  int rc = start_process();
  if (rc == 0) return 0;
  munmap(memory, sizeof(struct shared));
  table.shared = NULL;
  return rc;
}

int sbx_guard_fd(void) {
  return table.guard_fd;
}

static void bury(void) {
  siginfo_t info;
  waitid((idtype_t)P_PIDFD, (id_t)table.guard_fd, &info, WEXITED | __WALL);
  close(table.guard_fd);
  table.guard_fd = -1;
}

int sbx_guard_restart(void) {
  bury();
  return start_process();
}

void sbx_guard_stop(void) {
  syscall(SYS_pidfd_send_signal, table.guard_fd, SIGKILL, NULL, 0);
  bury();
  munmap(table.shared, sizeof(struct shared));
  table.shared = NULL;
}

void sbx_guard_end(void) {
  if (table.shared != NULL) atomic_store(&table.shared->clean, true);
}

int sbx_guard_take(struct sbx_guard_slot **slot) {
  int rc = 0;
  *slot = NULL;
  pthread_mutex_lock(&table.lock);
  if (table.free != NULL) {
    *slot = table.free;
    table.free = *link_of(*slot);
  } else if (table.shared != NULL) {
    if (table.unused < SLOTS)
      *slot = &table.shared->slots[table.unused++];
    else
      rc = -EAGAIN;
  }
  pthread_mutex_unlock(&table.lock);
  return rc;
}

void sbx_guard_give(struct sbx_guard_slot *slot) {
  if (slot == NULL) return;
  atomic_store(&slot->pid, 0);
  pthread_mutex_lock(&table.lock);
  *link_of(slot) = table.free;
  table.free = slot;
  pthread_mutex_unlock(&table.lock);
}
