/* SPDX-License-Identifier: MIT
 *
 * Process identities from /proc (see owner.h).
 */
#define _GNU_SOURCE
#include "owner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_MAX 112
#define BOOT_MAX 64
#define NAMESPACE_MAX 48
#define STAT_MAX 1024

struct identity {
  char host[HOST_MAX];
  char boot[BOOT_MAX];
  char pid_namespace[NAMESPACE_MAX];
  int pid;
  unsigned long long started; /* clock ticks after the boot */
};

static int read_text(const char *path, char *text, size_t room) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  ssize_t got = read(fd, text, room - 1);
  int rc = got < 0 ? -errno : 0;
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  return rc;
}

/* State and start time of a process. The name in parentheses may hold anything, so fields are
 * counted from its last parenthesis: state is the 3rd, the start time the 22nd. */
static int read_stat(int pid, char *state, unsigned long long *started) {
  char path[64], text[STAT_MAX];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int rc = read_text(path, text, sizeof text);
  if (rc != 0) return rc;
  const char *field = strrchr(text, ')');
  if (field == NULL || sscanf(field, ") %c", state) != 1) return -EINVAL;
  for (int i = 2; i < 22; i++) {
    field = strchr(field + 1, ' ');
    if (field == NULL) return -EINVAL;
  }
  return sscanf(field, " %llu", started) == 1 ? 0 : -EINVAL;
}

/* The machine's id and its name. Either alone may be shared: ids by cloned machines, names by
 * chance. A machine without an id is known by its name. */
static void read_host(char host[HOST_MAX]) {
  char id[48], name[HOST_MAX - sizeof id] = "";
  if (read_text("/etc/machine-id", id, sizeof id) != 0) id[0] = '\0';
  id[strcspn(id, "\n/")] = '\0';
  gethostname(name, sizeof name - 1);
  name[strcspn(name, "/")] = '\0';
  snprintf(host, HOST_MAX, "%s+%s", id, name);
}

static int read_place(struct identity *identity) {
  read_host(identity->host);
  int rc = read_text("/proc/sys/kernel/random/boot_id", identity->boot, sizeof identity->boot);
  if (rc != 0) return rc;
  identity->boot[strcspn(identity->boot, "\n")] = '\0';
  ssize_t len =
      readlink("/proc/self/ns/pid", identity->pid_namespace, sizeof identity->pid_namespace - 1);
  if (len < 0) return -errno;
  identity->pid_namespace[len] = '\0';
  return 0;
}

int sbx_owner_self(char text[SBX_OWNER_MAX]) {
  struct identity self = {.pid = getpid()};
  char state;
  int rc = read_place(&self);
  if (rc == 0) rc = read_stat(self.pid, &state, &self.started);
  if (rc != 0) return rc;
  int len = snprintf(text, SBX_OWNER_MAX, "%s/%s/%s/%d/%llu", self.host, self.boot,
                     self.pid_namespace, self.pid, self.started);
  return len > 0 && len < SBX_OWNER_MAX ? 0 : -ENAMETOOLONG;
}

static bool parse(const char *text, struct identity *identity) {
  int end = 0;
  return sscanf(text, "%111[^/]/%63[^/]/%47[^/]/%d/%llu%n", identity->host, identity->boot,
                identity->pid_namespace, &identity->pid, &identity->started, &end) == 5 &&
         text[end] == '\0' && identity->pid > 0;
}

bool sbx_owner_may_live(const char *text) {
  struct identity owner, here = {0};
  if (!parse(text, &owner) || read_place(&here) != 0) return true;
  if (strcmp(owner.host, here.host) != 0) return true;
  if (strcmp(owner.boot, here.boot) != 0) return false;
  if (strcmp(owner.pid_namespace, here.pid_namespace) != 0) return true;
  char state;
  unsigned long long started;
  int rc = read_stat(owner.pid, &state, &started);
  if (rc == 0) return started == owner.started && state != 'Z' && state != 'X';
  /* /proc may hide other users' processes; a signal's permission check does not. */
  return kill(owner.pid, 0) == 0 || errno != ESRCH;
}
