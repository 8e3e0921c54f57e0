/* SPDX-License-Identifier: MIT
 *
 * What /proc tells of a process. No memory is allocated and no lock taken, so a forked process with
 * threads may ask too.
 */
#ifndef SBX_PROCFS_H
#define SBX_PROCFS_H

#include <stdbool.h>
#include <stddef.h>

struct sbx_procfs {
  char state; /* 'R', 'S', 'Z' ... */
  int group;
  unsigned long long started; /* clock ticks after the boot */
};

/* 0, or -errno: -ENOENT when there is no such process, or it is hidden. */
int sbx_procfs_read(int pid, struct sbx_procfs *process);
/* A zombie counts as gone: the init of a small machine may never reap it. */
bool sbx_procfs_is_alive(const struct sbx_procfs *process);
/* Reads a small file whole; the text is terminated. 0 or -errno. */
int sbx_procfs_text(const char *path, char *text, size_t room);

#endif
