/* SPDX-License-Identifier: MIT
 *
 * What the units files*.c share, and nobody else includes.
 * Paths here are relative to a directory descriptor, which is always borrowed; every *fd is
 * owned by the caller and -1 on failure.
 */
#ifndef SBX_FILES_INTERNAL_H
#define SBX_FILES_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "files.h"

enum { SBX_FILES_NAME_SIZE = 32 };

/* Opens a path without ".." below at, on which a link is -ELOOP. resolve: further RESOLVE_*
 * flags, as RESOLVE_NO_XDEV (-EXDEV at a mount point), which hold only where there is openat2. */
int sbx_files_open_strict(int at, const char *path, int flags, uint64_t resolve, int *fd);

/* The part of path below root, borrowed from path ("." for the root itself); NULL if outside. */
const char *sbx_files_below(const struct sbx_files_root *root, const char *path);

/* Splits path at its last component, the name (borrowed from path): "" behind a slash. *parent
 * (owned) is for sbx_files_resolve. -EXDEV for an absolute path outside, -EINVAL for "". */
int sbx_files_split(const struct sbx_files_root *root, const char *path, char **parent,
                    const char **name);

/* Whether a name from a split is one: not "", "." or "..". */
bool sbx_files_is_entry(const char *name);

/* An O_PATH descriptor of what path (as from sbx_files_below) names inside the root, all links
 * followed. flags may hold O_DIRECTORY; make adds the missing directories with mode 0755. */
int sbx_files_resolve(const struct sbx_files_root *root, const char *path, int flags, bool make,
                      int *fd);

/* mkdirat with exactly this mode whatever the umask; -EEXIST if anything has the name. */
int sbx_files_make_dir(int at, const char *name, mode_t mode);

/* chmod of what an O_PATH descriptor refers to. */
int sbx_files_chmod_path(int fd, mode_t mode);

/* Opens a file again by its O_PATH descriptor. */
int sbx_files_reopen(int path_fd, int flags, int *fd);

/* A name nobody can guess, in a buffer of SBX_FILES_NAME_SIZE; prefix of at most 15 bytes. */
int sbx_files_random_name(const char *prefix, char *name);

#endif
