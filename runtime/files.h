/* SPDX-License-Identifier: MIT
 *
 * Files of one sandbox directory (the root): whole-file put and get, a directory to run in, and
 * making and removing directory trees.
 *
 * Nothing a relative path says, no symlink in the root and no process that swaps one while we
 * look leads outside of it: -EXDEV, also where the place outside does not exist. An absolute path
 * counts as relative when it lies below root->path component by component. What is opened in the
 * end is opened by openat2 (without it: by components) with links forbidden; text decides nothing.
 *
 * All functions block and are meant for worker threads. They share nothing, so any number may run
 * at once, also on one root; none touches cwd, umask or signals. A program with RLIMIT_FSIZE set
 * calls put with SIGXFSZ blocked, and gets -EFBIG. All return 0 or -errno. /proc must be mounted.
 */
#ifndef SBX_FILES_H
#define SBX_FILES_H

#include <stddef.h>
#include <sys/types.h>

/* Owned by the caller, who closes it; the functions below borrow it. */
struct sbx_files_root {
  int fd;     /* owned, O_PATH | O_DIRECTORY; -1 when closed */
  char *path; /* owned, absolute and free of links; NULL when closed */
};

/* Opens an existing directory. On failure *root is as after a close. "" is -EINVAL. */
int sbx_files_root_open(struct sbx_files_root *root, const char *path);

/* Idempotent after an open, failed or not. */
void sbx_files_root_close(struct sbx_files_root *root);

/* Replaces the file at path by the borrowed bytes at once, making missing parents (0755). Keeps
 * the mode of an existing regular file, else 0644; a symlink is replaced itself. -EISDIR for a
 * directory or a path that can only be one, -ENOTSUP for a fifo, socket or device, -ENOTDIR
 * below a file. A put that failed leaves no file of its own; parents it made stay. */
int sbx_files_put(const struct sbx_files_root *root, const char *path, const void *data,
                  size_t len);

/* The bytes of the regular file at path. *data is owned by the caller (free), never NULL on
 * success, and untouched on failure. -ENOENT only when the path does not exist, -EISDIR,
 * -ENOTSUP and -ENOTDIR as in put; nothing but a regular file is ever opened for reading. */
int sbx_files_get(const struct sbx_files_root *root, const char *path, void **data, size_t *len);

/* A directory to run a command in, as an O_PATH descriptor owned by the caller. NULL is the root;
 * relative is contained; absolute is opened as it is, for it is the caller's own affair. -ENOTDIR
 * for anything else, -EACCES when it cannot be entered. *fd is -1 on failure. */
int sbx_files_open_dir(const struct sbx_files_root *root, const char *path, int *fd);

/* Makes the missing directories of an absolute path of the host, each with exactly this mode;
 * those that exist stay as they are. */
int sbx_files_make_dirs(const char *path, mode_t mode);

/* Removes one entry of the directory parent_fd (borrowed, O_PATH will do) with all below it,
 * never through a link, with a fixed number of descriptors at any depth. Goes on past what cannot
 * be removed, then returns the first reason: -EBUSY for a mount point, whose content is not
 * touched; -ENOTEMPTY when some process keeps adding. A missing entry is 0. */
int sbx_files_remove_tree(int parent_fd, const char *name);

/* The names in a directory, each followed by a NUL, without "." and "..". *names is owned by the
 * caller (free) and never NULL on success. */
int sbx_files_list(const struct sbx_files_root *root, const char *path, void **names, size_t *len);

/* Takes the lock of the file at name in the root, making it (0600) when it is missing; it is held
 * until *fd (owned) is closed, and goes with the process. -EAGAIN: somebody holds it. */
int sbx_files_try_lock(const struct sbx_files_root *root, const char *name, int *fd);

#endif
