/* SPDX-License-Identifier: MIT
 *
 * File work as ops: the blocking functions of files.h, run on the engine's worker pool, so that
 * neither a task's neighbours nor the engine wait for a disk.
 *
 * A root is shared by reference: an op may outlive the session that started it. Ops are owned by
 * the caller. They cannot be hurried: cancelling waits for the work, and a put is whole or was
 * never begun.
 */
#ifndef SBX_FILE_OP_H
#define SBX_FILE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "files.h"
#include "op.h"

struct sbx_root;

int sbx_root_open(const char *path, struct sbx_root **root); /* owned; blocks shortly */
void sbx_root_unref(struct sbx_root *root);
const struct sbx_files_root *sbx_root_files(const struct sbx_root *root); /* borrowed */

/* data is lent until the op completes. */
int sbx_file_op_put(struct sbx_root *root, const char *path, const void *data, size_t len,
                    struct sbx_op **op);
int sbx_file_op_get(struct sbx_root *root, const char *path, struct sbx_op **op);
/* The op's data are the names in a directory, each followed by a NUL. */
int sbx_file_op_list(struct sbx_root *root, const char *path, struct sbx_op **op);
int sbx_file_op_remove_tree(struct sbx_root *parent, const char *name, struct sbx_op **op);
int sbx_file_op_make_dirs(const char *path, mode_t mode, struct sbx_op **op);

/* The bytes a completed get or list has read (borrowed from op); false if op is none that
 * succeeded. */
bool sbx_file_op_data(struct sbx_op *op, const void **data, size_t *len);

#endif
