/* SPDX-License-Identifier: MIT
 *
 * A place for the file tests: a fresh directory with "ws" in it, which is the root under test, and
 * "out" beside it, which nothing may ever reach: it holds the file "secret" and must hold nothing
 * else in the end.
 */
#ifndef SBX_TESTS_SCRATCH_H
#define SBX_TESTS_SCRATCH_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "../files.h"
#include "check.h"

#define SECRET "the canary outside"

struct scratch {
  char path[PATH_MAX]; /* absolute, free of links */
  int fd;
  struct sbx_files_root root; /* of ws */
};

static inline void scratch_make(struct scratch *s) {
  char name[PATH_MAX];
  const char *tmp = getenv("TMPDIR");
  snprintf(name, sizeof name, "%s/sbx-test-XXXXXX", tmp != NULL && *tmp != '\0' ? tmp : "/tmp");
  if (mkdtemp(name) == NULL || realpath(name, s->path) == NULL) {
    perror(name);
    exit(2);
  }
  s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CHECK_EQ_INT(mkdirat(s->fd, "ws", 0755), 0);
  CHECK_EQ_INT(mkdirat(s->fd, "out", 0755), 0);
  int fd = openat(s->fd, "out/secret", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  CHECK_EQ_INT(write(fd, SECRET, strlen(SECRET)), (ssize_t)strlen(SECRET));
  close(fd);
  snprintf(name, sizeof name, "%.4000s/ws", s->path);
  CHECK_EQ_INT(sbx_files_root_open(&s->root, name), 0);
}

/* An absolute path below the scratch directory; one buffer per thread. */
static inline const char *scratch_path(const struct scratch *s, const char *below) {
  static _Thread_local char path[PATH_MAX + 512];
  snprintf(path, sizeof path, "%s/%.500s", s->path, below);
  return path;
}

/* Entries of a directory, "." and ".." not counted; -1 if there is none. */
static inline int scratch_entries(const struct scratch *s, const char *name) {
  int count = 0;
  int fd = openat(s->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (dir == NULL) {
    return -1;
  }
  while (readdir(dir) != NULL) {
    count++;
  }
  closedir(dir);
  return count - 2;
}

static inline mode_t scratch_mode(const struct scratch *s, const char *name) {
  struct stat st;
  return fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? st.st_mode & 07777 : (mode_t)-1;
}

static inline int put_text(const struct scratch *s, const char *path, const char *text) {
  return sbx_files_put(&s->root, path, text, strlen(text));
}

/* 1 if the file holds exactly text, 0 if it holds something else, else -errno. */
static inline int holds(const struct scratch *s, const char *path, const char *text) {
  void *data = NULL;
  size_t len = 0;
  int rc = sbx_files_get(&s->root, path, &data, &len);
  if (rc == 0) {
    rc = len == strlen(text) && memcmp(data, text, len) == 0;
    free(data);
  }
  return rc;
}

static inline int get_error(const struct scratch *s, const char *path) {
  void *data = NULL;
  size_t len = 0;
  int rc = sbx_files_get(&s->root, path, &data, &len);
  free(data);
  return rc;
}

static inline int dir_error(const struct scratch *s, const char *path) {
  int fd;
  int rc = sbx_files_open_dir(&s->root, path, &fd);
  if (fd >= 0) {
    close(fd);
  }
  return rc;
}

static inline void scratch_drop(struct scratch *s) {
  CHECK_EQ_INT(scratch_entries(s, "out"), 1);
  sbx_files_root_close(&s->root);
  close(s->fd);
  char *slash = strrchr(s->path, '/');
  *slash = '\0';
  int parent = open(slash == s->path ? "/" : s->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  CHECK_EQ_INT(sbx_files_remove_tree(parent, slash + 1), 0);
  close(parent);
}

#endif
