/* SPDX-License-Identifier: MIT
 *
 * Removes a directory tree that a hostile process may have built and may still be changing.
 *
 * A tree can be deeper than any stack, any number of descriptors and any path. So nothing is
 * walked down: a directory found inside another one is renamed up into the top directory under a
 * random name, and the work is a list of directories directly in top. The list is a stack, and a
 * directory goes as soon as what it held has been moved up, so a chain of any depth keeps it
 * short. Where a rename is refused (overlay and quota borders, a full disk) the directory stays
 * where it is and its path from top goes on the list above its parent's.
 *
 * Invariants: no link is followed; the number of descriptors is fixed; rmdir comes before anything
 * else, since it is what refuses mount points, so nothing inside one is ever touched.
 */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files_internal.h"

/* How often one directory is emptied before we believe that somebody keeps filling it. */
enum { MAX_ROUNDS = 32, MAX_NAMES = 16 };

struct item {
  char *path; /* owned, from top; NULL is top itself */
  int rounds;
};

struct removal {
  int parent;       /* borrowed */
  const char *name; /* borrowed: top's name in parent */
  int top;          /* owned */
  struct item *items;
  size_t count;
  size_t size;
  int error; /* the first hard one; 0 again once top is gone, for then all is */
};

static void note_error(struct removal *r, int rc) {
  if (r->error == 0) {
    r->error = rc;
  }
}

static int push(struct removal *r, char *path) {
  if (r->count == r->size) {
    size_t size = r->size == 0 ? 64 : r->size * 2;
    struct item *grown = realloc(r->items, size * sizeof *grown);
    if (grown == NULL) {
      free(path);
      return -ENOMEM;
    }
    r->items = grown;
    r->size = size;
  }
  r->items[r->count++] = (struct item){.path = path};
  return 0;
}

/* Removes a file or an empty directory. -ENOTEMPTY is the answer for a directory to be emptied;
 * a missing entry counts as removed. */
static int remove_entry(int at, const char *name, bool likely_dir) {
  int flags = likely_dir ? AT_REMOVEDIR : 0;
  for (int tries = 0; tries < MAX_NAMES; tries++) {
    if (unlinkat(at, name, flags) == 0 || errno == ENOENT) {
      return 0;
    }
    if (errno != (flags != 0 ? ENOTDIR : EISDIR)) {
      break;
    }
    flags ^= AT_REMOVEDIR;
  }
  return errno == EEXIST ? -ENOTEMPTY : -errno;
}

/* Opens a directory for reading, first made usable if its owner has shut himself out. */
static int open_dir(int at, const char *path, int *fd) {
  int rc = sbx_files_open_strict(at, path, O_RDONLY | O_DIRECTORY, RESOLVE_NO_XDEV, fd);
  if (rc == -EACCES) {
    int shut;
    rc = sbx_files_open_strict(at, path, O_PATH | O_DIRECTORY, RESOLVE_NO_XDEV, &shut);
    if (rc < 0) {
      return rc;
    }
    rc = sbx_files_chmod_path(shut, 0700);
    if (rc == 0) {
      rc = sbx_files_reopen(shut, O_RDONLY | O_DIRECTORY, fd);
    }
    close(shut);
  }
  struct stat st;
  /* Readable, but not to be changed: if that cannot be helped, the removals will say so. */
  if (rc == 0 && fstat(*fd, &st) == 0 && (st.st_mode & 0700) != 0700) {
    (void)fchmod(*fd, 0700);
  }
  return rc == -EXDEV ? -EBUSY : rc;
}

/* Moves a directory up into top. *path is its new name, owned. */
static int move_up(const struct removal *r, int from, const char *name, char **path) {
  char fresh[SBX_FILES_NAME_SIZE];
  bool opened = false;
  for (int tries = 0; tries < MAX_NAMES; tries++) {
    int rc = sbx_files_random_name(".sbx-rm-", fresh);
    if (rc < 0) {
      return rc;
    }
    rc = renameat2(from, name, r->top, fresh, RENAME_NOREPLACE);
    /* No such flag on this file system. Without it a directory replaces at most an empty one. */
    if (rc < 0 && errno == EINVAL) {
      rc = renameat(from, name, r->top, fresh);
    }
    if (rc == 0) {
      *path = strdup(fresh);
      return *path == NULL ? -ENOMEM : 0;
    }
    if (errno == EACCES && !opened) {
      /* A directory that changes its parent must itself be writable. */
      int fd;
      rc = open_dir(from, name, &fd);
      if (rc < 0) {
        return rc;
      }
      close(fd);
      opened = true;
    } else if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) {
      return -errno;
    }
  }
  return -EEXIST;
}

static char *join(const char *dir, const char *name) {
  char *path = NULL;
  if (dir == NULL) {
    return strdup(name);
  }
  return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

/* Puts a directory that holds something on the list. */
static void defer(struct removal *r, const char *dir, int at, const char *name) {
  char *path = NULL;
  int rc = -EXDEV;
  if (dir != NULL) {
    rc = move_up(r, at, name, &path);
  }
  if (rc == -ENOENT) {
    return;
  }
  if (rc < 0) {
    path = join(dir, name);
  }
  rc = path == NULL ? -ENOMEM : push(r, path);
  if (rc < 0) {
    note_error(r, rc);
  }
}

/* Removes what it can from a directory and lists the rest. path is borrowed, NULL for top. */
static void drain(struct removal *r, const char *path) {
  int fd;
  int rc = open_dir(r->top, path == NULL ? "." : path, &fd);
  if (rc < 0) {
    /* Gone or replaced by somebody: the next rmdir of it tells. */
    if (rc != -ENOENT && rc != -ENOTDIR && rc != -ELOOP) {
      note_error(r, rc);
    }
    return;
  }
  DIR *dir = fdopendir(fd);
  if (dir == NULL) {
    note_error(r, -errno);
    close(fd);
    return;
  }
  const struct dirent *entry;
  while (errno = 0, (entry = readdir(dir)) != NULL) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
      continue;
    }
    rc = remove_entry(fd, name, entry->d_type == DT_DIR);
    if (rc == -ENOTEMPTY) {
      defer(r, path, fd, name);
    } else if (rc < 0) {
      note_error(r, rc);
    }
  }
  if (errno != 0) {
    note_error(r, -errno);
  }
  closedir(dir);
}

/* rmdir of a listed directory, its parent reached without following links. */
static int remove_item(const struct removal *r, const char *path) {
  if (path == NULL) {
    return remove_entry(r->parent, r->name, true);
  }
  const char *slash = strrchr(path, '/');
  if (slash == NULL) {
    return remove_entry(r->top, path, true);
  }
  char *parent = strndup(path, (size_t)(slash - path));
  if (parent == NULL) {
    return -ENOMEM;
  }
  int at;
  int rc = sbx_files_open_strict(r->top, parent, O_PATH | O_DIRECTORY, RESOLVE_NO_XDEV, &at);
  free(parent);
  if (rc < 0) {
    return rc == -ENOENT ? 0 : rc;
  }
  rc = remove_entry(at, slash + 1, true);
  close(at);
  return rc;
}

/* Takes the item at index off the list, removed or given up (rc). Those above it can only be
 * directories moved out of it, so any order will do for them. */
static void settle(struct removal *r, size_t index, int rc) {
  if (rc < 0) {
    note_error(r, rc);
  } else if (r->items[index].path == NULL) {
    r->error = 0;
  }
  free(r->items[index].path);
  r->items[index] = r->items[--r->count];
}

/* One look at the last item: remove it, or empty it and list what must go before it. */
static void work_on_last(struct removal *r) {
  size_t index = r->count - 1;
  const char *path = r->items[index].path;
  int rc = remove_item(r, path);
  if (rc == -ENOTEMPTY) {
    int round = r->items[index].rounds++;
    /* After a hard error it need not become empty; once it is emptied all the same. */
    if (round < MAX_ROUNDS && (round == 0 || r->error == 0)) {
      drain(r, path);
      /* Before what was moved out of it, or a chain would be listed whole. Any failure comes
       * again when its turn does. */
      rc = r->count > index + 1 ? remove_item(r, path) : rc;
      if (rc < 0) {
        return;
      }
    }
  }
  settle(r, index, rc);
}

int sbx_files_remove_tree(int parent_fd, const char *name) {
  if (*name == '\0' || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
      strcmp(name, "..") == 0) {
    return -EINVAL;
  }
  /* ENOTDIR, ELOOP: it was a directory when looked at, and then no more. */
  int rc = -ELOOP;
  struct removal r = {.parent = parent_fd, .name = name, .top = -1};
  for (int tries = 0; (rc == -ELOOP || rc == -ENOTDIR) && tries < MAX_ROUNDS; tries++) {
    rc = remove_entry(parent_fd, name, false);
    if (rc != -ENOTEMPTY) {
      return rc;
    }
    rc = open_dir(parent_fd, name, &r.top);
  }
  if (rc < 0) {
    return rc == -ENOENT ? 0 : rc;
  }
  rc = push(&r, NULL);
  while (rc == 0 && r.count > 0) {
    work_on_last(&r);
  }
  free(r.items);
  close(r.top);
  return rc < 0 ? rc : r.error;
}
