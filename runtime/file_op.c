/* SPDX-License-Identifier: MIT
 *
 * File work on the worker threads (see file_op.h).
 *
 * Each op names the function that does its work. What it refers to is let go of on the pool as soon
 * as the work is done: the last reference to a stream removes a file, and the op itself may live on
 * until Lua collects it.
 */
#include "file_op.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files_stream.h"
#include "pool.h"

enum { PIECE_SIZE = 128 * 1024 };

struct sbx_root {
  atomic_uint refs;
  struct sbx_files_root files;
};

struct sbx_stream {
  atomic_uint refs;
  atomic_bool busy;               /* an op has the rest for itself */
  struct sbx_files_writer writer; /* of a put */
  int fd;                         /* owned: of a get */
  char *piece;                    /* owned, PIECE_SIZE, or NULL */
  size_t piece_len;
};

struct file_op {
  struct sbx_op op;
  struct sbx_job job;
  int (*work)(struct file_op *file);
  struct sbx_root *root;     /* owned reference, or NULL */
  struct sbx_stream *stream; /* owned reference, or NULL; then busy */
  char *path;                /* owned, or NULL */
  mode_t mode;
  bool recursive;
  const void *put_data; /* lent */
  size_t put_len;
  void *got_data; /* owned */
  size_t got_len;
  struct sbx_files_entries entries;
  int result;
};

/* --- roots and streams ---------------------------------------------------------------------- */

int sbx_root_open(const char *path, struct sbx_root **out) {
  struct sbx_root *root = malloc(sizeof *root);
  if (root == NULL) return -ENOMEM;
  atomic_init(&root->refs, 1);
  int rc = sbx_files_root_open(&root->files, path);
  if (rc != 0) {
    free(root);
    return rc;
  }
  *out = root;
  return 0;
}

void sbx_root_unref(struct sbx_root *root) {
  if (atomic_fetch_sub_explicit(&root->refs, 1, memory_order_acq_rel) != 1) return;
  sbx_files_root_close(&root->files);
  free(root);
}

const struct sbx_files_root *sbx_root_files(const struct sbx_root *root) {
  return &root->files;
}

int sbx_stream_new(struct sbx_stream **out) {
  struct sbx_stream *stream = calloc(1, sizeof *stream);
  if (stream == NULL) return -ENOMEM;
  atomic_init(&stream->refs, 1);
  atomic_init(&stream->busy, false);
  stream->writer = (struct sbx_files_writer){.dir = -1, .fd = -1};
  stream->fd = -1;
  *out = stream;
  return 0;
}

static void close_stream(struct sbx_stream *stream) {
  sbx_files_writer_abort(&stream->writer);
  if (stream->fd >= 0) close(stream->fd);
  stream->fd = -1;
  free(stream->piece);
  stream->piece = NULL;
  stream->piece_len = 0;
}

void sbx_stream_unref(struct sbx_stream *stream) {
  if (atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1) return;
  close_stream(stream);
  free(stream);
}

bool sbx_stream_piece(struct sbx_stream *stream, const void **data, size_t *len) {
  if (atomic_load_explicit(&stream->busy, memory_order_acquire)) return false;
  *data = stream->piece_len > 0 ? stream->piece : "";
  *len = stream->piece_len;
  return true;
}

/* --- the work, on the pool ------------------------------------------------------------------ */

static int put(struct file_op *file) {
  return sbx_files_put(&file->root->files, file->path, file->put_data, file->put_len);
}

static int get(struct file_op *file) {
  return sbx_files_get(&file->root->files, file->path, &file->got_data, &file->got_len);
}

static int list(struct file_op *file) {
  return sbx_files_list(&file->root->files, file->path, &file->got_data, &file->got_len);
}

static int scan(struct file_op *file) {
  return sbx_files_scan(&file->root->files, file->path, &file->entries);
}

static int stat_one(struct file_op *file) {
  file->entries.list = calloc(1, sizeof *file->entries.list);
  if (file->entries.list == NULL) return -ENOMEM;
  file->entries.count = file->entries.room = 1;
  return sbx_files_stat(&file->root->files, file->path, file->entries.list);
}

static int remove_entry(struct file_op *file) {
  return sbx_files_remove(&file->root->files, file->path, file->recursive);
}

static int remove_tree(struct file_op *file) {
  return sbx_files_remove_tree(file->root->files.fd, file->path);
}

static int make_dirs(struct file_op *file) {
  return sbx_files_make_dirs(file->path, file->mode);
}

static bool is_open(const struct sbx_stream *stream) {
  return stream->writer.fd >= 0 || stream->fd >= 0;
}

static int open_put(struct file_op *file) {
  if (is_open(file->stream)) return -EBADF;
  return sbx_files_writer_open(&file->root->files, file->path, &file->stream->writer);
}

static int open_get(struct file_op *file) {
  off_t size;
  if (is_open(file->stream)) return -EBADF;
  return sbx_files_open_read(&file->root->files, file->path, &file->stream->fd, &size);
}

static int write_piece(struct file_op *file) {
  if (file->stream->writer.fd < 0) return -EBADF;
  return sbx_files_writer_write(&file->stream->writer, file->put_data, file->put_len);
}

static int commit(struct file_op *file) {
  if (file->stream->writer.fd < 0) return -EBADF;
  return sbx_files_writer_commit(&file->stream->writer);
}

static int read_piece(struct file_op *file) {
  struct sbx_stream *stream = file->stream;
  stream->piece_len = 0;
  if (stream->fd < 0) return -EBADF;
  if (stream->piece == NULL) stream->piece = malloc(PIECE_SIZE);
  if (stream->piece == NULL) return -ENOMEM;
  return sbx_files_read(stream->fd, stream->piece, PIECE_SIZE, &stream->piece_len);
}

static int end_stream(struct file_op *file) {
  close_stream(file->stream);
  return 0;
}

/* --- ops ------------------------------------------------------------------------------------ */

static void let_go(struct file_op *file) {
  if (file->root != NULL) sbx_root_unref(file->root);
  file->root = NULL;
  if (file->stream != NULL) {
    atomic_store_explicit(&file->stream->busy, false, memory_order_release);
    sbx_stream_unref(file->stream);
  }
  file->stream = NULL;
}

static void destroy(struct sbx_op *op) {
  struct file_op *file = (struct file_op *)op;
  let_go(file);
  free(file->path);
  free(file->got_data);
  sbx_files_entries_free(&file->entries);
  free(file);
}

static void run_job(struct sbx_job *job) {
  struct file_op *file = (struct file_op *)(void *)((char *)job - offsetof(struct file_op, job));
  file->result = file->work(file);
  let_go(file);
  sbx_op_complete(&file->op, file->result);
  sbx_op_unref(&file->op);
}

static int submit(struct file_op *file, struct sbx_op **op) {
  sbx_op_ref(&file->op); /* the pool's */
  int rc = sbx_pool_submit(&file->job);
  if (rc == 0) {
    *op = &file->op;
    return 0;
  }
  sbx_op_unref(&file->op);
  sbx_op_unref(&file->op);
  return rc;
}

/* root and path may be NULL. */
static int new_file_op(int (*work)(struct file_op *), struct sbx_root *root, const char *path,
                       struct file_op **out) {
  struct file_op *file = calloc(1, sizeof *file);
  if (file == NULL) return -ENOMEM;
  if (path != NULL) file->path = strdup(path);
  int rc = path != NULL && file->path == NULL ? -ENOMEM : sbx_op_init(&file->op, NULL, destroy);
  if (rc != 0) {
    free(file->path);
    free(file);
    return rc;
  }
  file->work = work;
  file->job.run = run_job;
  file->root = root;
  if (root != NULL) atomic_fetch_add_explicit(&root->refs, 1, memory_order_relaxed);
  *out = file;
  return 0;
}

static int on_path(int (*work)(struct file_op *), struct sbx_root *root, const char *path,
                   struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(work, root, path, &file);
  return rc != 0 ? rc : submit(file, op);
}

int sbx_file_op_put(struct sbx_root *root, const char *path, const void *data, size_t len,
                    struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(put, root, path, &file);
  if (rc != 0) return rc;
  file->put_data = data;
  file->put_len = len;
  file->op.lends = true;
  return submit(file, op);
}

int sbx_file_op_get(struct sbx_root *root, const char *path, struct sbx_op **op) {
  return on_path(get, root, path, op);
}

int sbx_file_op_list(struct sbx_root *root, const char *path, struct sbx_op **op) {
  return on_path(list, root, path, op);
}

int sbx_file_op_scan(struct sbx_root *root, const char *path, struct sbx_op **op) {
  return on_path(scan, root, path, op);
}

int sbx_file_op_stat(struct sbx_root *root, const char *path, struct sbx_op **op) {
  return on_path(stat_one, root, path, op);
}

int sbx_file_op_remove(struct sbx_root *root, const char *path, bool recursive,
                       struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(remove_entry, root, path, &file);
  if (rc != 0) return rc;
  file->recursive = recursive;
  return submit(file, op);
}

int sbx_file_op_remove_tree(struct sbx_root *parent, const char *name, struct sbx_op **op) {
  return on_path(remove_tree, parent, name, op);
}

int sbx_file_op_make_dirs(const char *path, mode_t mode, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(make_dirs, NULL, path, &file);
  if (rc != 0) return rc;
  file->mode = mode;
  return submit(file, op);
}

static int new_stream_op(int (*work)(struct file_op *), struct sbx_stream *stream,
                         struct sbx_root *root, const char *path, struct file_op **out) {
  if (atomic_exchange_explicit(&stream->busy, true, memory_order_acquire)) return -EBUSY;
  int rc = new_file_op(work, root, path, out);
  if (rc != 0) {
    atomic_store_explicit(&stream->busy, false, memory_order_release);
    return rc;
  }
  (*out)->stream = stream;
  atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
  return 0;
}

static int on_stream(int (*work)(struct file_op *), struct sbx_stream *stream,
                     struct sbx_root *root, const char *path, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_stream_op(work, stream, root, path, &file);
  return rc != 0 ? rc : submit(file, op);
}

int sbx_file_op_open_put(struct sbx_stream *stream, struct sbx_root *root, const char *path,
                         struct sbx_op **op) {
  return on_stream(open_put, stream, root, path, op);
}

int sbx_file_op_open_get(struct sbx_stream *stream, struct sbx_root *root, const char *path,
                         struct sbx_op **op) {
  return on_stream(open_get, stream, root, path, op);
}

int sbx_file_op_write(struct sbx_stream *stream, const void *data, size_t len, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_stream_op(write_piece, stream, NULL, NULL, &file);
  if (rc != 0) return rc;
  file->put_data = data;
  file->put_len = len;
  file->op.lends = true;
  return submit(file, op);
}

int sbx_file_op_commit(struct sbx_stream *stream, struct sbx_op **op) {
  return on_stream(commit, stream, NULL, NULL, op);
}

int sbx_file_op_read(struct sbx_stream *stream, struct sbx_op **op) {
  return on_stream(read_piece, stream, NULL, NULL, op);
}

int sbx_file_op_close(struct sbx_stream *stream, struct sbx_op **op) {
  return on_stream(end_stream, stream, NULL, NULL, op);
}

/* --- results -------------------------------------------------------------------------------- */

bool sbx_file_op_data(struct sbx_op *op, const void **data, size_t *len) {
  if (op->destroy != destroy || !sbx_op_is_done(op)) return false;
  const struct file_op *file = (const struct file_op *)op;
  if (file->got_data == NULL) return false;
  *data = file->got_data;
  *len = file->got_len;
  return true;
}

const struct sbx_files_entries *sbx_file_op_entries(struct sbx_op *op) {
  if (op->destroy != destroy || !sbx_op_is_done(op)) return NULL;
  const struct file_op *file = (const struct file_op *)op;
  bool looks = file->work == scan || file->work == stat_one;
  return looks && file->result == 0 ? &file->entries : NULL;
}
