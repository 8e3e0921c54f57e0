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

#include "procfs.h"

#define HOST_MAX 112
#define BOOT_MAX 64
#define NAMESPACE_MAX 48

struct identity {
  char host[HOST_MAX];
  char boot[BOOT_MAX];
  char pid_namespace[NAMESPACE_MAX];
  int pid;
  unsigned long long started; /* clock ticks after the boot */
};

/* The machine's id and its name. Either alone may be shared: ids by cloned machines, names by
 * chance. A machine without an id is known by its name. */
static void read_host(char host[HOST_MAX]) {
  char id[48], name[HOST_MAX - sizeof id] = "";
  if (sbx_procfs_text("/etc/machine-id", id, sizeof id) != 0) id[0] = '\0';
  id[strcspn(id, "\n/")] = '\0';
  gethostname(name, sizeof name - 1);
  name[strcspn(name, "/")] = '\0';
  snprintf(host, HOST_MAX, "%s+%s", id, name);
}

static int read_place(struct identity *identity) {
  read_host(identity->host);
  int rc =
      sbx_procfs_text("/proc/sys/kernel/random/boot_id", identity->boot, sizeof identity->boot);
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
  struct sbx_procfs process;
  int rc = read_place(&self);
  if (rc == 0) rc = sbx_procfs_read(self.pid, &process);
  if (rc != 0) return rc;
  self.started = process.started;
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
  struct sbx_procfs process;
  if (sbx_procfs_read(owner.pid, &process) == 0)
    return process.started == owner.started && sbx_procfs_is_alive(&process);
  /* /proc may hide other users' processes; a signal's permission check does not. */
  return kill(owner.pid, 0) == 0 || errno != ESRCH;
}
