/* SPDX-License-Identifier: MIT
 *
 * What is in a directory of a root, and locks that processes share through a root (see files.h).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "files.h"

struct names {
  char *data;
  size_t len, room;
};

static int add_name(struct names *names, const char *name) {
  size_t len = strlen(name) + 1;
  if (names->room - names->len < len) {
    size_t room = names->room * 2 > names->len + len ? names->room * 2 : names->len + len;
    char *grown = realloc(names->data, room);
    if (grown == NULL) return -ENOMEM;
    names->data = grown;
    names->room = room;
  }
  memcpy(names->data + names->len, name, len);
  names->len += len;
  return 0;
}

static int read_names(DIR *dir, struct names *names) {
  for (;;) {
    errno = 0;
    const struct dirent *entry = readdir(dir);
    if (entry == NULL) return -errno;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    int rc = add_name(names, entry->d_name);
    if (rc != 0) return rc;
  }
}

int sbx_files_list(const struct sbx_files_root *root, const char *path, void **data, size_t *len) {
  int place;
  int rc = sbx_files_open_dir(root, path, &place);
  if (rc != 0) return rc;
  int fd = openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  rc = fd < 0 ? -errno : 0;
  close(place);
  if (rc != 0) return rc;
  DIR *dir = fdopendir(fd);
  if (dir == NULL) {
    rc = -errno;
    close(fd);
    return rc;
  }
  struct names names = {.data = malloc(256), .room = 256};
  rc = names.data == NULL ? -ENOMEM : read_names(dir, &names);
  closedir(dir);
  if (rc != 0) {
    free(names.data);
    return rc;
  }
  *data = names.data;
  *len = names.len;
  return 0;
}

int sbx_files_try_lock(const struct sbx_files_root *root, const char *name, int *fd) {
  *fd = openat(root->fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (*fd < 0) return -errno;
  if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return 0;
  int rc = errno == EWOULDBLOCK ? -EAGAIN : -errno;
  close(*fd);
  *fd = -1;
  return rc;
}
