/* SPDX-License-Identifier: MIT
 *
 * Puts, whole and in pieces, and gets in pieces.
 *
 * Invariants: a path is resolved once, to a descriptor of the target's directory, and all else of a
 * put happens in that directory, however long the put takes and whatever the path means by then.
 * The new file's name is random and of fixed length, for the target's name may already be as long
 * as names can be. Modes are set by chmod, so the umask of the program never shows. What a get
 * opens is first opened O_PATH, which has no side effect on a fifo or a device, and only a regular
 * file is opened again.
 */
#define _GNU_SOURCE 1
#include "files_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files_internal.h"

enum { NEW_FILE_MODE = 0644, MODE_BITS = 07777, MAX_RACES = 64 };

_Static_assert(sizeof((struct sbx_files_writer *)0)->temporary >= SBX_FILES_NAME_SIZE,
               "room for a random name");

/* One read or write moves at most 2 GiB less a page; whole files come in pieces. */
static const size_t MAX_PIECE = (size_t)1 << 30;

static int kind_error(mode_t mode) {
  return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? -EISDIR : -ENOTSUP;
}

/* What stands at the target's name may be replaced; *mode is what the new file will have. */
static int check_target(int dir, const char *name, mode_t *mode) {
  struct stat st;
  *mode = NEW_FILE_MODE;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno == ENOENT ? 0 : -errno;
  if (S_ISLNK(st.st_mode)) return 0;
  if (S_ISREG(st.st_mode)) *mode = st.st_mode & MODE_BITS;
  return kind_error(st.st_mode);
}

static int create_temporary(struct sbx_files_writer *writer) {
  for (int tries = 0;; tries++) {
    int rc = sbx_files_random_name(".sbx-put-", writer->temporary);
    if (rc < 0) return rc;
    writer->fd =
        openat(writer->dir, writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (writer->fd >= 0) return 0;
    if (errno != EEXIST || tries == MAX_RACES) return -errno;
  }
}

static void close_writer(struct sbx_files_writer *writer) {
  if (writer->fd >= 0) close(writer->fd);
  if (writer->dir >= 0) close(writer->dir);
  free(writer->name);
  *writer = (struct sbx_files_writer){.dir = -1, .fd = -1};
}

static int open_once(const struct sbx_files_root *root, const char *parent, const char *name,
                     struct sbx_files_writer *writer) {
  mode_t mode;
  *writer = (struct sbx_files_writer){.dir = -1, .fd = -1, .name = strdup(name)};
  int rc = writer->name == NULL ? -ENOMEM : 0;
  if (rc == 0) rc = sbx_files_resolve(root, parent, O_DIRECTORY, true, &writer->dir);
  if (rc == 0) rc = check_target(writer->dir, name, &mode);
  if (rc == 0) rc = create_temporary(writer);
  if (rc != 0) close_writer(writer);
  return rc;
}

static int split_target(const struct sbx_files_root *root, const char *path, char **parent,
                        const char **name) {
  int rc = sbx_files_split(root, path, parent, name);
  if (rc != 0) return rc;
  if (sbx_files_is_entry(*name)) return 0;
  free(*parent);
  return -EISDIR;
}

/* ENOENT: somebody removed a directory between our making and our using it. A removal can stay
 * half done for as long as its thread is not scheduled, so wait for longer each time. */
static bool try_again(int rc, unsigned *tries) {
  if (rc != -ENOENT || ++*tries == MAX_RACES) return false;
  usleep(50 * *tries);
  return true;
}

int sbx_files_writer_open(const struct sbx_files_root *root, const char *path,
                          struct sbx_files_writer *writer) {
  char *parent;
  const char *name;
  unsigned tries = 0;
  *writer = (struct sbx_files_writer){.dir = -1, .fd = -1};
  int rc = split_target(root, path, &parent, &name);
  if (rc != 0) return rc;
  do {
    rc = open_once(root, parent, name, writer);
  } while (try_again(rc, &tries));
  free(parent);
  return rc;
}

int sbx_files_writer_write(struct sbx_files_writer *writer, const void *data, size_t len) {
  const char *from = data;
  while (len > 0) {
    ssize_t put = write(writer->fd, from, len < MAX_PIECE ? len : MAX_PIECE);
    if (put == 0 || (put < 0 && errno != EINTR)) return put == 0 ? -EIO : -errno;
    if (put > 0) {
      from += put;
      len -= (size_t)put;
    }
  }
  return 0;
}

int sbx_files_writer_commit(struct sbx_files_writer *writer) {
  mode_t mode;
  int rc = check_target(writer->dir, writer->name, &mode);
  /* After the writing, which clears set-id bits. */
  if (rc == 0 && fchmod(writer->fd, mode) < 0) rc = -errno;
  /* A network file system may tell of a full disk only here. */
  if (close(writer->fd) < 0 && rc == 0 && errno != EINTR) rc = -errno;
  writer->fd = -1;
  if (rc == 0 && renameat(writer->dir, writer->temporary, writer->dir, writer->name) < 0)
    rc = -errno;
  if (rc != 0) unlinkat(writer->dir, writer->temporary, 0);
  close_writer(writer);
  return rc;
}

void sbx_files_writer_abort(struct sbx_files_writer *writer) {
  if (writer->fd >= 0) unlinkat(writer->dir, writer->temporary, 0);
  close_writer(writer);
}

int sbx_files_put(const struct sbx_files_root *root, const char *path, const void *data,
                  size_t len) {
  char *parent;
  const char *name;
  unsigned tries = 0;
  int rc = split_target(root, path, &parent, &name);
  if (rc != 0) return rc;
  do {
    struct sbx_files_writer writer;
    rc = open_once(root, parent, name, &writer);
    if (rc == 0) rc = sbx_files_writer_write(&writer, data, len);
    if (rc == 0) rc = sbx_files_writer_commit(&writer);
    sbx_files_writer_abort(&writer);
  } while (try_again(rc, &tries));
  free(parent);
  return rc;
}

int sbx_files_open_read(const struct sbx_files_root *root, const char *path, int *fd, off_t *size) {
  *fd = -1;
  const char *inside = sbx_files_below(root, path);
  if (inside == NULL) return -EXDEV;
  if (*inside == '\0') return -EINVAL;
  struct stat st;
  int path_fd;
  int rc = sbx_files_resolve(root, inside, 0, false, &path_fd);
  if (rc < 0) return rc;
  rc = fstat(path_fd, &st) < 0 ? -errno : kind_error(st.st_mode);
  if (rc == 0) rc = sbx_files_reopen(path_fd, O_RDONLY, fd);
  if (rc == 0) *size = st.st_size;
  close(path_fd);
  return rc;
}

int sbx_files_read(int fd, void *buffer, size_t size, size_t *got) {
  char *to = buffer;
  *got = 0;
  while (*got < size) {
    size_t room = size - *got;
    ssize_t count = read(fd, to + *got, room < MAX_PIECE ? room : MAX_PIECE);
    if (count < 0 && errno != EINTR) return -errno;
    if (count == 0) break;
    if (count > 0) *got += (size_t)count;
  }
  return 0;
}
