/* SPDX-License-Identifier: MIT
 *
 * Reading /proc (see procfs.h).
 */
#include "procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STAT_MAX 1024
#define STARTED_FIELD 22

int sbx_procfs_text(const char *path, char *text, size_t room) {
  text[0] = '\0';
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  ssize_t got = read(fd, text, room - 1);
  int rc = got < 0 ? -errno : 0;
  close(fd);
  text[got > 0 ? got : 0] = '\0';
  return rc;
}

/* "pid (name) state parent group ...": the name may hold anything, so the fields are counted from
 * its last parenthesis, behind which comes the third. */
int sbx_procfs_read(int pid, struct sbx_procfs *process) {
  char path[64], text[STAT_MAX];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int rc = sbx_procfs_text(path, text, sizeof text);
  if (rc != 0) return rc == -ESRCH ? -ENOENT : rc; /* it went between open and read */
  const char *field = strrchr(text, ')');
  int parent;
  if (field == NULL || sscanf(field, ") %c %d %d", &process->state, &parent, &process->group) != 3)
    return -EINVAL;
  for (int i = 2; i < STARTED_FIELD; i++) {
    field = strchr(field + 1, ' ');
    if (field == NULL) return -EINVAL;
  }
  return sscanf(field, " %llu", &process->started) == 1 ? 0 : -EINVAL;
}

bool sbx_procfs_is_alive(const struct sbx_procfs *process) {
  return process->state != 'Z' && process->state != 'X';
}
