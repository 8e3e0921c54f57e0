/* SPDX-License-Identifier: MIT
 *
 * Roots, whole files out of one (puts are in files_stream.c), and directories made on the host.
 *
 * Invariants: a path is resolved once, to a descriptor, and all else happens relative to that
 * descriptor; modes are set by chmod, so the umask of the program (which belongs to all its
 * threads) never shows.
 */
#define _GNU_SOURCE 1
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files_internal.h"
#include "files_stream.h"

enum { MODE_BITS = 07777, FIRST_READ = 4096, MAX_RACES = 64 };

int sbx_files_root_open(struct sbx_files_root *root, const char *path) {
  *root = (struct sbx_files_root){.fd = -1};
  if (path == NULL || *path == '\0') {
    return -EINVAL;
  }
  root->path = realpath(path, NULL);
  if (root->path == NULL) {
    return -errno;
  }
  root->fd = open(root->path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (root->fd < 0) {
    int rc = -errno;
    sbx_files_root_close(root);
    return rc;
  }
  return 0;
}

void sbx_files_root_close(struct sbx_files_root *root) {
  if (root->fd >= 0) {
    close(root->fd);
  }
  free(root->path);
  *root = (struct sbx_files_root){.fd = -1};
}

int sbx_files_random_name(const char *prefix, char *name) {
  uint64_t random;
  ssize_t got;
  do {
    got = getrandom(&random, sizeof random, 0);
  } while (got < 0 && errno == EINTR);
  if (got != (ssize_t)sizeof random) {
    return got < 0 ? -errno : -EIO;
  }
  snprintf(name, SBX_FILES_NAME_SIZE, "%.15s%016llx", prefix, (unsigned long long)random);
  return 0;
}

static void proc_path(int fd, char *path, size_t size) {
  snprintf(path, size, "/proc/self/fd/%d", fd);
}

/* The link in /proc works also for a file that has been removed: ENOENT can only mean no /proc,
 * and must not pass for a missing file. */
static int proc_error(void) {
  return errno == ENOENT ? -ENOSYS : -errno;
}

int sbx_files_chmod_path(int fd, mode_t mode) {
  char path[SBX_FILES_NAME_SIZE];
  proc_path(fd, path, sizeof path);
  return chmod(path, mode) < 0 ? proc_error() : 0;
}

int sbx_files_reopen(int path_fd, int flags, int *fd) {
  char path[SBX_FILES_NAME_SIZE];
  proc_path(path_fd, path, sizeof path);
  *fd = open(path, flags | O_NOCTTY | O_CLOEXEC);
  return *fd < 0 ? proc_error() : 0;
}

int sbx_files_make_dir(int at, const char *name, mode_t mode) {
  struct stat st;
  if (mkdirat(at, name, mode) < 0) {
    return -errno;
  }
  /* O_PATH, for a umask may have left a directory that its owner cannot read. */
  int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return -errno;
  }
  int rc = 0;
  if (fstat(fd, &st) < 0) {
    rc = -errno;
  } else if ((st.st_mode & MODE_BITS) != mode) {
    rc = sbx_files_chmod_path(fd, mode);
  }
  close(fd);
  return rc;
}

/* Opens one component of a host path, making it if it is missing. */
static int enter_or_make(int at, const char *name, mode_t mode, int *fd) {
  int rc = -ENOENT;
  for (int tries = 0; tries < MAX_RACES; tries++) {
    *fd = openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*fd >= 0 || errno != ENOENT) {
      return *fd >= 0 ? 0 : -errno;
    }
    rc = sbx_files_make_dir(at, name, mode);
    if (rc < 0 && rc != -EEXIST && rc != -ENOENT) {
      return rc;
    }
  }
  /* A link to nowhere is missing when opened and there when made. */
  return rc < 0 ? rc : -ENOENT;
}

int sbx_files_make_dirs(const char *path, mode_t mode) {
  if (path == NULL || *path != '/') {
    return -EINVAL;
  }
  char *copy = strdup(path);
  if (copy == NULL) {
    return -ENOMEM;
  }
  char *save = NULL;
  int rc = 0;
  int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) {
    rc = -errno;
  }
  for (char *name = strtok_r(copy, "/", &save); rc == 0 && name != NULL;
       name = strtok_r(NULL, "/", &save)) {
    int next;
    rc = enter_or_make(at, name, mode & MODE_BITS, &next);
    close(at);
    at = next;
  }
  if (at >= 0) {
    close(at);
  }
  free(copy);
  return rc;
}

int sbx_files_open_dir(const struct sbx_files_root *root, const char *path, int *fd) {
  int dir = -1;
  int rc = 0;
  *fd = -1;
  if (path == NULL) {
    path = ".";
  }
  if (*path == '\0') {
    return -EINVAL;
  }
  if (*path == '/') {
    dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    rc = dir < 0 ? -errno : 0;
  } else {
    rc = sbx_files_resolve(root, path, O_DIRECTORY, false, &dir);
  }
  if (rc < 0) {
    return rc;
  }
  /* O_PATH asks no permission of the directory itself; looking up "." in it asks for x. */
  *fd = openat(dir, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  rc = *fd < 0 ? -errno : 0;
  close(dir);
  return rc;
}

/* Reads to the end of fd, which may be elsewhere than st_size says. */
static int read_all(int fd, off_t size_hint, void **data, size_t *len) {
  if ((uintmax_t)size_hint >= PTRDIFF_MAX) {
    return -EFBIG;
  }
  size_t size = size_hint > 0 ? (size_t)size_hint + 1 : FIRST_READ;
  size_t used = 0;
  char *buf = malloc(size);
  while (buf != NULL) {
    size_t got;
    int rc = sbx_files_read(fd, buf + used, size - used, &got);
    if (rc < 0) {
      free(buf);
      return rc;
    }
    used += got;
    if (used < size) {
      break;
    }
    char *grown = size > PTRDIFF_MAX / 2 ? NULL : realloc(buf, size * 2);
    if (grown == NULL) {
      free(buf);
    }
    buf = grown;
    size *= 2;
  }
  if (buf == NULL) {
    return -ENOMEM;
  }
  char *fitted = size - used > FIRST_READ / 4 ? realloc(buf, used > 0 ? used : 1) : NULL;
  *data = fitted != NULL ? fitted : buf;
  *len = used;
  return 0;
}

int sbx_files_get(const struct sbx_files_root *root, const char *path, void **data, size_t *len) {
  int fd;
  off_t size;
  int rc = sbx_files_open_read(root, path, &fd, &size);
  if (rc < 0) {
    return rc;
  }
  rc = read_all(fd, size, data, len);
  close(fd);
  return rc;
}
