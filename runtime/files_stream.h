/* SPDX-License-Identifier: MIT
 *
 * Files of a root in pieces, so that one of any size passes through a bounded memory: a writer for
 * a put, an open descriptor for a get.
 *
 * What files.h says of put and get holds here too: containment, atomic replacement, modes, which
 * error means what. A writer's bytes go to a file of its own (0600) beside the target, which takes
 * the target's name in the commit and not before. All functions block, return 0 or -errno, and may
 * run on any thread; one writer serves one thread at a time.
 */
#ifndef SBX_FILES_STREAM_H
#define SBX_FILES_STREAM_H

#include <stddef.h>
#include <sys/types.h>

#include "files.h"

/* {.dir = -1, .fd = -1} is a closed one. */
struct sbx_files_writer {
  int dir;            /* owned, O_PATH: where the target is */
  int fd;             /* owned: the new file */
  char *name;         /* owned: the target's name in dir */
  char temporary[32]; /* the new file's name in dir */
};

/* Begins a put, making missing parents. On failure *writer is closed and there is no new file. */
int sbx_files_writer_open(const struct sbx_files_root *root, const char *path,
                          struct sbx_files_writer *writer);

/* Adds the borrowed bytes. After a failure only an abort makes sense. */
int sbx_files_writer_write(struct sbx_files_writer *writer, const void *data, size_t len);

/* Replaces the target. The writer is closed then, and a failed commit has left no new file.
 * -ENOENT: the directory was removed meanwhile. */
int sbx_files_writer_commit(struct sbx_files_writer *writer);

/* Removes the new file and closes. Nothing on a closed writer. */
void sbx_files_writer_abort(struct sbx_files_writer *writer);

/* Opens the regular file at path for reading; *fd is owned by the caller, -1 on failure, *size
 * what its inode says. */
int sbx_files_open_read(const struct sbx_files_root *root, const char *path, int *fd, off_t *size);

/* Fills the buffer as far as the file goes; *got < size only at its end. */
int sbx_files_read(int fd, void *buffer, size_t size, size_t *got);

#endif
