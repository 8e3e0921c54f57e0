/* SPDX-License-Identifier: MIT
 *
 * What is still to be written to a command's stdin, in order, each write whole (SPEC X6, X11).
 *
 * Small writes are copied into a bounded buffer and done at once. A write that does not fit waits:
 * its bytes stay the caller's until its op completes, or until it is abandoned, when what has begun
 * to go out is copied and still goes out whole.
 *
 * Not locked here: the owner's lock covers each call. The descriptor must not block.
 */
#ifndef SBX_FEED_H
#define SBX_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op.h"

#define SBX_FEED_BUFFER ((size_t)64 * 1024)

struct sbx_feed_item;

struct sbx_feed {
  struct sbx_feed_item *head, *tail; /* owned */
  size_t buffered;                   /* bytes copied and not yet written */
  uint64_t written;                  /* bytes the pipe has taken */
};

/* Copies data in. 0; -EAGAIN: it does not fit, use sbx_feed_lend; -ENOMEM. */
int sbx_feed_copy(struct sbx_feed *feed, const char *data, size_t len);
/* Queues data that stays valid until op (referenced; may be NULL) completes or the feed drops it.
 */
int sbx_feed_lend(struct sbx_feed *feed, const char *data, size_t len, struct sbx_op *op);
/* Writes until nothing is left (0) or fd takes no more (-EAGAIN); else -errno. Completes ops. */
int sbx_feed_write(struct sbx_feed *feed, int fd);
bool sbx_feed_is_empty(const struct sbx_feed *feed);
size_t sbx_feed_pending(const struct sbx_feed *feed); /* bytes not yet written */
/* Gives up the lent data of op: removed if untouched, copied if begun. 0 or -ENOMEM (then the rest
 * of it is lost and the caller must treat the stdin as failed). */
int sbx_feed_abandon(struct sbx_feed *feed, struct sbx_op *op);
/* Drops everything; waiting ops complete with error. */
void sbx_feed_drop(struct sbx_feed *feed, int error);

#endif
