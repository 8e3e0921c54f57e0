/* SPDX-License-Identifier: MIT
 *
 * File work as ops: the blocking functions of files.h, files_stat.h and files_stream.h, run on the
 * worker threads of pool.h, so that neither a task's neighbours nor the engine wait for a disk.
 *
 * A root is shared by reference: an op may outlive the session that started it. Ops are owned by
 * the caller. They cannot be hurried: cancelling waits for the work, and a put is whole or was
 * never begun.
 *
 * A stream is a put or a get in pieces: opened once, then one op at a time. It is shared by
 * reference too; the last one closes it, and what was not committed leaves no file.
 */
#ifndef SBX_FILE_OP_H
#define SBX_FILE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "files.h"
#include "files_stat.h"
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
/* The op's entries (below). */
int sbx_file_op_scan(struct sbx_root *root, const char *path, struct sbx_op **op);
/* The op's entries are one, without its name. */
int sbx_file_op_stat(struct sbx_root *root, const char *path, struct sbx_op **op);
int sbx_file_op_remove(struct sbx_root *root, const char *path, bool recursive, struct sbx_op **op);
int sbx_file_op_remove_tree(struct sbx_root *parent, const char *name, struct sbx_op **op);
int sbx_file_op_make_dirs(const char *path, mode_t mode, struct sbx_op **op);

/* The bytes a completed get or list has read (borrowed from op); false if op is none that
 * succeeded. */
bool sbx_file_op_data(struct sbx_op *op, const void **data, size_t *len);
/* What a completed scan or stat has found, as above; NULL if op is none that succeeded. */
const struct sbx_files_entries *sbx_file_op_entries(struct sbx_op *op);

struct sbx_stream;

int sbx_stream_new(struct sbx_stream **stream); /* owned, not open */
void sbx_stream_unref(struct sbx_stream *stream);

/* Each of these is -EBUSY while an op of the stream has not completed, and the op fails with -EBADF
 * when the stream is not open (for an open: when it is) or goes the other way. */
int sbx_file_op_open_put(struct sbx_stream *stream, struct sbx_root *root, const char *path,
                         struct sbx_op **op);
int sbx_file_op_open_get(struct sbx_stream *stream, struct sbx_root *root, const char *path,
                         struct sbx_op **op);
/* data is lent until the op completes. */
int sbx_file_op_write(struct sbx_stream *stream, const void *data, size_t len, struct sbx_op **op);
int sbx_file_op_commit(struct sbx_stream *stream, struct sbx_op **op);
/* Reads the next piece, of 128 KiB but for the last. */
int sbx_file_op_read(struct sbx_stream *stream, struct sbx_op **op);
/* Ends a get, or a put without a trace; also of one that is not open. */
int sbx_file_op_close(struct sbx_stream *stream, struct sbx_op **op);

/* The piece that the last read brought (borrowed until the next op): empty at the file's end, and
 * when there is none. False while an op of the stream has not completed. */
bool sbx_stream_piece(struct sbx_stream *stream, const void **data, size_t *len);

#endif
