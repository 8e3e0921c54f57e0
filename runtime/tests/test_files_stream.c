/* SPDX-License-Identifier: MIT
 *
 * proves: F1, F2, F3
 *
 * Files in pieces: what a put leaves whole, half done or aborted, what a get brings, the same as
 * ops of the worker pool, and a thread that swaps directories for links all the while. What lists
 * and removes entries is in test_files_stat.c.
 */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>

#include "../engine.h"
#include "../file_op.h"
#include "../files_stream.h"
#include "scratch.h"
#include "swap.h"

enum { LARGEST = 10485760, PIECE = 128 * 1024 };

static unsigned char *make_bytes(size_t len) {
  unsigned char *bytes = malloc(len);
  unsigned seed = 4711;
  for (size_t i = 0; i < len; i++) {
    seed = seed * 1103515245U + 12345U;
    bytes[i] = (unsigned char)(seed >> 16);
  }
  return bytes;
}

/* Bytes of a file in ws, read in odd pieces; 1 if they are these. */
static int reads_back(const struct scratch *s, const char *path, const void *bytes, size_t len) {
  static const size_t step = 65537;
  char *buffer = malloc(step);
  size_t seen = 0;
  size_t got = step;
  off_t size = -1;
  int fd;
  int same = 1;
  int rc = sbx_files_open_read(&s->root, path, &fd, &size);
  while (rc == 0 && got == step) {
    rc = sbx_files_read(fd, buffer, step, &got);
    same = same && seen + got <= len && memcmp((const char *)bytes + seen, buffer, got) == 0;
    seen += got;
  }
  if (fd >= 0) close(fd);
  free(buffer);
  return rc != 0 ? rc : same && seen == len && size == (off_t)len;
}

/* A put in pieces of so many bytes. */
static int put_pieces(const struct scratch *s, const char *path, const void *bytes, size_t len,
                      size_t piece) {
  struct sbx_files_writer writer;
  int rc = sbx_files_writer_open(&s->root, path, &writer);
  for (size_t at = 0; rc == 0 && at < len; at += piece) {
    rc = sbx_files_writer_write(&writer, (const char *)bytes + at,
                                len - at < piece ? len - at : piece);
  }
  if (rc == 0) rc = sbx_files_writer_commit(&writer);
  sbx_files_writer_abort(&writer);
  return rc;
}

static int put_pieces_error(const struct scratch *s, const char *path) {
  return put_pieces(s, path, "no", 2, 1);
}

static int open_read_error(const struct scratch *s, const char *path) {
  off_t size;
  int fd;
  int rc = sbx_files_open_read(&s->root, path, &fd, &size);
  CHECK((fd >= 0) == (rc == 0));
  if (fd >= 0) close(fd);
  return rc;
}

TEST(every_size_in_pieces) {
  static const size_t sizes[] = {0, 1, 65535, 65536, 65537, LARGEST};
  struct scratch s;
  scratch_make(&s);
  unsigned char *bytes = make_bytes(LARGEST);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    CHECK_EQ_INT(put_pieces(&s, "a/b/file", bytes, sizes[i], 65536), 0);
    CHECK_EQ_INT(reads_back(&s, "a/b/file", bytes, sizes[i]), 1);
    CHECK_EQ_INT(put_pieces(&s, "a/c/file", bytes, sizes[i], 8191), 0);
    CHECK_EQ_INT(reads_back(&s, "a/c/file", bytes, sizes[i]), 1);
  }
  CHECK_EQ_INT(scratch_entries(&s, "ws/a/b"), 1);
  CHECK_EQ_INT(scratch_entries(&s, "ws/a/c"), 1);
  free(bytes);
  scratch_drop(&s);
}

TEST(the_old_file_stands_until_the_commit) {
  struct scratch s;
  struct sbx_files_writer writer;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "file", "old"), 0);
  CHECK_EQ_INT(fchmodat(s.fd, "ws/file", 0751, 0), 0);
  CHECK_EQ_INT(sbx_files_writer_open(&s.root, "file", &writer), 0);
  CHECK_EQ_INT(sbx_files_writer_write(&writer, "ne", 2), 0);
  CHECK_EQ_INT(holds(&s, "file", "old"), 1);
  char temporary[64];
  snprintf(temporary, sizeof temporary, "ws/%.31s", writer.temporary);
  CHECK_EQ_INT(scratch_mode(&s, temporary), 0600);
  /* The mode is the one that the file has in the end. */
  CHECK_EQ_INT(fchmodat(s.fd, "ws/file", 0640, 0), 0);
  CHECK_EQ_INT(sbx_files_writer_write(&writer, "w", 1), 0);
  CHECK_EQ_INT(sbx_files_writer_write(&writer, NULL, 0), 0);
  CHECK_EQ_INT(sbx_files_writer_commit(&writer), 0);
  CHECK_EQ_INT(writer.fd & writer.dir, -1);
  CHECK_EQ_INT(holds(&s, "file", "new"), 1);
  CHECK_EQ_INT(scratch_mode(&s, "ws/file"), 0640);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  sbx_files_writer_abort(&writer);
  CHECK_EQ_INT(holds(&s, "file", "new"), 1);
  scratch_drop(&s);
}

TEST(an_aborted_put_leaves_nothing) {
  struct scratch s;
  struct sbx_files_writer writer;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "file", "old"), 0);
  CHECK_EQ_INT(sbx_files_writer_open(&s.root, "file", &writer), 0);
  CHECK_EQ_INT(sbx_files_writer_write(&writer, "new", 3), 0);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 2);
  sbx_files_writer_abort(&writer);
  sbx_files_writer_abort(&writer);
  CHECK_EQ_INT(holds(&s, "file", "old"), 1);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  scratch_drop(&s);
}

/* What stands in the way only when the put is done. */
TEST(a_commit_that_fails_leaves_nothing) {
  struct scratch s;
  struct sbx_files_writer writer;
  scratch_make(&s);
  CHECK_EQ_INT(sbx_files_writer_open(&s.root, "d/x", &writer), 0);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/d/x", 0755), 0);
  CHECK_EQ_INT(sbx_files_writer_commit(&writer), -EISDIR);
  CHECK_EQ_INT(scratch_entries(&s, "ws/d"), 1);
  CHECK_EQ_INT(scratch_entries(&s, "ws/d/x"), 0);
  CHECK_EQ_INT(sbx_files_writer_open(&s.root, "d/y", &writer), 0);
  CHECK_EQ_INT(mkfifoat(s.fd, "ws/d/y", 0644), 0);
  CHECK_EQ_INT(sbx_files_writer_commit(&writer), -ENOTSUP);
  CHECK_EQ_INT(scratch_entries(&s, "ws/d"), 2);
  CHECK_EQ_INT(sbx_files_writer_open(&s.root, "e/f", &writer), 0);
  CHECK_EQ_INT(sbx_files_remove_tree(s.root.fd, "e"), 0);
  CHECK_EQ_INT(sbx_files_writer_write(&writer, "text", 4), 0);
  CHECK_EQ_INT(sbx_files_writer_commit(&writer), -ENOENT);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  scratch_drop(&s);
}

TEST(the_directory_is_found_once) {
  struct scratch s;
  struct sbx_files_writer writer;
  scratch_make(&s);
  CHECK_EQ_INT(sbx_files_writer_open(&s.root, "d/file", &writer), 0);
  CHECK_EQ_INT(renameat(s.fd, "ws/d", s.fd, "ws/moved"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/d"), 0);
  CHECK_EQ_INT(sbx_files_writer_write(&writer, "text", 4), 0);
  CHECK_EQ_INT(sbx_files_writer_commit(&writer), 0);
  CHECK_EQ_INT(holds(&s, "moved/file", "text"), 1);
  scratch_drop(&s);
}

TEST(escapes_and_kinds_are_refused) {
  struct scratch s;
  scratch_make(&s);
  alarm(60); /* an opened fifo would hang */
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out"), s.fd, "ws/out"), 0);
  CHECK_EQ_INT(symlinkat(scratch_path(&s, "out/none"), s.fd, "ws/dangling"), 0);
  CHECK_EQ_INT(mkfifoat(s.fd, "ws/fifo", 0644), 0);
  CHECK_EQ_INT(mkdirat(s.fd, "ws/dir", 0755), 0);
  CHECK_EQ_INT(put_text(&s, "file", "text"), 0);
  CHECK_EQ_INT(put_pieces_error(&s, "out/new"), -EXDEV);
  CHECK_EQ_INT(put_pieces_error(&s, "out/none/new"), -EXDEV);
  CHECK_EQ_INT(put_pieces_error(&s, "../new"), -EXDEV);
  CHECK_EQ_INT(put_pieces_error(&s, "/etc/new"), -EXDEV);
  CHECK_EQ_INT(put_pieces_error(&s, "fifo"), -ENOTSUP);
  CHECK_EQ_INT(put_pieces_error(&s, "dir"), -EISDIR);
  CHECK_EQ_INT(put_pieces_error(&s, "dir/.."), -EISDIR);
  CHECK_EQ_INT(put_pieces_error(&s, "new/"), -EISDIR);
  CHECK_EQ_INT(put_pieces_error(&s, "file/x"), -ENOTDIR);
  CHECK_EQ_INT(put_pieces_error(&s, ""), -EINVAL);
  CHECK_EQ_INT(open_read_error(&s, "out/secret"), -EXDEV);
  CHECK_EQ_INT(open_read_error(&s, "dangling"), -EXDEV);
  CHECK_EQ_INT(open_read_error(&s, "fifo"), -ENOTSUP);
  CHECK_EQ_INT(open_read_error(&s, "dir"), -EISDIR);
  CHECK_EQ_INT(open_read_error(&s, "file/x"), -ENOTDIR);
  CHECK_EQ_INT(open_read_error(&s, "none"), -ENOENT);
  CHECK_EQ_INT(open_read_error(&s, ""), -EINVAL);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 5);
  CHECK_EQ_INT(put_pieces(&s, "dangling", "text", 4, 1), 0);
  CHECK_EQ_INT(holds(&s, "dangling", "text"), 1);
  alarm(0);
  scratch_drop(&s);
}

static void write_past_the_limit(void *arg) {
  const struct scratch *s = arg;
  struct rlimit limit = {.rlim_cur = 100000, .rlim_max = 100000};
  signal(SIGXFSZ, SIG_IGN);
  CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
  char *data = calloc(1, LARGEST);
  CHECK_EQ_INT(put_pieces(s, "file", data, LARGEST, 65536), -EFBIG);
  CHECK_EQ_INT(put_pieces(s, "new", data, LARGEST, 65536), -EFBIG);
  free(data);
}

TEST(a_failed_write_leaves_nothing) {
  struct scratch s;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "file", "old"), 0);
  check_in_child(write_past_the_limit, &s);
  CHECK_EQ_INT(holds(&s, "file", "old"), 1);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  scratch_drop(&s);
}

static void stream_round(const struct scratch *s, struct swap_count *count) {
  struct sbx_files_writer writer;
  int rc = sbx_files_writer_open(&s->root, "d/sub/file", &writer);
  swap_counts(count, rc);
  if (rc == 0) {
    CHECK_EQ_INT(sbx_files_writer_write(&writer, "inside", 6), 0);
    CHECK_EQ_INT(sbx_files_writer_commit(&writer), 0);
  }
  rc = sbx_files_writer_open(&s->root, "e/out/file", &writer);
  swap_counts(count, rc);
  sbx_files_writer_abort(&writer);
  static const char *const paths[] = {"d/secret", "d/sub/../secret", "l/secret", "e/out/secret"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    char text[64];
    size_t got = 0;
    off_t size;
    int fd;
    if (sbx_files_open_read(&s->root, paths[i], &fd, &size) != 0) continue;
    CHECK_EQ_INT(sbx_files_read(fd, text, sizeof text, &got), 0);
    CHECK(got != strlen(SECRET));
    close(fd);
  }
}

TEST(swapping_directories_never_leads_a_stream_outside) {
  run_swap_race(stream_round, 1.5);
}

/* --- as ops --------------------------------------------------------------------------------- */

/* The workers live as long as the process, and it reports their thread data as possibly lost. */
#define NOT_IN_VALGRIND \
  if (getenv("SBX_VALGRIND") != NULL) SKIP("the pool's threads are never joined")

static int finish(int rc, struct sbx_op **op) {
  if (rc != 0) return rc;
  rc = sbx_op_wait(*op);
  sbx_op_unref(*op);
  return rc;
}

static void open_scratch_root(const struct scratch *s, struct sbx_root **root) {
  CHECK_EQ_INT(sbx_root_open(s->root.path, root), 0);
}

TEST(a_put_and_a_get_of_the_pool) {
  NOT_IN_VALGRIND;
  struct scratch s;
  struct sbx_root *root;
  struct sbx_stream *stream;
  struct sbx_op *op;
  scratch_make(&s);
  open_scratch_root(&s, &root);
  unsigned char *bytes = make_bytes(LARGEST + 1);
  CHECK_EQ_INT(sbx_stream_new(&stream), 0);
  CHECK_EQ_INT(finish(sbx_file_op_open_put(stream, root, "a/file", &op), &op), 0);
  for (size_t at = 0; at < LARGEST; at += PIECE) {
    CHECK_EQ_INT(finish(sbx_file_op_write(stream, bytes + at, PIECE, &op), &op), 0);
  }
  CHECK_EQ_INT(finish(sbx_file_op_write(stream, bytes + LARGEST, 1, &op), &op), 0);
  CHECK_EQ_INT(finish(sbx_file_op_commit(stream, &op), &op), 0);
  CHECK_EQ_INT(finish(sbx_file_op_close(stream, &op), &op), 0);
  sbx_stream_unref(stream);
  CHECK_EQ_INT(reads_back(&s, "a/file", bytes, LARGEST + 1), 1);

  CHECK_EQ_INT(sbx_stream_new(&stream), 0);
  CHECK_EQ_INT(finish(sbx_file_op_open_get(stream, root, "a/file", &op), &op), 0);
  const void *piece;
  size_t len = 1;
  size_t seen = 0;
  while (len > 0) {
    CHECK_EQ_INT(finish(sbx_file_op_read(stream, &op), &op), 0);
    CHECK(sbx_stream_piece(stream, &piece, &len));
    CHECK(seen + len <= LARGEST + 1 && memcmp(bytes + seen, piece, len) == 0);
    seen += len;
  }
  CHECK_EQ_INT(seen, LARGEST + 1);
  sbx_stream_unref(stream);
  sbx_root_unref(root);
  free(bytes);
  scratch_drop(&s);
}

TEST(a_stream_is_used_as_it_was_opened) {
  NOT_IN_VALGRIND;
  struct scratch s;
  struct sbx_root *root;
  struct sbx_stream *stream;
  struct sbx_op *op;
  scratch_make(&s);
  CHECK_EQ_INT(put_text(&s, "file", "text"), 0);
  open_scratch_root(&s, &root);
  CHECK_EQ_INT(sbx_stream_new(&stream), 0);
  CHECK_EQ_INT(finish(sbx_file_op_read(stream, &op), &op), -EBADF);
  CHECK_EQ_INT(finish(sbx_file_op_write(stream, "x", 1, &op), &op), -EBADF);
  CHECK_EQ_INT(finish(sbx_file_op_commit(stream, &op), &op), -EBADF);
  CHECK_EQ_INT(finish(sbx_file_op_close(stream, &op), &op), 0);
  CHECK_EQ_INT(finish(sbx_file_op_open_get(stream, root, "none", &op), &op), -ENOENT);
  CHECK_EQ_INT(finish(sbx_file_op_open_get(stream, root, "file", &op), &op), 0);
  CHECK_EQ_INT(finish(sbx_file_op_open_put(stream, root, "file", &op), &op), -EBADF);
  CHECK_EQ_INT(finish(sbx_file_op_write(stream, "x", 1, &op), &op), -EBADF);
  CHECK_EQ_INT(finish(sbx_file_op_close(stream, &op), &op), 0);
  CHECK_EQ_INT(finish(sbx_file_op_read(stream, &op), &op), -EBADF);
  sbx_stream_unref(stream);
  sbx_root_unref(root);
  CHECK_EQ_INT(holds(&s, "file", "text"), 1);
  CHECK_EQ_INT(scratch_entries(&s, "ws"), 1);
  scratch_drop(&s);
}

/* Dropped while its op runs: the pool holds the last reference and removes the file. */
TEST(a_dropped_put_leaves_nothing) {
  NOT_IN_VALGRIND;
  struct scratch s;
  struct sbx_root *root;
  scratch_make(&s);
  open_scratch_root(&s, &root);
  unsigned char *bytes = make_bytes(LARGEST);
  for (int i = 0; i < 20; i++) {
    struct sbx_stream *stream;
    struct sbx_op *op;
    struct sbx_op *second;
    const void *data;
    size_t len;
    CHECK_EQ_INT(sbx_stream_new(&stream), 0);
    CHECK_EQ_INT(finish(sbx_file_op_open_put(stream, root, "file", &op), &op), 0);
    CHECK_EQ_INT(sbx_file_op_write(stream, bytes, LARGEST, &op), 0);
    if (!sbx_op_is_done(op)) {
      int rc = sbx_file_op_commit(stream, &second);
      CHECK(rc == -EBUSY || rc == 0);
      if (rc == 0) sbx_op_unref(second);
      (void)sbx_stream_piece(stream, &data, &len);
    }
    sbx_stream_unref(stream);
    CHECK_EQ_INT(finish(0, &op), 0);
  }
  free(bytes);
  sbx_root_unref(root);
  int left = 2;
  for (int i = 0; i < 500 && left > 1; i++) {
    usleep(10000); /* a commit that came in time is not waited for */
    left = scratch_entries(&s, "ws");
  }
  CHECK(left <= 1);
  scratch_drop(&s);
}

int main(void) {
  struct sbx_root *root;
  struct sbx_op *op;
  if (getenv("SBX_VALGRIND") != NULL) return check_run_all();
  CHECK_EQ_INT(sbx_engine_start(), 0); /* whose descriptors are not any test's */
  CHECK_EQ_INT(sbx_root_open("/", &root), 0);
  CHECK_EQ_INT(finish(sbx_file_op_stat(root, ".", &op), &op), 0);
  sbx_root_unref(root);
  return check_run_all();
}
