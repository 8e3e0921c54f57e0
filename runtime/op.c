/* SPDX-License-Identifier: MIT
 *
 * Operations and completion ports (see op.h).
 *
 * An op's lock and its port's are never held together. The port's descriptor is written only when
 * the queue turns non-empty, and cleared before the queue is emptied, so a wake-up is never lost
 * and a burst of completions costs one.
 */
#include "op.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct sbx_port {
  atomic_uint refs;
  pthread_mutex_t lock;
  int fd;
  struct sbx_op *head; /* each queued op carries a reference */
  struct sbx_op *tail;
};

static atomic_uint_fast64_t next_id = 1;

int sbx_op_init(struct sbx_op *op, void (*cancel)(struct sbx_op *),
                void (*destroy)(struct sbx_op *)) {
  atomic_init(&op->refs, 1);
  op->id = atomic_fetch_add(&next_id, 1);
  int rc = pthread_mutex_init(&op->lock, NULL);
  if (rc != 0) return -rc;
  rc = pthread_cond_init(&op->completed, NULL);
  if (rc != 0) {
    pthread_mutex_destroy(&op->lock);
    return -rc;
  }
  op->done = false;
  op->result = 0;
  op->port = NULL;
  op->next = NULL;
  op->cancel = cancel;
  atomic_init(&op->cancelled, false);
  op->lends = false;
  op->destroy = destroy;
  return 0;
}

void sbx_op_ref(struct sbx_op *op) {
  atomic_fetch_add_explicit(&op->refs, 1, memory_order_relaxed);
}

void sbx_op_unref(struct sbx_op *op) {
  if (atomic_fetch_sub_explicit(&op->refs, 1, memory_order_acq_rel) != 1) return;
  if (op->port != NULL) sbx_port_unref(op->port);
  pthread_cond_destroy(&op->completed);
  pthread_mutex_destroy(&op->lock);
  op->destroy(op);
}

static void port_push(struct sbx_port *port, struct sbx_op *op) {
  sbx_op_ref(op);
  pthread_mutex_lock(&port->lock);
  bool was_empty = port->head == NULL;
  op->next = NULL;
  if (was_empty)
    port->head = op;
  else
    port->tail->next = op;
  port->tail = op;
  if (was_empty) {
    uint64_t one = 1;
    /* Cannot fail: the counter is at most 1 here. */
    ssize_t written = write(port->fd, &one, sizeof one);
    (void)written;
  }
  pthread_mutex_unlock(&port->lock);
}

void sbx_op_complete(struct sbx_op *op, int result) {
  pthread_mutex_lock(&op->lock);
  if (op->done) {
    pthread_mutex_unlock(&op->lock);
    return;
  }
  op->done = true;
  op->result = result;
  pthread_cond_broadcast(&op->completed);
  struct sbx_port *port = op->port;
  op->port = NULL;
  pthread_mutex_unlock(&op->lock);
  if (port == NULL) return;
  port_push(port, op);
  /* Given back only now: a queued op must not hold its port, or neither would ever go. */
  sbx_port_unref(port);
}

bool sbx_op_is_done(struct sbx_op *op) {
  pthread_mutex_lock(&op->lock);
  bool done = op->done;
  pthread_mutex_unlock(&op->lock);
  return done;
}

int sbx_op_wait(struct sbx_op *op) {
  pthread_mutex_lock(&op->lock);
  while (!op->done)
    pthread_cond_wait(&op->completed, &op->lock);
  int result = op->result;
  pthread_mutex_unlock(&op->lock);
  return result;
}

bool sbx_op_notify(struct sbx_op *op, struct sbx_port *port) {
  pthread_mutex_lock(&op->lock);
  bool done = op->done;
  if (!done && op->port == NULL) {
    atomic_fetch_add_explicit(&port->refs, 1, memory_order_relaxed);
    op->port = port;
  }
  pthread_mutex_unlock(&op->lock);
  return done;
}

void sbx_op_cancel(struct sbx_op *op) {
  if (op->cancel == NULL || sbx_op_is_done(op)) return;
  if (!atomic_exchange(&op->cancelled, true)) op->cancel(op);
}

int sbx_port_new(struct sbx_port **out) {
  struct sbx_port *port = calloc(1, sizeof *port);
  if (port == NULL) return -ENOMEM;
  int rc = pthread_mutex_init(&port->lock, NULL);
  if (rc != 0) {
    free(port);
    return -rc;
  }
  atomic_init(&port->refs, 1);
  port->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (port->fd < 0) {
    rc = -errno;
    pthread_mutex_destroy(&port->lock);
    free(port);
    return rc;
  }
  *out = port;
  return 0;
}

void sbx_port_unref(struct sbx_port *port) {
  if (atomic_fetch_sub_explicit(&port->refs, 1, memory_order_acq_rel) != 1) return;
  /* No op can hold the port any more, so what is queued has no reader either. */
  while (port->head != NULL) {
    struct sbx_op *op = port->head;
    port->head = op->next;
    sbx_op_unref(op);
  }
  close(port->fd);
  pthread_mutex_destroy(&port->lock);
  free(port);
}

int sbx_port_fd(const struct sbx_port *port) {
  return port->fd;
}

bool sbx_port_take(struct sbx_port *port, uint64_t *id) {
  pthread_mutex_lock(&port->lock);
  struct sbx_op *op = port->head;
  if (op != NULL) {
    port->head = op->next;
    if (port->head == NULL) {
      uint64_t count;
      ssize_t got = read(port->fd, &count, sizeof count);
      (void)got;
    }
  }
  pthread_mutex_unlock(&port->lock);
  if (op == NULL) return false;
  *id = op->id;
  sbx_op_unref(op);
  return true;
}
