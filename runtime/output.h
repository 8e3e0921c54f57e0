/* SPDX-License-Identifier: MIT
 *
 * The output of a command, kept in arrival order until somebody reads it (SPEC X10, X12).
 *
 * Up to a threshold it stays in memory; beyond that it goes to an unlinked temporary file, from
 * which it is read back in the same order. Once the file has been read out it is emptied and memory
 * is used again. A chunk is never empty and holds bytes of one stream.
 *
 * Not locked here: the owner's lock covers each call.
 */
#ifndef SBX_OUTPUT_H
#define SBX_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum sbx_stream { SBX_STDOUT = 0, SBX_STDERR = 1 };

#define SBX_CHUNK_MAX ((size_t)64 * 1024)
#define SBX_OUTPUT_MEMORY ((size_t)1024 * 1024)

struct sbx_chunk {
  struct sbx_chunk *next;
  size_t len;
  size_t room; /* bytes data can hold */
  enum sbx_stream stream;
  char data[];
};

struct sbx_output {
  struct sbx_chunk *head, *tail; /* owned */
  size_t in_memory;              /* bytes allocated for chunks */
  int spill_fd;                  /* owned; -1 until the first spill */
  off_t spill_read, spill_write; /* equal: nothing is spilled */
};

void sbx_output_init(struct sbx_output *output);
void sbx_output_free(struct sbx_output *output);
/* A chunk with room for SBX_CHUNK_MAX bytes, to be filled; NULL when memory is short. Any thread.
 */
struct sbx_chunk *sbx_chunk_new(void);
/* Any thread. Full-sized chunks are kept for the next sbx_chunk_new. */
void sbx_chunk_free(struct sbx_chunk *chunk);
/* Appends up to SBX_CHUNK_MAX bytes. 0, or -errno when neither memory nor the file takes them. */
int sbx_output_put(struct sbx_output *output, enum sbx_stream stream, const char *data, size_t len);
/* As sbx_output_put with what is in chunk (one of sbx_chunk_new), without copying it. The chunk is
 * given away in any case. */
int sbx_output_give(struct sbx_output *output, enum sbx_stream stream, struct sbx_chunk *chunk);
bool sbx_output_is_empty(const struct sbx_output *output);
/* Takes the next chunk (owned by the caller, sbx_chunk_free it); -EAGAIN when there is none. */
int sbx_output_take(struct sbx_output *output, struct sbx_chunk **chunk);
/* Forgets what was not read. */
void sbx_output_discard(struct sbx_output *output);

#endif
