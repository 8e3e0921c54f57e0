/* SPDX-License-Identifier: MIT
 *
 * File work on the engine's worker pool (see file_op.h).
 */
#include "file_op.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

struct sbx_root {
  atomic_uint refs;
  struct sbx_files_root files;
};

enum kind { PUT, GET, LIST, REMOVE_TREE, MAKE_DIRS };

struct file_op {
  struct sbx_op op;
  struct sbx_work start;
  uv_work_t request;
  enum kind kind;
  struct sbx_root *root; /* owned reference, or NULL */
  char *path;            /* owned */
  mode_t mode;
  const void *put_data; /* lent */
  size_t put_len;
  void *got_data; /* owned */
  size_t got_len;
  int result;
};

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

static void let_go_of_root(struct file_op *file) {
  if (file->root != NULL) sbx_root_unref(file->root);
  file->root = NULL;
}

static void destroy(struct sbx_op *op) {
  struct file_op *file = (struct file_op *)op;
  let_go_of_root(file);
  free(file->path);
  free(file->got_data);
  free(file);
}

static void work_on_pool(uv_work_t *request) {
  struct file_op *file = request->data;
  switch (file->kind) {
  case PUT:
    file->result = sbx_files_put(&file->root->files, file->path, file->put_data, file->put_len);
    break;
  case GET:
    file->result = sbx_files_get(&file->root->files, file->path, &file->got_data, &file->got_len);
    break;
  case LIST:
    file->result = sbx_files_list(&file->root->files, file->path, &file->got_data, &file->got_len);
    break;
  case REMOVE_TREE:
    file->result = sbx_files_remove_tree(file->root->files.fd, file->path);
    break;
  case MAKE_DIRS:
    file->result = sbx_files_make_dirs(file->path, file->mode);
    break;
  }
}

static void after_work(uv_work_t *request, int status) {
  struct file_op *file = request->data;
  let_go_of_root(file); /* the op may live on until Lua collects it */
  sbx_op_complete(&file->op, status != 0 ? status : file->result);
  sbx_op_unref(&file->op);
}

static void start(struct sbx_work *work) {
  struct file_op *file = (struct file_op *)(void *)((char *)work - offsetof(struct file_op, start));
  file->request.data = file;
  int rc = uv_queue_work(sbx_engine_loop(), &file->request, work_on_pool, after_work);
  if (rc == 0) return;
  sbx_op_complete(&file->op, rc);
  sbx_op_unref(&file->op);
}

static int submit(struct file_op *file, struct sbx_op **op) {
  sbx_op_ref(&file->op); /* the pool's */
  int rc = sbx_engine_post(&file->start);
  if (rc >= 0) {
    *op = &file->op;
    return 0;
  }
  sbx_op_unref(&file->op);
  sbx_op_unref(&file->op);
  return rc;
}

static int new_file_op(enum kind kind, struct sbx_root *root, const char *path,
                       struct file_op **out) {
  struct file_op *file = calloc(1, sizeof *file);
  if (file == NULL) return -ENOMEM;
  file->path = strdup(path);
  int rc = file->path == NULL ? -ENOMEM : sbx_op_init(&file->op, NULL, destroy);
  if (rc != 0) {
    free(file->path);
    free(file);
    return rc;
  }
  file->kind = kind;
  file->start.run = start;
  file->root = root;
  if (root != NULL) atomic_fetch_add_explicit(&root->refs, 1, memory_order_relaxed);
  *out = file;
  return 0;
}

int sbx_file_op_put(struct sbx_root *root, const char *path, const void *data, size_t len,
                    struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(PUT, root, path, &file);
  if (rc != 0) return rc;
  file->put_data = data;
  file->put_len = len;
  file->op.lends = true;
  return submit(file, op);
}

int sbx_file_op_get(struct sbx_root *root, const char *path, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(GET, root, path, &file);
  return rc != 0 ? rc : submit(file, op);
}

int sbx_file_op_list(struct sbx_root *root, const char *path, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(LIST, root, path, &file);
  return rc != 0 ? rc : submit(file, op);
}

int sbx_file_op_remove_tree(struct sbx_root *parent, const char *name, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(REMOVE_TREE, parent, name, &file);
  return rc != 0 ? rc : submit(file, op);
}

int sbx_file_op_make_dirs(const char *path, mode_t mode, struct sbx_op **op) {
  struct file_op *file;
  int rc = new_file_op(MAKE_DIRS, NULL, path, &file);
  if (rc != 0) return rc;
  file->mode = mode;
  return submit(file, op);
}

bool sbx_file_op_data(struct sbx_op *op, const void **data, size_t *len) {
  if (op->destroy != destroy || !sbx_op_is_done(op)) return false;
  const struct file_op *file = (const struct file_op *)op;
  if (file->got_data == NULL) return false;
  *data = file->got_data;
  *len = file->got_len;
  return true;
}
