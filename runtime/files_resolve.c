/* SPDX-License-Identifier: MIT
 *
 * Finds what a path means inside a root. The kernel does it in one openat2(RESOLVE_BENEATH)
 * whenever it can. It cannot where an absolute link points back inside (the kernel refuses all of
 * them), where parents are to be made, and where renames elsewhere on the machine keep disturbing
 * a ".."; then a walk in user space goes through the path one component at a time.
 *
 * Invariants of the walk: canon is a relative path without links, "." or ".."; fd refers to it;
 * each component is opened with O_NOFOLLOW, so a link is only ever read as text. The walk decides
 * nothing about safety: its result is canon, opened once more by the kernel from the root with
 * links forbidden. A process that swaps directories under it can make it fail, not escape.
 *
 * Where there is no openat2 (valgrind, an old seccomp filter) the same walk does all the work and
 * the last open goes by components too: as strict, but slower.
 */
#define _GNU_SOURCE 1
#include "files_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_LINKS = 40, MAX_RACES = 64, NEW_DIR_MODE = 0755 };

struct walk {
  const struct sbx_files_root *root;
  char *todo;  /* owned: the path still to go, links replaced by their targets */
  char *next;  /* into todo */
  char *canon; /* owned: where we are; "" is the root */
  size_t canon_len;
  size_t canon_size;
  size_t depth; /* components in canon */
  int fd;       /* owned, O_PATH */
  int links;
  bool make;
};

static int call_openat2(int at, const char *path, int flags, uint64_t resolve, int *fd) {
  struct open_how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC), .resolve = resolve};
  long got = syscall(SYS_openat2, at, path, &how, sizeof how);
  *fd = got < 0 ? -1 : (int)got;
  return got < 0 ? -errno : 0;
}

/* EPERM is what seccomp filters older than the call answer; it has no such error for our flags. */
static bool lacks_openat2(int rc) {
  return rc == -ENOSYS || rc == -EPERM;
}

static int open_component(int at, const char *name, int flags, int *fd) {
  struct stat st;
  *fd = -1;
  int seen = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (seen < 0) {
    return -errno;
  }
  int rc = 0;
  if (fstat(seen, &st) < 0) {
    rc = -errno;
  } else if (S_ISLNK(st.st_mode)) {
    rc = -ELOOP;
  } else if ((flags & O_DIRECTORY) != 0 && !S_ISDIR(st.st_mode)) {
    rc = -ENOTDIR;
  }
  if (rc == 0 && (flags & O_PATH) != 0) {
    *fd = seen;
    return 0;
  }
  if (rc == 0) {
    rc = sbx_files_reopen(seen, flags, fd);
  }
  close(seen);
  return rc;
}

static int open_by_component(int at, const char *path, int flags, int *fd) {
  char *copy = strdup(path);
  if (copy == NULL) {
    return -ENOMEM;
  }
  int here = -1;
  int rc = 0;
  for (char *name = copy; rc == 0 && name != NULL;) {
    char *slash = strchr(name, '/');
    if (slash != NULL) {
      *slash = '\0';
    }
    int from = here >= 0 ? here : at;
    rc = open_component(from, name, slash != NULL ? O_PATH | O_DIRECTORY : flags, fd);
    if (here >= 0) {
      close(here);
    }
    here = *fd;
    name = slash != NULL ? slash + 1 : NULL;
  }
  free(copy);
  return rc;
}

int sbx_files_open_strict(int at, const char *path, int flags, uint64_t resolve, int *fd) {
  int rc = call_openat2(at, path, flags, resolve | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, fd);
  return lacks_openat2(rc) ? open_by_component(at, path, flags, fd) : rc;
}

/* Skips slashes and "." components. */
static const char *skip_nothing(const char *path) {
  for (;;) {
    if (path[0] == '/') {
      path++;
    } else if (path[0] == '.' && (path[1] == '/' || path[1] == '\0')) {
      path++;
    } else {
      return path;
    }
  }
}

static const char *below_prefix(const char *prefix, const char *path) {
  for (;;) {
    prefix = skip_nothing(prefix);
    if (*prefix == '\0') {
      path += strspn(path, "/");
      return *path == '\0' ? "." : path;
    }
    path = skip_nothing(path);
    size_t len = strcspn(prefix, "/");
    if (strcspn(path, "/") != len || memcmp(prefix, path, len) != 0) {
      return NULL;
    }
    prefix += len;
    path += len;
  }
}

const char *sbx_files_below(const struct sbx_files_root *root, const char *path) {
  return path[0] == '/' ? below_prefix(root->path, path) : path;
}

int sbx_files_split(const struct sbx_files_root *root, const char *path, char **parent,
                    const char **name) {
  const char *inside = sbx_files_below(root, path);
  if (inside == NULL) {
    return -EXDEV;
  }
  if (*inside == '\0') {
    return -EINVAL;
  }
  const char *slash = strrchr(inside, '/');
  *name = slash == NULL ? inside : slash + 1;
  *parent = slash == NULL ? strdup(".") : strndup(inside, (size_t)(slash - inside + 1));
  return *parent == NULL ? -ENOMEM : 0;
}

bool sbx_files_is_entry(const char *name) {
  return *name != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Whether a path leaves a directory depth levels below the root upwards, were it all real. */
static bool climbs_out(size_t depth, const char *path) {
  while (*(path = skip_nothing(path)) != '\0') {
    size_t len = strcspn(path, "/");
    if (len == 2 && path[0] == '.' && path[1] == '.') {
      if (depth-- == 0) {
        return true;
      }
    } else {
      depth++;
    }
    path += len;
  }
  return false;
}

/* ELOOP here means that a link came after we had looked: a race, told apart by -ESTALE. */
static int open_canon(const struct walk *w, int flags, int *fd) {
  const char *path = w->canon_len > 0 ? w->canon : ".";
  int rc = sbx_files_open_strict(w->root->fd, path, O_PATH | flags, 0, fd);
  return rc == -ELOOP ? -ESTALE : rc;
}

static int walk_reopen(struct walk *w) {
  if (w->fd >= 0) {
    close(w->fd);
  }
  return open_canon(w, O_DIRECTORY, &w->fd);
}

static int walk_up(struct walk *w) {
  if (w->canon_len == 0) {
    return -EXDEV;
  }
  while (w->canon_len > 0 && w->canon[w->canon_len - 1] != '/') {
    w->canon_len--;
  }
  if (w->canon_len > 0) {
    w->canon_len--;
  }
  w->canon[w->canon_len] = '\0';
  w->depth--;
  return walk_reopen(w);
}

/* Goes on at name, whose descriptor fd passes to the walk, also on failure. */
static int walk_down(struct walk *w, const char *name, int fd) {
  close(w->fd);
  w->fd = fd;
  size_t len = strlen(name);
  size_t need = w->canon_len + len + 2;
  if (need > w->canon_size) {
    char *grown = realloc(w->canon, need * 2);
    if (grown == NULL) {
      return -ENOMEM;
    }
    w->canon = grown;
    w->canon_size = need * 2;
  }
  if (w->canon_len > 0) {
    w->canon[w->canon_len++] = '/';
  }
  memcpy(w->canon + w->canon_len, name, len + 1);
  w->canon_len += len;
  w->depth++;
  return 0;
}

/* Puts the target of the link in place of its name; rest is NULL or what followed its slash. */
static int walk_follow(struct walk *w, int link_fd, const char *rest) {
  char target[PATH_MAX];
  if (++w->links > MAX_LINKS) {
    return -ELOOP;
  }
  ssize_t got = readlinkat(link_fd, "", target, sizeof target);
  if (got < 0) {
    return -errno;
  }
  if ((size_t)got == sizeof target) {
    return -ENAMETOOLONG;
  }
  target[got] = '\0';
  const char *inside = sbx_files_below(w->root, target);
  if (inside == NULL) {
    return -EXDEV;
  }
  size_t len = strlen(inside);
  size_t rest_len = rest == NULL ? 0 : strlen(rest);
  char *todo = malloc(len + rest_len + 2);
  if (todo == NULL) {
    return -ENOMEM;
  }
  memcpy(todo, inside, len + 1);
  if (rest != NULL) {
    todo[len] = '/';
    memcpy(todo + len + 1, rest, rest_len + 1);
  }
  free(w->todo);
  w->todo = w->next = todo;
  if (target[0] != '/') {
    return 0;
  }
  w->canon_len = w->depth = 0;
  w->canon[0] = '\0';
  return walk_reopen(w);
}

/* Opens name in the current directory, making it if that is asked for. */
static int walk_open(struct walk *w, const char *name, const char *rest, int *fd) {
  for (int tries = 0; tries < MAX_RACES; tries++) {
    *fd = openat(w->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (*fd >= 0) {
      return 0;
    }
    if (errno != ENOENT) {
      return -errno;
    }
    if (rest != NULL && climbs_out(w->depth + 1, rest)) {
      return -EXDEV;
    }
    if (!w->make) {
      return -ENOENT;
    }
    int rc = sbx_files_make_dir(w->fd, name, NEW_DIR_MODE);
    if (rc < 0 && rc != -EEXIST) {
      return rc;
    }
  }
  return -ESTALE;
}

static int walk_enter(struct walk *w, const char *name, const char *rest) {
  struct stat st;
  int fd;
  int rc = walk_open(w, name, rest, &fd);
  if (rc < 0) {
    return rc;
  }
  if (fstat(fd, &st) < 0) {
    rc = -errno;
  } else if (S_ISLNK(st.st_mode)) {
    rc = walk_follow(w, fd, rest);
  } else if (rest != NULL && !S_ISDIR(st.st_mode)) {
    rc = -ENOTDIR;
  } else {
    return walk_down(w, name, fd);
  }
  close(fd);
  return rc;
}

static int walk_all(struct walk *w) {
  for (;;) {
    w->next += strspn(w->next, "/");
    if (*w->next == '\0') {
      return 0;
    }
    char *name = w->next;
    char *slash = strchr(name, '/');
    char *rest = NULL;
    if (slash != NULL) {
      *slash = '\0';
      rest = slash + 1;
    }
    w->next = rest != NULL ? rest : name + strlen(name);
    int rc = 0;
    if (strcmp(name, "..") == 0) {
      rc = walk_up(w);
    } else if (strcmp(name, ".") != 0) {
      rc = walk_enter(w, name, rest);
    }
    if (rc < 0) {
      return rc;
    }
  }
}

static int walk_once(const struct sbx_files_root *root, const char *path, int flags, bool make,
                     int *fd) {
  struct walk w = {.root = root, .fd = -1, .make = make, .canon_size = 256};
  w.todo = w.next = strdup(path);
  w.canon = malloc(w.canon_size);
  int rc = -ENOMEM;
  if (w.todo != NULL && w.canon != NULL) {
    w.canon[0] = '\0';
    rc = walk_reopen(&w);
  }
  if (rc == 0) {
    rc = walk_all(&w);
  }
  if (rc == 0) {
    rc = open_canon(&w, flags, fd);
  }
  if (w.fd >= 0) {
    close(w.fd);
  }
  free(w.canon);
  free(w.todo);
  return rc;
}

int sbx_files_resolve(const struct sbx_files_root *root, const char *path, int flags, bool make,
                      int *fd) {
  int rc = -EAGAIN;
  /* EAGAIN: a rename anywhere on the system came while the kernel went through a "..". */
  for (int tries = 0; rc == -EAGAIN && tries < MAX_RACES; tries++) {
    rc = call_openat2(root->fd, path, O_PATH | flags, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS, fd);
  }
  /* ENOENT too, for the walk tells a missing place inside from one that would be outside. */
  if (rc != -EXDEV && rc != -ENOENT && rc != -EAGAIN && !lacks_openat2(rc)) {
    return rc;
  }
  rc = -ESTALE;
  for (int tries = 0; rc == -ESTALE && tries < MAX_RACES; tries++) {
    rc = walk_once(root, path, flags, make, fd);
  }
  return rc == -ESTALE ? -EAGAIN : rc;
}
