/* SPDX-License-Identifier: MIT
 *
 * proves: F1, F3, X3
 *
 * What a put leaves when others put, read and remove at the same time or when it fails, and what
 * a user without privileges meets: permissions, a directory that cannot be entered.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "scratch.h"

enum { NOBODY = 65534, BIG = 300000, ROUNDS = 150 };

struct writer {
  const struct scratch *s;
  char fill;
  atomic_int *running;
};

static void *put_many(void *arg) {
  const struct writer *w = arg;
  char *data = malloc(BIG);
  memset(data, w->fill, BIG);
  for (int i = 0; i < ROUNDS; i++) {
    CHECK_EQ_INT(sbx_files_put(&w->s->root, "dir/file", data, BIG), 0);
  }
  free(data);
  atomic_fetch_sub(w->running, 1);
  return NULL;
}

TEST(a_reader_sees_a_whole_file) {
  struct scratch s;
  pthread_t threads[2];
  scratch_make(&s);
  atomic_int running = 2;
  struct writer writers[2] = {{&s, 'a', &running}, {&s, 'b', &running}};
  for (int i = 0; i < 2; i++) {
    CHECK_EQ_INT(pthread_create(&threads[i], NULL, put_many, &writers[i]), 0);
  }
  while (atomic_load(&running) > 0) {
    char *bytes = NULL;
    void *data = NULL;
    size_t len = 0;
    int rc = sbx_files_get(&s.root, "dir/file", &data, &len);
    CHECK(rc == 0 || rc == -ENOENT);
    bytes = data;
    if (rc == 0) {
      CHECK_EQ_INT(len, BIG);
      CHECK(len == BIG && bytes[0] == bytes[BIG - 1] && bytes[0] == bytes[BIG / 2]);
    }
    free(data);
  }
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  CHECK_EQ_INT(scratch_entries(&s, "ws/dir"), 1);
  scratch_drop(&s);
}

struct remover {
  const struct scratch *s;
  atomic_bool stop;
};

static void *remove_often(void *arg) {
  struct remover *r = arg;
  while (!atomic_load(&r->stop)) {
    int rc = sbx_files_remove_tree(r->s->root.fd, "a");
    CHECK(rc == 0 || rc == -ENOTEMPTY);
    usleep(1000); /* a put has a fixed number of tries, each longer than a removal */
  }
  return NULL;
}

TEST(parents_removed_meanwhile_are_made_again) {
  struct scratch s;
  pthread_t thread;
  scratch_make(&s);
  struct remover remover = {.s = &s};
  CHECK_EQ_INT(pthread_create(&thread, NULL, remove_often, &remover), 0);
  for (int i = 0; i < 2000; i++) {
    CHECK_EQ_INT(put_text(&s, "a/b/c/file", "text"), 0);
  }
  atomic_store(&remover.stop, true);
  pthread_join(thread, NULL);
  scratch_drop(&s);
}

static void *make_same_dirs(void *arg) {
  const struct scratch *s = arg;
  char name[64];
  for (int i = 0; i < 300; i++) {
    snprintf(name, sizeof name, "ws/%d/a/b/c", i);
    CHECK_EQ_INT(sbx_files_make_dirs(scratch_path(s, name), 0700), 0);
    CHECK_EQ_INT(scratch_mode(s, name), 0700);
  }
  return NULL;
}

TEST(many_make_the_same_directories) {
  struct scratch s;
  pthread_t threads[4];
  scratch_make(&s);
  for (int i = 0; i < 4; i++) {
    CHECK_EQ_INT(pthread_create(&threads[i], NULL, make_same_dirs, &s), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  scratch_drop(&s);
}

static void put_past_the_limit(void *arg) {
  const struct scratch *s = arg;
  struct rlimit limit = {.rlim_cur = 100000, .rlim_max = 100000};
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  sigprocmask(SIG_BLOCK, &set, NULL);
  CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
  char *data = calloc(1, BIG);
  CHECK_EQ_INT(sbx_files_put(&s->root, "file", data, BIG), -EFBIG);
  CHECK_EQ_INT(sbx_files_put(&s->root, "new", data, BIG), -EFBIG);
  free(data);
}

TEST(a_failed_put_leaves_nothing) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "file", "old"), 0);
  check_in_child(put_past_the_limit, &s);
  CHECK_EQ_INT(holds(&s, "file", "old"), 1);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  scratch_drop(&s);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static void get_more_than_memory(void *arg) {
  const struct scratch *s = arg;
  struct rlimit limit = {.rlim_cur = 4LL << 30, .rlim_max = 4LL << 30};
  CHECK_EQ_INT(setrlimit(RLIMIT_AS, &limit), 0);
  CHECK_EQ_INT(get_error(s, "sparse"), -ENOMEM);
}

TEST(a_file_larger_than_memory_is_an_error) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "sparse", ""), 0);
  int fd = openat(s.fd, "ws/sparse", O_WRONLY | O_CLOEXEC);
  int rc = ftruncate(fd, 1LL << 40);
  close(fd);
  if (SANITIZED || rc < 0) {
    scratch_drop(&s);
    SKIP("no file of 1 TiB here, or a sanitizer's own allocator");
  }
  check_in_child(get_more_than_memory, &s);
  scratch_drop(&s);
}

static void as_nobody(void *arg) {
  const struct scratch *s = arg;
  if (geteuid() == 0) {
    CHECK_EQ_INT(setegid(NOBODY), 0);
    CHECK_EQ_INT(seteuid(NOBODY), 0);
  }
  umask(0777);
  CHECK_EQ_INT(put_text(s, "own/a/b/file", "text"), 0);
  CHECK_EQ_INT(scratch_mode(s, "ws/own/a/b"), 0755);
  CHECK_EQ_INT(scratch_mode(s, "ws/own/a/b/file"), 0644);
  CHECK_EQ_INT(holds(s, "own/a/b/file", "text"), 1);
  CHECK_EQ_INT(fchmodat(s->fd, "ws/own/a/b/file", 0, 0), 0);
  CHECK_EQ_INT(get_error(s, "own/a/b/file"), -EACCES);
  CHECK_EQ_INT(fchmodat(s->fd, "ws/own/a/b", 0555, 0), 0);
  CHECK_EQ_INT(put_text(s, "own/a/b/file", "no"), -EACCES);
  CHECK_EQ_INT(put_text(s, "own/a/b/new/file", "no"), -EACCES);
  CHECK_EQ_INT(dir_error(s, "own/a/b"), 0);
  CHECK_EQ_INT(fchmodat(s->fd, "ws/own/a", 0666, 0), 0);
  CHECK_EQ_INT(get_error(s, "own/a/b/file"), -EACCES);
  CHECK_EQ_INT(dir_error(s, "own/a"), -EACCES);
  CHECK_EQ_INT(dir_error(s, scratch_path(s, "ws/own/a")), -EACCES);
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

TEST(the_directory_of_a_command) {
  struct scratch s;
  struct stat a;
  struct stat b;
  int fd;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "dir/file", "text"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "ws/dir"), s.fd, "ws/link"), 0);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, NULL, &fd), 0);
  CHECK_EQ_INT(fstat(fd, &a) | fstat(s.root.fd, &b), 0);
  CHECK_EQ_INT(a.st_ino, b.st_ino);
  CHECK_EQ_INT(fcntl(fd, F_GETFD), FD_CLOEXEC);
  close(fd);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, "link", &fd), 0);
  CHECK_EQ_INT(fstat(fd, &a) | fstatat(s.fd, "ws/dir", &b, 0), 0);
  CHECK_EQ_INT(a.st_ino, b.st_ino);
  close(fd);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, scratch_path(&s, "out"), &fd), 0);
  CHECK_EQ_INT(faccessat(fd, "secret", F_OK, 0), 0);
  close(fd);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, "none", &fd), -ENOENT);
  CHECK_EQ_INT(fd, -1);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, "dir/file", &fd), -ENOTDIR);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, "..", &fd), -EXDEV);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, "", &fd), -EINVAL);
  CHECK_EQ_INT(sbx_files_open_dir(&s.root, scratch_path(&s, "none"), &fd), -ENOENT);
  CHECK_EQ_INT(fd, -1);
  scratch_drop(&s);
}

CHECK_MAIN()
