/* SPDX-License-Identifier: MIT
 *
 * Entries of a root's directories: what is there, and removing one.
 *
 * As everywhere in files.h a path is contained, -EXDEV tells of one that leads outside, -ENOENT
 * only of one that does not exist, and all functions block and return 0 or -errno. The last
 * component of a path is never followed here, but for the directory of a scan: a link is an entry
 * like others.
 */
#ifndef SBX_FILES_STAT_H
#define SBX_FILES_STAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "files.h"

struct sbx_files_entry {
  char *name;  /* owned; NULL from sbx_files_stat */
  mode_t mode; /* with the type, as in struct stat */
  int64_t size;
  struct timespec mtime;
};

/* {0} is an empty one. */
struct sbx_files_entries {
  struct sbx_files_entry *list; /* owned */
  size_t count, room;
};

void sbx_files_entries_free(struct sbx_files_entries *entries);

/* The entries of a directory, without "." and "..", in no order; one that goes meanwhile is left
 * out. -ENOTDIR for what is no directory. *entries is empty on failure. */
int sbx_files_scan(const struct sbx_files_root *root, const char *path,
                   struct sbx_files_entries *entries);

int sbx_files_stat(const struct sbx_files_root *root, const char *path,
                   struct sbx_files_entry *entry);

/* Removes the entry at path: a link itself, a directory that holds something only if recursive
 * (-ENOTEMPTY), and then as sbx_files_remove_tree. -EINVAL for the root itself and for a path that
 * ends in "." or "..", -ENOTDIR for a slash behind what is no directory. */
int sbx_files_remove(const struct sbx_files_root *root, const char *path, bool recursive);

#endif
