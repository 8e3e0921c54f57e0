/* SPDX-License-Identifier: MIT
 *
 * proves: F2, F3
 *
 * Entries of a root: listing, looking at one, removing one; kinds, links, escapes, what is missing,
 * permissions, and a thread that swaps directories for links all the while.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <stdint.h>

#include "../files_stat.h"
#include "scratch.h"
#include "swap.h"

enum { NOBODY = 65534 };

static int scan_count(const struct scratch *s, const char *path) {
  struct sbx_files_entries entries;
  int rc = sbx_files_scan(&s->root, path, &entries);
  int count = rc == 0 ? (int)entries.count : rc;
  CHECK(rc == 0 || entries.list == NULL);
  sbx_files_entries_free(&entries);
  sbx_files_entries_free(&entries);
  return count;
}

/* The mode with the type, or -errno. */
static long long stat_mode(const struct scratch *s, const char *path) {
  struct sbx_files_entry entry = {0};
  int rc = sbx_files_stat(&s->root, path, &entry);
  CHECK(entry.name == NULL);
  return rc == 0 ? (long long)entry.mode : rc;
}

static const struct sbx_files_entry *find(const struct sbx_files_entries *entries,
                                          const char *name) {
  static const struct sbx_files_entry none;
  for (size_t i = 0; i < entries->count; i++) {
    if (strcmp(entries->list[i].name, name) == 0) return &entries->list[i];
  }
  return &none;
}

TEST(a_scan_tells_all) {
  struct scratch s;
  struct sbx_files_entries entries;
  scratch_make(&s);
  CHECK_EQ_INT(scan_count(&s, "."), 0);
  CHECK_EQ_INT(put_text(&s, "d/file", "12345"), 0);
  CHECK_EQ_INT(fchmodat(s.fd, "ws/d/file", 04751, 0), 0);
  struct timespec times[2] = {{.tv_sec = 7}, {.tv_sec = 1234567890, .tv_nsec = 500000000}};
  CHECK_EQ_INT(utimensat(s.fd, "ws/d/file", times, 0), 0);
  CHECK_EQ_INT(put_text(&s, "d/sub/x", ""), 0);
  CHECK_EQ_INT(put_text(&s, "d/.hidden", ""), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/d/link"), 0);
  CHECK_EQ_INT(mkfifoat(s.fd, "ws/d/fifo", 0600), 0);
  CHECK_EQ_INT(sbx_files_scan(&s.root, "d", &entries), 0);
  CHECK_EQ_INT(entries.count, 5);
  const struct sbx_files_entry *file = find(&entries, "file");
  CHECK_EQ_INT(file->mode, S_IFREG | 04751);
  CHECK_EQ_INT(file->size, 5);
  CHECK_EQ_INT(file->mtime.tv_sec, 1234567890);
  CHECK_EQ_INT(file->mtime.tv_nsec, 500000000);
  CHECK_EQ_INT(find(&entries, "sub")->mode, S_IFDIR | 0755);
  CHECK_EQ_INT(find(&entries, "link")->mode & S_IFMT, S_IFLNK);
  CHECK_EQ_INT(find(&entries, "fifo")->mode, S_IFIFO | 0600);
  CHECK_EQ_INT(find(&entries, ".hidden")->mode, S_IFREG | 0644);
  sbx_files_entries_free(&entries);
  scratch_drop(&s);
}

TEST(a_scan_of_many) {
  struct scratch s;
  char name[32];
  scratch_make(&s);
  for (int i = 0; i < 3000; i++) {
    snprintf(name, sizeof name, "d/%d", i);
    CHECK_EQ_INT(put_text(&s, name, ""), 0);
  }
  CHECK_EQ_INT(scan_count(&s, "d"), 3000);
  CHECK_EQ_INT(scan_count(&s, scratch_path(&s, "ws/d/")), 3000);
  scratch_drop(&s);
}

static void make_places(const struct scratch *s) {
  CHECK_EQ_INT(put_text(s, "dir/file", "text"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "out"), s->fd, "ws/out"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "out/none"), s->fd, "ws/dangling"), 0);
  CHECK_EQ_INT(symlinkat("dir", s->fd, "ws/in"), 0);
  CHECK_EQ_INT(symlinkat("loop", s->fd, "ws/loop"), 0);
  CHECK_EQ_INT(mkfifoat(s->fd, "ws/fifo", 0644), 0);
}

TEST(where_a_scan_may_look) {
  struct scratch s;
  scratch_make(&s);
  make_places(&s);
  alarm(60); /* an opened fifo would hang */
  CHECK_EQ_INT(scan_count(&s, "."), 6);
  CHECK_EQ_INT(scan_count(&s, s.root.path), 6);
  CHECK_EQ_INT(scan_count(&s, "in"), 1);
  CHECK_EQ_INT(scan_count(&s, "dir/.."), 6);
  CHECK_EQ_INT(scan_count(&s, "out"), -EXDEV);
  CHECK_EQ_INT(scan_count(&s, "dangling"), -EXDEV);
  CHECK_EQ_INT(scan_count(&s, ".."), -EXDEV);
  CHECK_EQ_INT(scan_count(&s, "/etc"), -EXDEV);
  CHECK_EQ_INT(scan_count(&s, scratch_path(&s, "out")), -EXDEV);
  CHECK_EQ_INT(scan_count(&s, "none"), -ENOENT);
  CHECK_EQ_INT(scan_count(&s, "dir/file"), -ENOTDIR);
  CHECK_EQ_INT(scan_count(&s, "dir/file/x"), -ENOTDIR);
  CHECK_EQ_INT(scan_count(&s, "fifo"), -ENOTDIR);
  CHECK_EQ_INT(scan_count(&s, "loop"), -ELOOP);
  CHECK_EQ_INT(scan_count(&s, ""), -EINVAL);
  alarm(0);
  scratch_drop(&s);
}

TEST(a_stat_tells_the_entry_itself) {
  struct scratch s;
  scratch_make(&s);
  make_places(&s);
  CHECK_EQ_INT(stat_mode(&s, "dir/file"), S_IFREG | 0644);
  CHECK_EQ_INT(stat_mode(&s, "in/file"), S_IFREG | 0644);
  CHECK_EQ_INT(stat_mode(&s, "dir"), S_IFDIR | 0755);
  CHECK_EQ_INT(stat_mode(&s, "dir/"), S_IFDIR | 0755);
  CHECK_EQ_INT(stat_mode(&s, "."), S_IFDIR | 0755);
  CHECK_EQ_INT(stat_mode(&s, "dir/.."), S_IFDIR | 0755);
  CHECK_EQ_INT(stat_mode(&s, s.root.path), S_IFDIR | 0755);
  CHECK_EQ_INT(stat_mode(&s, "fifo"), S_IFIFO | 0644);
  CHECK_EQ_INT(stat_mode(&s, "in/"), S_IFDIR | 0755);
  static const char *const links[] = {"out", "dangling", "in", "loop"};
  for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
    CHECK_EQ_INT(stat_mode(&s, links[i]) & S_IFMT, S_IFLNK);
  }
  CHECK_EQ_INT(stat_mode(&s, "none"), -ENOENT);
  CHECK_EQ_INT(stat_mode(&s, "none/x"), -ENOENT);
  CHECK_EQ_INT(stat_mode(&s, "dir/file/x"), -ENOTDIR);
  CHECK_EQ_INT(stat_mode(&s, "dir/file/"), -ENOTDIR);
  CHECK_EQ_INT(stat_mode(&s, "loop/x"), -ELOOP);
  static const char *const outside[] = {"..",          "../ws",      "out/",        "out/secret",
                                        "out/none",    "dangling/x", "dangling/",   "dir/../../x",
                                        "/etc/passwd", "/",          "none/../../x"};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    CHECK_EQ_INT(stat_mode(&s, outside[i]), -EXDEV);
  }
  CHECK_EQ_INT(stat_mode(&s, ""), -EINVAL);
  scratch_drop(&s);
}

TEST(a_removal_takes_the_entry_itself) {
  struct scratch s;
  scratch_make(&s);
  make_places(&s);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/empty", 0755), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "out", true), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dangling", false), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "loop", false), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "in/", true), -ENOTDIR);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "fifo/", false), -ENOTDIR);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "fifo", false), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dir", false), -ENOTEMPTY);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "empty//", false), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "in/file", false), 0);
  CHECK_EQ_INT(put_text(&s, "dir/a/b/c", "text"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/dir/a/link"), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "in", true), 0);
  CHECK_EQ_INT(scratch_entries(&s, "ws/dir"), 1);
  CHECK_EQ_INT(sbx_files_remove(&s.root, scratch_path(&s, "ws/dir/"), true), 0);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 0);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dir", true), -ENOENT);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dir", false), -ENOENT);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dir/x/y", false), -ENOENT);
  scratch_drop(&s);
}

TEST(what_no_removal_takes) {
  struct scratch s;
  scratch_make(&s);
  make_places(&s);
  CHECK_EQ_INT(symlinkat(".", s.fd, "ws/self"), 0);
  static const char *const inside[] = {".", "./", "dir/..", "dir/.", "self/.", "self/./"};
  for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
    CHECK_EQ_INT(sbx_files_remove(&s.root, inside[i], true), -EINVAL);
  }
  CHECK_EQ_INT(sbx_files_remove(&s.root, s.root.path, true), -EINVAL);
  CHECK_EQ_INT(sbx_files_remove(&s.root, scratch_path(&s, "ws/"), true), -EINVAL);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "", true), -EINVAL);
  static const char *const outside[] = {"..",       "../ws",  "../out/secret", "out/secret",
                                        "out/none", "out/.",  "dangling/x",    "/etc/passwd",
                                        "/",        "out/..", "dir/../..",     "dir/../../ws"};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    CHECK_EQ_INT(sbx_files_remove(&s.root, outside[i], true), -EXDEV);
  }
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dir/file/x", true), -ENOTDIR);
  CHECK_EQ_INT(sbx_files_remove(&s.root, "dir/file/", true), -ENOTDIR);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 7);
  scratch_drop(&s);
}

static void as_nobody(void *arg) {
  const struct scratch *s = arg;
  if (geteuid() == 0) {
    CHECK_EQ_INT(setegid(NOBODY), 0);
    CHECK_EQ_INT(seteuid(NOBODY), 0);
  }
  CHECK_EQ_INT(put_text(s, "own/d/file", "text"), 0);
  CHECK_EQ_INT(fchmodat(s->fd, "ws/own/d", 0555, 0), 0);
  CHECK_EQ_INT(sbx_files_remove(&s->root, "own/d/file", false), -EACCES);
  CHECK_EQ_INT(fchmodat(s->fd, "ws/own/d", 0444, 0), 0);
  CHECK_EQ_INT(scan_count(s, "own/d"), -EACCES);
  CHECK_EQ_INT(stat_mode(s, "own/d/file"), -EACCES);
  CHECK_EQ_INT(fchmodat(s->fd, "ws/own/d", 0111, 0), 0);
  CHECK_EQ_INT(scan_count(s, "own/d"), -EACCES);
  CHECK_EQ_INT(stat_mode(s, "own/d/file"), S_IFREG | 0644);
  CHECK_EQ_INT(sbx_files_remove(&s->root, "own/d", true), 0);
}

TEST(permissions_are_not_missing_files) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(fchmodat(s.fd, ".", 0755, 0), 0);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/own", 0755), 0);
  if (geteuid() == 0) {
    CHECK_EQ_INT(fchownat(s.fd, "ws/own", NOBODY, NOBODY, 0), 0);
  }
  check_in_child(as_nobody, &s);
  scratch_drop(&s);
}

static void entry_round(const struct scratch *s, struct swap_count *count) {
  struct sbx_files_entries entries;
  struct sbx_files_entry entry = {0};
  swap_counts(count, put_text(s, "d/file", "inside"));
  int rc = sbx_files_scan(&s->root, "d", &entries);
  swap_counts(count, rc);
  if (rc == 0) CHECK_EQ_INT(find(&entries, "secret")->size, strlen("a decoy"));
  sbx_files_entries_free(&entries);
  rc = sbx_files_stat(&s->root, "d/secret", &entry);
  swap_counts(count, rc);
  if (rc == 0) CHECK_EQ_INT(entry.size, strlen("a decoy"));
  swap_counts(count, put_text(s, "e/secret", "inside"));
  swap_counts(count, sbx_files_remove(&s->root, "d/file", false));
  /* Where "e" is a link, what is outside has these names too: it would go, or be seen. */
  static const char *const paths[] = {"e/out/secret", "e/out", "e/ws/d/secret"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    CHECK(stat_mode(s, paths[i]) < 0);
    CHECK(sbx_files_remove(&s->root, paths[i], true) < 0);
    CHECK(scan_count(s, paths[i]) < 0);
  }
}

TEST(swapping_directories_never_leads_outside) {
  run_swap_race(entry_round, 1.5);
}

CHECK_MAIN()
