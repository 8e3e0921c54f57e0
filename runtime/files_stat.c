/* SPDX-License-Identifier: MIT
 *
 * Looks at entries of a root, and removes one (see files_stat.h).
 *
 * The parent of an entry is resolved to a descriptor, and the entry is then taken by its name in
 * that directory, never through a link. A path that ends in a slash, "." or ".." has no such name:
 * it is resolved whole, which is safe for a look; a removal takes the slashes off and refuses the
 * rest, so that the root itself is out of its reach.
 */
#define _GNU_SOURCE 1
#include "files_stat.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files_internal.h"

enum { MAX_RACES = 64 };

void sbx_files_entries_free(struct sbx_files_entries *entries) {
  for (size_t i = 0; i < entries->count; i++)
    free(entries->list[i].name);
  free(entries->list);
  *entries = (struct sbx_files_entries){0};
}

static void fill(struct sbx_files_entry *entry, const struct stat *st) {
  entry->mode = st->st_mode;
  entry->size = st->st_size;
  entry->mtime = st->st_mtim;
}

static int add_entry(struct sbx_files_entries *entries, int dir, const char *name) {
  struct stat st;
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return errno == ENOENT ? 0 : -errno;
  if (entries->count == entries->room) {
    size_t room = entries->room == 0 ? 16 : entries->room * 2;
    struct sbx_files_entry *grown = realloc(entries->list, room * sizeof *grown);
    if (grown == NULL) return -ENOMEM;
    entries->list = grown;
    entries->room = room;
  }
  struct sbx_files_entry *entry = &entries->list[entries->count];
  fill(entry, &st);
  entry->name = strdup(name);
  if (entry->name == NULL) return -ENOMEM;
  entries->count++;
  return 0;
}

static int read_entries(DIR *dir, struct sbx_files_entries *entries) {
  for (;;) {
    errno = 0;
    const struct dirent *found = readdir(dir);
    if (found == NULL) return -errno;
    if (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0) continue;
    int rc = add_entry(entries, dirfd(dir), found->d_name);
    if (rc != 0) return rc;
  }
}

int sbx_files_scan(const struct sbx_files_root *root, const char *path,
                   struct sbx_files_entries *entries) {
  *entries = (struct sbx_files_entries){0};
  const char *inside = sbx_files_below(root, path);
  if (inside == NULL) return -EXDEV;
  if (*inside == '\0') return -EINVAL;
  int place;
  int fd;
  int rc = sbx_files_resolve(root, inside, O_DIRECTORY, false, &place);
  if (rc != 0) return rc;
  rc = sbx_files_reopen(place, O_RDONLY | O_DIRECTORY, &fd);
  close(place);
  if (rc != 0) return rc;
  DIR *dir = fdopendir(fd);
  if (dir == NULL) {
    rc = -errno;
    close(fd);
    return rc;
  }
  rc = read_entries(dir, entries);
  closedir(dir);
  if (rc != 0) sbx_files_entries_free(entries);
  return rc;
}

int sbx_files_stat(const struct sbx_files_root *root, const char *path,
                   struct sbx_files_entry *entry) {
  char *parent;
  const char *name;
  struct stat st;
  int at = -1;
  int rc = sbx_files_split(root, path, &parent, &name);
  if (rc != 0) return rc;
  if (sbx_files_is_entry(name)) {
    rc = sbx_files_resolve(root, parent, O_DIRECTORY, false, &at);
  } else {
    rc = sbx_files_resolve(root, sbx_files_below(root, path), O_DIRECTORY, false, &at);
    name = "";
  }
  if (rc == 0 && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0) rc = -errno;
  if (rc == 0) {
    *entry = (struct sbx_files_entry){0};
    fill(entry, &st);
  }
  if (at >= 0) close(at);
  free(parent);
  return rc;
}

/* Removes what is no directory, or an empty one. */
static int remove_one(int at, const char *name, bool is_dir) {
  int flags = is_dir ? AT_REMOVEDIR : 0;
  for (int tries = 0; tries < MAX_RACES; tries++) {
    if (unlinkat(at, name, flags) == 0) return 0;
    /* It was the other kind when looked at. */
    if (errno != (flags != 0 ? ENOTDIR : EISDIR)) break;
    flags ^= AT_REMOVEDIR;
  }
  return errno == EEXIST ? -ENOTEMPTY : -errno;
}

static int remove_in(int at, const char *name, bool as_dir, bool recursive) {
  struct stat st;
  if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return -errno;
  bool is_dir = S_ISDIR(st.st_mode);
  if (as_dir && !is_dir) return -ENOTDIR;
  return is_dir && recursive ? sbx_files_remove_tree(at, name) : remove_one(at, name, is_dir);
}

int sbx_files_remove(const struct sbx_files_root *root, const char *path, bool recursive) {
  char *parent;
  const char *name;
  int at;
  size_t len = strlen(path);
  while (len > 1 && path[len - 1] == '/')
    len--;
  bool as_dir = path[len] == '/';
  char *trimmed = strndup(path, len);
  if (trimmed == NULL) return -ENOMEM;
  int rc = sbx_files_split(root, trimmed, &parent, &name);
  if (rc == 0) {
    bool is_entry = sbx_files_is_entry(name);
    rc = sbx_files_resolve(root, is_entry ? parent : sbx_files_below(root, trimmed), O_DIRECTORY,
                           false, &at);
    if (rc == 0) {
      rc = is_entry ? remove_in(at, name, as_dir, recursive) : -EINVAL;
      close(at);
    }
    free(parent);
  }
  free(trimmed);
  return rc;
}
