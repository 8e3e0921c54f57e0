/* SPDX-License-Identifier: MIT
 *
 * The queue of stdin writes (see feed.h).
 */
#include "feed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sbx_feed_item {
  struct sbx_feed_item *next;
  const char *data; /* own, below, or the lender's */
  size_t len, done;
  bool lent;
  struct sbx_op *op; /* owned reference, or NULL */
  char own[];
};

static struct sbx_feed_item *new_item(size_t room) {
  struct sbx_feed_item *item = malloc(sizeof *item + room);
  if (item == NULL) return NULL;
  *item = (struct sbx_feed_item){.data = item->own};
  return item;
}

static struct sbx_feed_item *new_copy(const char *data, size_t len) {
  struct sbx_feed_item *item = new_item(len);
  if (item == NULL) return NULL;
  memcpy(item->own, data, len);
  item->len = len;
  return item;
}

static void append(struct sbx_feed *feed, struct sbx_feed_item *item) {
  if (feed->tail == NULL)
    feed->head = item;
  else
    feed->tail->next = item;
  feed->tail = item;
}

int sbx_feed_copy(struct sbx_feed *feed, const char *data, size_t len) {
  if (feed->buffered + len > SBX_FEED_BUFFER) return -EAGAIN;
  struct sbx_feed_item *item = new_copy(data, len);
  if (item == NULL) return -ENOMEM;
  feed->buffered += len;
  append(feed, item);
  return 0;
}

int sbx_feed_lend(struct sbx_feed *feed, const char *data, size_t len, struct sbx_op *op) {
  struct sbx_feed_item *item = new_item(0);
  if (item == NULL) return -ENOMEM;
  item->data = data;
  item->len = len;
  item->lent = true;
  item->op = op;
  if (op != NULL) sbx_op_ref(op);
  append(feed, item);
  return 0;
}

static void finish_item(struct sbx_feed_item *item, int result) {
  if (item->op != NULL) {
    sbx_op_complete(item->op, result);
    sbx_op_unref(item->op);
  }
  free(item);
}

static struct sbx_feed_item *pop(struct sbx_feed *feed) {
  struct sbx_feed_item *item = feed->head;
  feed->head = item->next;
  if (feed->head == NULL) feed->tail = NULL;
  return item;
}

int sbx_feed_write(struct sbx_feed *feed, int fd) {
  while (feed->head != NULL) {
    struct sbx_feed_item *item = feed->head;
    while (item->done < item->len) {
      ssize_t wrote = write(fd, item->data + item->done, item->len - item->done);
      if (wrote < 0) {
        if (errno == EINTR) continue;
        return -errno;
      }
      item->done += (size_t)wrote;
      feed->written += (uint64_t)wrote;
      if (!item->lent) feed->buffered -= (size_t)wrote;
    }
    finish_item(pop(feed), 0);
  }
  return 0;
}

bool sbx_feed_is_empty(const struct sbx_feed *feed) {
  return feed->head == NULL;
}

size_t sbx_feed_pending(const struct sbx_feed *feed) {
  size_t pending = 0;
  for (const struct sbx_feed_item *item = feed->head; item != NULL; item = item->next)
    pending += item->len - item->done;
  return pending;
}

int sbx_feed_abandon(struct sbx_feed *feed, struct sbx_op *op) {
  struct sbx_feed_item **link = &feed->head, *before = NULL;
  while (*link != NULL && (*link)->op != op) {
    before = *link;
    link = &before->next;
  }
  struct sbx_feed_item *item = *link;
  if (item == NULL) return 0;
  struct sbx_feed_item *rest = NULL;
  int rc = 0;
  if (item->done > 0) {
    rest = new_copy(item->data + item->done, item->len - item->done);
    if (rest == NULL)
      rc = -ENOMEM;
    else
      feed->buffered += rest->len; /* may pass the bound once: the bytes are owed */
  }
  if (rest != NULL) {
    rest->next = item->next;
    *link = rest;
  } else {
    *link = item->next;
  }
  if (feed->tail == item) feed->tail = rest != NULL ? rest : before;
  finish_item(item, -ECANCELED);
  return rc;
}

void sbx_feed_drop(struct sbx_feed *feed, int error) {
  while (feed->head != NULL)
    finish_item(pop(feed), error);
  feed->buffered = 0;
}
