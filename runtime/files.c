/* SPDX-License-Identifier: MIT
 *
 * Whole files in and out of a root, and directories made on the host.
 *
 * Invariants: a path is resolved once, to a descriptor, and all else happens relative to that
 * descriptor; modes are set by chmod, so the umask of the program (which belongs to all its
 * threads) never shows. What get opens is first opened O_PATH, which has no side effect on a fifo
 * or a device, and only a regular file is opened again. A put writes a new file beside the old
 * one and renames it, so a reader sees one of the two whole; its name is random and of fixed
 * length, for the target's name may already be as long as names can be.
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

enum { NEW_FILE_MODE = 0644, MODE_BITS = 07777, FIRST_READ = 4096, MAX_RACES = 64 };

/* One read or write moves at most 2 GiB less a page; whole files come in pieces. */
static const size_t MAX_PIECE = (size_t)1 << 30;

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

static int kind_error(mode_t mode) {
  return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? -EISDIR : -ENOTSUP;
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
    size_t room = size - used;
    ssize_t got = read(fd, buf + used, room < MAX_PIECE ? room : MAX_PIECE);
    if (got < 0 && errno != EINTR) {
      int rc = -errno;
      free(buf);
      return rc;
    }
    if (got == 0) {
      break;
    }
    used += got > 0 ? (size_t)got : 0;
    if (used == size) {
      char *grown = size > PTRDIFF_MAX / 2 ? NULL : realloc(buf, size * 2);
      if (grown == NULL) {
        free(buf);
      }
      buf = grown;
      size *= 2;
    }
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
  const char *inside = sbx_files_below(root, path);
  if (inside == NULL) {
    return -EXDEV;
  }
  if (*inside == '\0') {
    return -EINVAL;
  }
  struct stat st;
  int path_fd;
  int fd = -1;
  int rc = sbx_files_resolve(root, inside, 0, false, &path_fd);
  if (rc < 0) {
    return rc;
  }
  rc = fstat(path_fd, &st) < 0 ? -errno : kind_error(st.st_mode);
  if (rc == 0) {
    rc = sbx_files_reopen(path_fd, O_RDONLY, &fd);
  }
  close(path_fd);
  if (rc == 0) {
    rc = read_all(fd, st.st_size, data, len);
  }
  if (fd >= 0) {
    close(fd);
  }
  return rc;
}

static int write_all(int fd, const void *data, size_t len) {
  const char *from = data;
  while (len > 0) {
    ssize_t put = write(fd, from, len < MAX_PIECE ? len : MAX_PIECE);
    if (put == 0 || (put < 0 && errno != EINTR)) {
      return put == 0 ? -EIO : -errno;
    }
    if (put > 0) {
      from += put;
      len -= (size_t)put;
    }
  }
  return 0;
}

/* A new file with these bytes under a name of its own in dir. On failure there is none. */
static int write_temporary(int dir, const void *data, size_t len, mode_t mode, char *name) {
  int fd = -1;
  for (int tries = 0; fd < 0; tries++) {
    int rc = sbx_files_random_name(".sbx-put-", name);
    if (rc < 0) {
      return rc;
    }
    fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && (errno != EEXIST || tries == MAX_RACES)) {
      return -errno;
    }
  }
  int rc = write_all(fd, data, len);
  /* After the writing, which clears set-id bits. */
  if (rc == 0 && fchmod(fd, mode) < 0) {
    rc = -errno;
  }
  /* A network file system may tell of a full disk only here. */
  if (close(fd) < 0 && rc == 0 && errno != EINTR) {
    rc = -errno;
  }
  if (rc < 0) {
    unlinkat(dir, name, 0);
  }
  return rc;
}

static int replace_in(int dir, const char *name, const void *data, size_t len) {
  char temporary[SBX_FILES_NAME_SIZE];
  struct stat st;
  mode_t mode = NEW_FILE_MODE;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
    int rc = S_ISLNK(st.st_mode) ? 0 : kind_error(st.st_mode);
    if (rc < 0) {
      return rc;
    }
    if (S_ISREG(st.st_mode)) {
      mode = st.st_mode & MODE_BITS;
    }
  } else if (errno != ENOENT) {
    return -errno;
  }
  int rc = write_temporary(dir, data, len, mode, temporary);
  if (rc == 0 && renameat(dir, temporary, dir, name) < 0) {
    rc = -errno;
    unlinkat(dir, temporary, 0);
  }
  return rc;
}

int sbx_files_put(const struct sbx_files_root *root, const char *path, const void *data,
                  size_t len) {
  const char *inside = sbx_files_below(root, path);
  if (inside == NULL) {
    return -EXDEV;
  }
  if (*inside == '\0') {
    return -EINVAL;
  }
  const char *slash = strrchr(inside, '/');
  const char *name = slash == NULL ? inside : slash + 1;
  if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
    return -EISDIR;
  }
  char *parent = slash == NULL ? strdup(".") : strndup(inside, (size_t)(slash - inside + 1));
  if (parent == NULL) {
    return -ENOMEM;
  }
  int rc = -ENOENT;
  /* ENOENT: somebody removed a directory between our making and our using it. A removal can stay
   * half done for as long as its thread is not scheduled, so wait for longer each time. */
  for (unsigned tries = 0; rc == -ENOENT && tries < MAX_RACES; tries++) {
    int dir;
    if (tries > 0) {
      usleep(50 * tries);
    }
    rc = sbx_files_resolve(root, parent, O_DIRECTORY, true, &dir);
    if (rc == 0) {
      rc = replace_in(dir, name, data, len);
      close(dir);
    }
  }
  free(parent);
  return rc;
}
