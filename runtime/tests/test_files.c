/* SPDX-License-Identifier: MIT
 *
 * proves: F1, F2, F3
 *
 * Put, get and the directories of commands: sizes, containment (also against a thread that swaps
 * a directory for a link), kinds of files, modes, failures. Also S13, S14, S17. The removal of
 * trees is in test_files_tree.c.
 */
#define _GNU_SOURCE 1
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include "scratch.h"

TEST(every_size_comes_back) {
  static const size_t sizes[] = {0, 1, 511, 512, 513, 65535, 65536, 65537, 10485761};
  struct scratch s;
  scratch_make(&s);
  unsigned char *bytes = malloc(10485761);
  unsigned seed = 12345;
  for (size_t i = 0; i < 10485761; i++) {
    seed = seed * 1103515245U + 12345U;
    bytes[i] = (unsigned char)(seed >> 16);
  }
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    void *data = NULL;
    size_t len = 99;
    CHECK_EQ_INT(sbx_files_put(&s.root, "a/b/file", bytes, sizes[i]), 0);
    CHECK_EQ_INT(sbx_files_get(&s.root, "a/b/file", &data, &len), 0);
    CHECK_EQ_INT(len, sizes[i]);
    CHECK(data != NULL);
    CHECK(data != NULL && memcmp(data, bytes, sizes[i]) == 0);
    free(data);
  }
  CHECK_EQ_INT(sbx_files_put(&s.root, "null", NULL, 0), 0);
  CHECK_EQ_INT(holds(&s, "null", ""), 1);
  free(bytes);
  scratch_drop(&s);
}

TEST(size_that_stat_does_not_know) {
  struct sbx_files_root root;
  void *data = NULL;
  size_t len = 0;
  CHECK_EQ_INT(sbx_files_root_open(&root, "/proc/self"), 0);
  CHECK_EQ_INT(sbx_files_get(&root, "smaps", &data, &len), 0);
  CHECK(len > 8192 && memmem(data, len, "VmFlags:", 8) != NULL);
  free(data);
  data = NULL;
  /* Links that are no paths: they would lead anywhere. */
  CHECK(sbx_files_get(&root, "exe", &data, &len) < 0);
  CHECK(sbx_files_get(&root, "root/etc/passwd", &data, &len) < 0);
  CHECK(data == NULL);
  sbx_files_root_close(&root);
  sbx_files_root_close(&root);
}

TEST(sibling_with_same_prefix_is_outside) {
  struct scratch s;
  struct sbx_files_root slashed;
  scratch_make(&s);
  CHECK_EQ_INT(mkdirat(s.fd, "ws-evil", 0755), 0);
  CHECK_EQ_INT(put_text(&s, "x", "inside"), 0);
  CHECK_EQ_INT(close(openat(s.fd, "ws-evil/x", O_WRONLY | O_CREAT | O_CLOEXEC, 0644)), 0);
  CHECK_EQ_INT(get_error(&s, scratch_path(&s, "ws-evil/x")), -EXDEV);
  CHECK_EQ_INT(get_error(&s, scratch_path(&s, "ws/../ws-evil/x")), -EXDEV);
  CHECK_EQ_INT(get_error(&s, "../ws-evil/x"), -EXDEV);
  CHECK_EQ_INT(get_error(&s, scratch_path(&s, "w/x")), -EXDEV);
  CHECK_EQ_INT(put_text(&s, scratch_path(&s, "ws-evil/new"), "no"), -EXDEV);
  CHECK_EQ_INT(put_text(&s, scratch_path(&s, "ws/../ws-evil/new"), "no"), -EXDEV);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "ws-evil/x"), s.fd, "ws/evil"), 0);
  CHECK_EQ_INT(get_error(&s, "evil"), -EXDEV);
  CHECK_EQ_INT(scratch_entries(&s, "ws-evil"), 1);
  CHECK_EQ_INT(holds(&s, scratch_path(&s, "ws/x"), "inside"), 1);
  CHECK_EQ_INT(holds(&s, scratch_path(&s, "/ws//./x"), "inside"), 1);
  CHECK_EQ_INT(get_error(&s, scratch_path(&s, "ws")), -EISDIR);
  CHECK_EQ_INT(put_text(&s, scratch_path(&s, "ws"), "no"), -EISDIR);

  CHECK_EQ_INT(sbx_files_root_open(&slashed, scratch_path(&s, "ws/")), 0);
  CHECK(strcmp(slashed.path, s.root.path) == 0);
  sbx_files_root_close(&slashed);
  CHECK_EQ_INT(sbx_files_root_open(&slashed, ""), -EINVAL);
  CHECK_EQ_INT(slashed.fd, -1);
  CHECK_EQ_INT(sbx_files_root_open(&slashed, scratch_path(&s, "none")), -ENOENT);
  CHECK_EQ_INT(sbx_files_root_open(&slashed, scratch_path(&s, "ws/x")), -ENOTDIR);
  CHECK_EQ_INT(slashed.fd, -1);
  scratch_drop(&s);
}

static void check_all_refused(const struct scratch *s) {
  static const char *const escapes[] = {
      "etc/hostname", "out/secret",   "out/none",     "out2/secret",   "up/out/secret", "dangling",
      "dangling/x",   "nope",         "nope/x",       "../x",          "../out/secret", "../ws/in",
      "a/../../x",    "none/../../x", "a/up2/secret", "through/secret"};
  for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
    int rc = get_error(s, escapes[i]);
    int dir = dir_error(s, escapes[i]);
    if (rc != -EXDEV || dir != -EXDEV) {
      fprintf(stderr, "%s: get %d, open_dir %d\n", escapes[i], rc, dir);
    }
    CHECK_EQ_INT(rc, -EXDEV);
    CHECK_EQ_INT(dir, -EXDEV);
    /* A put replaces a last link itself, so it is tried below each. */
    char below[300];
    snprintf(below, sizeof below, "%s/new", escapes[i]);
    CHECK_EQ_INT(put_text(s, below, "no"), -EXDEV);
  }
}

static void make_escapes(const struct scratch *s) {
  CHECK_EQ_INT(symlinkat("/etc", s->fd, "ws/etc"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "out"), s->fd, "ws/out"), 0);
  CHECK_EQ_INT(symlinkat("out", s->fd, "ws/out2"), 0);
  CHECK_EQ_INT(symlinkat("..", s->fd, "ws/up"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "out/new"), s->fd, "ws/dangling"), 0);
  CHECK_EQ_INT(symlinkat("/nope/x", s->fd, "ws/nope"), 0);
  CHECK_EQ_INT(mkdirat(s->fd, "ws/a", 0755), 0);
  CHECK_EQ_INT(symlinkat("../../out", s->fd, "ws/a/up2"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "ws/a/../../out"), s->fd, "ws/through"), 0);
}

TEST(links_that_lead_outside_are_refused) {
  struct scratch s;
  scratch_make(&s);
  make_escapes(&s);
  int before = scratch_entries(&s, "ws");
  check_all_refused(&s);
  CHECK_EQ_INT(put_text(&s, "../x", "no"), -EXDEV);
  CHECK_EQ_INT(put_text(&s, "none/../../x", "no"), -EXDEV);
  CHECK_EQ_INT(put_text(&s, "/etc/new", "no"), -EXDEV);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), before);
  CHECK_EQ_INT(faccessat(s.fd, "x", F_OK, 0), -1);
  scratch_drop(&s);
}

static void check_inner_links(const struct scratch *s) {
  CHECK_EQ_INT(put_text(s, "d/e/file", "inner"), 0);
  CHECK_EQ_INT(symlinkat("d/e", s->fd, "ws/rel"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "ws/d"), s->fd, "ws/abs"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "ws/rel/file"), s->fd, "ws/d/chain"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "ws"), s->fd, "ws/d/e/top"), 0);
  CHECK_EQ_INT(symlinkat("later/on", s->fd, "ws/to-come"), 0);
  CHECK_EQ_INT(symlinkat("loop", s->fd, "ws/loop"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(s, "ws/loop2"), s->fd, "ws/loop2"), 0);
  CHECK_EQ_INT(holds(s, "rel/file", "inner"), 1);
  CHECK_EQ_INT(holds(s, "abs/e/file", "inner"), 1);
  CHECK_EQ_INT(holds(s, "abs/chain", "inner"), 1);
  CHECK_EQ_INT(holds(s, "abs/../rel/top/abs/e/../chain", "inner"), 1);
  CHECK_EQ_INT(holds(s, "d/../d/./e//file", "inner"), 1);
  CHECK_EQ_INT(get_error(s, "abs/chain/"), -ENOTDIR);
  CHECK_EQ_INT(get_error(s, "abs/none"), -ENOENT);
  CHECK_EQ_INT(get_error(s, "to-come"), -ENOENT);
  CHECK_EQ_INT(get_error(s, "loop"), -ELOOP);
  CHECK_EQ_INT(get_error(s, "loop2"), -ELOOP);
  CHECK_EQ_INT(dir_error(s, "abs/e"), 0);

  CHECK_EQ_INT(put_text(s, "abs/made/here", "1"), 0);
  CHECK_EQ_INT(holds(s, "d/made/here", "1"), 1);
  CHECK_EQ_INT(put_text(s, "to-come/file", "2"), 0);
  CHECK_EQ_INT(holds(s, "later/on/file", "2"), 1);
  CHECK_EQ_INT(put_text(s, "rel/top/n/../m", "3"), 0);
  CHECK_EQ_INT(holds(s, "m", "3"), 1);
  CHECK_EQ_INT(put_text(s, "loop/x", "no"), -ELOOP);
  CHECK_EQ_INT(put_text(s, "loop2/x", "no"), -ELOOP);
}

TEST(links_that_stay_inside_work) {
  struct scratch s;
  scratch_make(&s);
  check_inner_links(&s);
  scratch_drop(&s);
}

TEST(put_replaces_a_link_itself) {
  struct scratch s;
  struct stat st;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "target", "old"), 0);
  CHECK_EQ_INT(fchmodat(s.fd, "ws/target", 0600, 0), 0);
  CHECK_EQ_INT(symlinkat("target", s.fd, "ws/in"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out/secret"), s.fd, "ws/out"), 0);
  CHECK_EQ_INT(put_text(&s, "in", "new"), 0);
  CHECK_EQ_INT(put_text(&s, "out", "new"), 0);
  CHECK_EQ_INT(holds(&s, "target", "old"), 1);
  CHECK_EQ_INT(holds(&s, "out", "new"), 1);
  CHECK_EQ_INT(fstatat(s.fd, "ws/in", &st, AT_SYMLINK_NOFOLLOW), 0);
  CHECK_EQ_INT(st.st_mode, S_IFREG | 0644);
  CHECK_EQ_INT(fstatat(s.fd, "out/secret", &st, 0), 0);
  CHECK_EQ_INT(st.st_size, strlen(SECRET));
  scratch_drop(&s);
}

struct race {
  struct scratch *s;
  atomic_bool stop;
};

/* Valgrind runs one thread at a time, and not fairly. */
static void let_others_run(unsigned round) {
  if (round % 16 == 0) {
    usleep(1);
  }
}

/* Exchanges a directory and a link to outside, and puts a link where a directory has been. */
static void *swap_links(void *arg) {
  struct race *race = arg;
  int fd = race->s->fd;
  char gone[32];
  for (unsigned i = 0; !atomic_load(&race->stop); i++) {
    renameat2(fd, "ws/d", fd, "ws/l", RENAME_EXCHANGE);
    snprintf(gone, sizeof gone, "ws/gone%u", i);
    renameat(fd, "ws/e", fd, gone);
    symlinkat(race->s->path, fd, "ws/e");
    unlinkat(fd, "ws/e", 0);
    let_others_run(i);
  }
  return NULL;
}

static double now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void race_round(const struct scratch *s, int *wins, int *refusals) {
  void *data = NULL;
  size_t len = 0;
  int rc = put_text(s, "d/sub/file", "inside");
  *wins += rc == 0;
  *refusals += rc == -EXDEV;
  CHECK(rc == 0 || rc == -EXDEV || rc == -ENOENT || rc == -ENOTDIR || rc == -EAGAIN);
  rc = put_text(s, "e/out/file", "inside");
  CHECK(rc == 0 || rc == -EXDEV || rc == -ENOENT || rc == -ENOTDIR || rc == -EAGAIN);
  static const char *const paths[] = {"d/secret", "d/sub/../secret", "l/secret", "abs/secret",
                                      "e/out/secret"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    rc = sbx_files_get(&s->root, paths[i], &data, &len);
    CHECK(rc < 0 || len != strlen(SECRET));
    CHECK(rc == 0 || data == NULL);
    free(data);
    data = NULL;
  }
}

static void run_race(double seconds) {
  struct scratch s;
  pthread_t thread;
  int wins = 0;
  int refusals = 0;
  scratch_make(&s);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/d", 0755), 0);
  CHECK_EQ_INT(put_text(&s, "d/secret", "a decoy"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/l"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "ws/d"), s.fd, "ws/abs"), 0);
  struct race race = {.s = &s};
  CHECK_EQ_INT(pthread_create(&thread, NULL, swap_links, &race), 0);
  for (double end = now() + seconds; now() < end;) {
    race_round(&s, &wins, &refusals);
  }
  atomic_store(&race.stop, true);
  pthread_join(thread, NULL);
  CHECK(wins > 0);
  CHECK(refusals > 0);
  scratch_drop(&s);
}

TEST(swapping_a_directory_for_a_link_never_leads_outside) {
  run_race(2);
}

static void *rename_elsewhere(void *arg) {
  struct race *race = arg;
  for (unsigned i = 0; !atomic_load(&race->stop); i++) {
    renameat2(race->s->fd, "x", race->s->fd, "y", RENAME_EXCHANGE);
    let_others_run(i);
  }
  return NULL;
}

TEST(renames_elsewhere_do_not_disturb) {
  struct scratch s;
  pthread_t thread;
  char path[1100] = "a/";
  scratch_make(&s);
  for (int i = 0; i < 200; i++) {
    strcat(path, "b/../");
  }
  strcat(path, "file");
  CHECK_EQ_INT(put_text(&s, "a/b/file", "text"), 0);
  CHECK_EQ_INT(put_text(&s, "a/file", "text"), 0);
  CHECK_EQ_INT(mkdirat(s.fd, "x", 0755) | mkdirat(s.fd, "y", 0755), 0);
  struct race race = {.s = &s};
  CHECK_EQ_INT(pthread_create(&thread, NULL, rename_elsewhere, &race), 0);
  for (int i = 0; i < 500; i++) {
    CHECK_EQ_INT(holds(&s, path, "text"), 1);
    CHECK_EQ_INT(put_text(&s, path, "text"), 0);
  }
  atomic_store(&race.stop, true);
  pthread_join(thread, NULL);
  scratch_drop(&s);
}

/* Makes the system call openat2 fail with the errno given. */
static void without_openat2(void *arg) {
  const int *error = arg;
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)*error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    SKIP("no seccomp here");
  }
  struct scratch s;
  scratch_make(&s);
  make_escapes(&s);
  check_all_refused(&s);
  scratch_drop(&s);
  scratch_make(&s);
  check_inner_links(&s);
  scratch_drop(&s);
  run_race(1);
}

TEST(the_same_without_openat2) {
  int missing = ENOSYS;
  int filtered = EPERM;
  check_in_child(without_openat2, &missing);
  check_in_child(without_openat2, &filtered);
}

TEST(only_regular_files_are_read_or_replaced) {
  struct scratch s;
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
  scratch_make(&s);
  alarm(60); /* an opened fifo would hang */
  CHECK_EQ_INT(mkfifoat(s.fd, "ws/fifo", 0644), 0);
  CHECK_EQ_INT(get_error(&s, "fifo"), -ENOTSUP);
  CHECK_EQ_INT(put_text(&s, "fifo", "no"), -ENOTSUP);
  CHECK_EQ_INT(get_error(&s, "fifo/x"), -ENOTDIR);
  CHECK_EQ_INT(put_text(&s, "fifo/x", "no"), -ENOTDIR);
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/ws/socket", s.fd);
  int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQ_INT(bind(sock, (const struct sockaddr *)&address, sizeof address), 0);
  close(sock);
  CHECK_EQ_INT(get_error(&s, "socket"), -ENOTSUP);
  CHECK_EQ_INT(put_text(&s, "socket", "no"), -ENOTSUP);
  if (mknodat(s.fd, "ws/device", S_IFCHR | 0666, makedev(1, 3)) == 0) {
    CHECK_EQ_INT(get_error(&s, "device"), -ENOTSUP);
    CHECK_EQ_INT(put_text(&s, "device", "no"), -ENOTSUP);
  }
  CHECK_EQ_INT(mkdirat(s.fd, "ws/dir", 0755), 0);
  CHECK_EQ_INT(put_text(&s, "file", "text"), 0);
  static const char *const dirs[] = {"dir", "dir/", "dir/.", "dir/..", ".", "./"};
  for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
    CHECK_EQ_INT(get_error(&s, dirs[i]), -EISDIR);
    CHECK_EQ_INT(put_text(&s, dirs[i], "no"), -EISDIR);
  }
  CHECK_EQ_INT(put_text(&s, "new/", "no"), -EISDIR);
  CHECK_EQ_INT(get_error(&s, ""), -EINVAL);
  CHECK_EQ_INT(put_text(&s, "", "no"), -EINVAL);
  CHECK_EQ_INT(get_error(&s, "none"), -ENOENT);
  CHECK_EQ_INT(get_error(&s, "none/x"), -ENOENT);
  CHECK_EQ_INT(get_error(&s, "none/../x"), -ENOENT);
  CHECK_EQ_INT(get_error(&s, "file/x"), -ENOTDIR);
  CHECK_EQ_INT(get_error(&s, "file/"), -ENOTDIR);
  CHECK_EQ_INT(put_text(&s, "file/x", "no"), -ENOTDIR);
  CHECK_EQ_INT(put_text(&s, "file/x/y", "no"), -ENOTDIR);
  CHECK_EQ_INT(holds(&s, "file", "text"), 1);
  alarm(0);
  scratch_drop(&s);
}

static void check_modes(void *arg) {
  struct scratch s;
  scratch_make(&s);
  umask(*(const mode_t *)arg);
  CHECK_EQ_INT(put_text(&s, "p/q/file", "1"), 0);
  CHECK_EQ_INT(scratch_mode(&s, "ws/p"), 0755);
  CHECK_EQ_INT(scratch_mode(&s, "ws/p/q"), 0755);
  CHECK_EQ_INT(scratch_mode(&s, "ws/p/q/file"), 0644);
  static const mode_t modes[] = {0751, 0600, 0666, 04755, 0444};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    CHECK_EQ_INT(fchmodat(s.fd, "ws/p/q/file", modes[i], 0), 0);
    CHECK_EQ_INT(put_text(&s, "p/q/file", "2"), 0);
    CHECK_EQ_INT(scratch_mode(&s, "ws/p/q/file"), modes[i]);
  }
  CHECK_EQ_INT(sbx_files_make_dirs(scratch_path(&s, "ws//m/./n/"), 0750), 0);
  CHECK_EQ_INT(scratch_mode(&s, "ws/m"), 0750);
  CHECK_EQ_INT(scratch_mode(&s, "ws/m/n"), 0750);
  CHECK_EQ_INT(sbx_files_make_dirs(scratch_path(&s, "ws/m/n/o"), 0700), 0);
  CHECK_EQ_INT(scratch_mode(&s, "ws/m/n"), 0750);
  CHECK_EQ_INT(scratch_mode(&s, "ws/m/n/o"), 0700);
  scratch_drop(&s);
}

TEST(modes_are_exact_whatever_the_umask) {
  static mode_t masks[] = {077, 000, 022, 0777};
  for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
    check_in_child(check_modes, &masks[i]);
  }
}

TEST(make_dirs_takes_what_is_there) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(symlinkat("out", s.fd, "link"), 0);
  CHECK_EQ_INT(symlinkat("nowhere", s.fd, "dangling"), 0);
  CHECK_EQ_INT(sbx_files_make_dirs(scratch_path(&s, "link"), 0700), 0);
  CHECK_EQ_INT(scratch_mode(&s, "out"), 0755);
  CHECK_EQ_INT(sbx_files_make_dirs(scratch_path(&s, "out/secret/x"), 0700), -ENOTDIR);
  CHECK_EQ_INT(sbx_files_make_dirs(scratch_path(&s, "dangling/x"), 0700), -EEXIST);
  CHECK_EQ_INT(sbx_files_make_dirs("relative", 0700), -EINVAL);
  CHECK_EQ_INT(sbx_files_make_dirs("", 0700), -EINVAL);
  CHECK_EQ_INT(sbx_files_make_dirs("/", 0700), 0);
  scratch_drop(&s);
}

TEST(any_byte_in_a_name) {
  struct scratch s;
  char name[300];
  scratch_make(&s);
  for (int c = 1; c < 256; c++) {
    if (c != '/') {
      snprintf(name, sizeof name, "n%c/f%c", c, c);
      CHECK_EQ_INT(put_text(&s, name, name), 0);
      CHECK_EQ_INT(holds(&s, name, name), 1);
    }
  }
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 254);
  memset(name, 'x', 256);
  name[255] = '\0';
  CHECK_EQ_INT(put_text(&s, name, "long"), 0);
  CHECK_EQ_INT(put_text(&s, name, "longer"), 0);
  CHECK_EQ_INT(holds(&s, name, "longer"), 1);
  name[255] = 'x';
  name[256] = '\0';
  CHECK_EQ_INT(put_text(&s, name, "too long"), -ENAMETOOLONG);
  CHECK_EQ_INT(get_error(&s, name), -ENAMETOOLONG);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 255);
  scratch_drop(&s);
}

CHECK_MAIN()
