/* SPDX-License-Identifier: MIT
 *
 * proves: F2, L2
 *
 * The removal of trees that somebody made hard to remove: deep, wide, without permissions, full
 * of links to outside, with mounts in it, and still being written to.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "scratch.h"

enum { NOBODY = 65534, DEEP = 5000, FILLERS = 2 };

/* While positive, a file appears in a directory "refilled" whenever it is about to be removed. */
static atomic_int refills;

int unlinkat(int at, const char *name, int flags) {
  if ((flags & AT_REMOVEDIR) != 0 && strcmp(name, "refilled") == 0 && atomic_load(&refills) > 0) {
    atomic_fetch_sub(&refills, 1);
    close(openat(at, "refilled/again", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  }
  return (int)syscall(SYS_unlinkat, at, name, flags);
}

static void touch(int at, const char *name) {
  int fd = openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  CHECK(fd >= 0);
  close(fd);
}

/* A chain of directories below at, with a file and a second directory at each level. Its names
 * of 200 bytes make the path far longer than any call takes. */
static void make_deep(int at, int depth, mode_t mode) {
  char name[201];
  memset(name, 'd', 200);
  name[200] = '\0';
  int here = openat(at, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < depth; i++) {
    CHECK_EQ_INT(mkdirat(here, name, 0755), 0);
    int next = openat(here, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (i > 0) {
      CHECK_EQ_INT(fchmodat(here, ".", mode, 0), 0);
    }
    close(here);
    here = next;
    touch(here, "file");
    CHECK_EQ_INT(mkdirat(here, "side", 0755), 0);
  }
  close(here);
}

static void remove_with_few_descriptors(void *arg) {
  const struct scratch *s = arg;
  int used = dup(0);
  close(used);
  struct rlimit limit;
  CHECK_EQ_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = (rlim_t)used + 6;
  CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s->root.fd, "deep"), 0);
}

TEST(a_deep_tree_takes_no_more_descriptors) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(mkdirat(s.root.fd, "deep", 0755), 0);
  int deep = openat(s.root.fd, "deep", O_PATH | O_DIRECTORY | O_CLOEXEC);
  make_deep(deep, DEEP, 0755);
  close(deep);
  touch(s.root.fd, "kept");
  int before = check_open_descriptors();
  check_in_child(remove_with_few_descriptors, &s);
  CHECK_EQ_INT(check_open_descriptors(), before);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  scratch_drop(&s);
}

TEST(a_wide_tree_goes_whole) {
  struct scratch s;
  char name[64];
  scratch_make(&s);
  for (int i = 0; i < 800; i++) {
    snprintf(name, sizeof name, "t/%d/%d/a", i % 7, i);
    CHECK_EQ_INT(put_text(&s, name, ""), 0);
    snprintf(name, sizeof name, "t/%d/%d/b/.sbx-rm-0000000000000000", i % 7, i);
    CHECK_EQ_INT(put_text(&s, name, ""), 0);
  }
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "t"), 0);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 0);
  scratch_drop(&s);
}

TEST(links_are_removed_and_not_followed) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "t/a/b/file", ""), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/t/link"), 0);
  CHECK_EQ_INT(symlinkat("../../../../out", s.fd, "ws/t/a/b/link"), 0);
  CHECK_EQ_INT(symlinkat("out", s.fd, "top"), 0);
  CHECK_EQ_INT(mkfifoat(s.fd, "ws/t/a/fifo", 0644), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "t"), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s.fd, "top"), 0);
  CHECK_EQ_INT(faccessat(s.fd, "top", F_OK, AT_SYMLINK_NOFOLLOW), -1);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 0);
  scratch_drop(&s);
}

TEST(one_entry_by_its_name) {
  struct scratch s;
  scratch_make(&s);
  touch(s.root.fd, "file");
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "file"), 0);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "file"), 0);
  static const char *const names[] = {"", ".", "..", "a/b", "/"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, names[i]), -EINVAL);
  }
  CHECK_EQ_INT(sbx_files_remove_tree(-1, "x"), -EBADF);
  scratch_drop(&s);
}

static void shut_and_remove(void *arg) {
  const struct scratch *s = arg;
  if (geteuid() == 0) {
    CHECK_EQ_INT(setegid(NOBODY), 0);
    CHECK_EQ_INT(seteuid(NOBODY), 0);
  }
  static const char *const shut[] = {"own/t/a/b/c", "own/t/a/b", "own/t/a", "own/t/r/x/y",
                                     "own/t/r/x",   "own/t/r",   "own/t/w", "own/t"};
  static const mode_t modes[] = {000, 0500, 000, 0500, 0555, 0444, 0200, 000};
  char name[64];
  for (size_t i = 0; i < sizeof shut / sizeof *shut; i++) {
    snprintf(name, sizeof name, "%s/file", shut[i]);
    CHECK_EQ_INT(put_text(s, name, ""), 0);
  }
  for (size_t i = 0; i < sizeof shut / sizeof *shut; i++) {
    snprintf(name, sizeof name, "ws/%s", shut[i]);
    CHECK_EQ_INT(fchmodat(s->fd, name, modes[i], 0), 0);
  }
  int own = openat(s->fd, "ws/own", O_PATH | O_DIRECTORY | O_CLOEXEC);
  CHECK_EQ_INT(sbx_files_remove_tree(own, "t"), 0);
  CHECK_EQ_INT(scratch_entries(s, "ws/own"), 0);
  CHECK_EQ_INT(mkdirat(own, "t", 0755), 0);
  int deep = openat(own, "t", O_PATH | O_DIRECTORY | O_CLOEXEC);
  make_deep(deep, 50, 0500);
  close(deep);
  CHECK_EQ_INT(sbx_files_remove_tree(own, "t"), 0);
  CHECK_EQ_INT(scratch_entries(s, "ws/own"), 0);
  /* What belongs to another is reported; all else goes. */
  CHECK_EQ_INT(sbx_files_remove_tree(own, "none"), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s->fd, "out"), geteuid() == NOBODY ? -EACCES : 0);
  close(own);
}

TEST(directories_their_owner_has_shut) {
  struct scratch s;
  scratch_make(&s);
  if (geteuid() != 0) {
    scratch_drop(&s);
    SKIP("needs root, to become another user");
  }
  CHECK_EQ_INT(fchmodat(s.fd, ".", 0755, 0), 0);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/own", 0755), 0);
  CHECK_EQ_INT(fchownat(s.fd, "ws/own", NOBODY, NOBODY, 0), 0);
  check_in_child(shut_and_remove, &s);
  scratch_drop(&s);
}

static void remove_mounts(void *arg) {
  const struct scratch *s = arg;
  if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, NULL) != 0) {
    _exit(77);
  }
  char out[PATH_MAX];
  snprintf(out, sizeof out, "%.4000s/out", s->path);
  CHECK_EQ_INT(mount(out, scratch_path(s, "ws/t/a/m"), "", MS_BIND, NULL), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s->root.fd, "t"), -EBUSY);
  CHECK_EQ_INT(faccessat(s->fd, "out/secret", F_OK, 0), 0);
  CHECK_EQ_INT(mount(out, scratch_path(s, "ws/top"), "", MS_BIND, NULL), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s->root.fd, "top"), -EBUSY);
  CHECK_EQ_INT(faccessat(s->fd, "out/secret", F_OK, 0), 0);
}

TEST(a_mount_point_is_busy_and_its_content_stays) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "t/a/m/file", ""), 0);
  CHECK_EQ_INT(put_text(&s, "t/a/z/file", ""), 0);
  CHECK_EQ_INT(put_text(&s, "t/b/c/file", ""), 0);
  CHECK_EQ_INT(mkdirat(s.root.fd, "top", 0755), 0);
  int status = -1;
  pid_t pid = fork();
  if (pid == 0) {
    atomic_store(&check_failures, 0);
    remove_mounts(&s);
    _exit(atomic_load(&check_failures) > 0 ? 1 : 0);
  }
  CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    scratch_drop(&s);
    SKIP("needs the right to mount");
  }
  CHECK_EQ_INT(status, 0);
  /* All but the way to the mount point is gone. */
  CHECK_EQ_INT(scratch_entries(&s, "ws/t"), 1);
  CHECK_EQ_INT(faccessat(s.fd, "ws/t/a/m/file", F_OK, 0), 0);
  scratch_drop(&s);
}

struct filler {
  int dir;
  atomic_bool stop;
  atomic_uint threads;
};

/* Half of them fill the tree's top, half a directory in it. */
static void *keep_filling(void *arg) {
  struct filler *f = arg;
  char name[32];
  unsigned me = atomic_fetch_add(&f->threads, 1);
  for (unsigned i = 0; !atomic_load(&f->stop); i++) {
    mkdirat(f->dir, "sub", 0755);
    snprintf(name, sizeof name, "%s%u-%u", me % 2 == 0 ? "" : "sub/", me, i % 50);
    int fd = openat(f->dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) {
      close(fd);
    }
  }
  return NULL;
}

TEST(a_tree_that_is_being_filled) {
  struct scratch s;
  pthread_t threads[FILLERS];
  scratch_make(&s);
  for (int i = 0; i < 10; i++) {
    CHECK_EQ_INT(put_text(&s, "t/sub/file", ""), 0);
    struct filler filler = {.dir = openat(s.fd, "ws/t", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    for (int t = 0; t < FILLERS; t++) {
      CHECK_EQ_INT(pthread_create(&threads[t], NULL, keep_filling, &filler), 0);
    }
    alarm(60);
    int rc = sbx_files_remove_tree(s.root.fd, "t");
    CHECK(rc == 0 || rc == -ENOTEMPTY);
    alarm(0);
    atomic_store(&filler.stop, true);
    for (int t = 0; t < FILLERS; t++) {
      pthread_join(threads[t], NULL);
    }
    close(filler.dir);
    CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "t"), 0);
    CHECK_EQ_INT(scratch_entries(&s, "ws"), 0);
  }
  scratch_drop(&s);
}

TEST(a_tree_refilled_for_ever_is_given_up) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "refilled/file", ""), 0);
  atomic_store(&refills, 5);
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "refilled"), 0);
  CHECK_EQ_INT(atomic_load(&refills), 0);
  CHECK_EQ_INT(put_text(&s, "refilled/file", ""), 0);
  CHECK_EQ_INT(put_text(&s, "t/a/refilled/file", ""), 0);
  atomic_store(&refills, 100000);
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "refilled"), -ENOTEMPTY);
  CHECK(atomic_load(&refills) > 99000);
  /* A directory moved up has another name, and is not refilled any more. */
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "t"), 0);
  atomic_store(&refills, 0);
  scratch_drop(&s);
}

static void *swap_entries(void *arg) {
  struct filler *f = arg;
  while (!atomic_load(&f->stop)) {
    /* "n" is never a link, so this thread itself writes nothing outside. */
    mkdirat(f->dir, "n", 0755);
    mkdirat(f->dir, "n/x", 0755);
    renameat(f->dir, "n", f->dir, "a");
    symlinkat("../../out", f->dir, "l");
    renameat2(f->dir, "a", f->dir, "l", RENAME_EXCHANGE);
    unlinkat(f->dir, "a", 0);
  }
  return NULL;
}

TEST(a_tree_whose_directories_turn_into_links) {
  struct scratch s;
  pthread_t thread;
  scratch_make(&s);
  for (int i = 0; i < 50; i++) {
    CHECK_EQ_INT(put_text(&s, "t/a/x/file", ""), 0);
    CHECK_EQ_INT(symlinkat("../../out", s.fd, "ws/t/l"), 0);
    /* A deletion of its own must never follow; what it returns is the swapper's doing. */
    struct filler filler = {.dir = openat(s.fd, "ws/t", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    CHECK_EQ_INT(pthread_create(&thread, NULL, swap_entries, &filler), 0);
    (void)sbx_files_remove_tree(s.root.fd, "t");
    atomic_store(&filler.stop, true);
    pthread_join(thread, NULL);
    close(filler.dir);
    CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "t"), 0);
    CHECK_EQ_INT(faccessat(s.fd, "out/secret", F_OK, 0), 0);
  }
  scratch_drop(&s);
}

CHECK_MAIN()
