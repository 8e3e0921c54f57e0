/* SPDX-License-Identifier: MIT
 *
 * Operations and completion ports: how work of the engine becomes known to its caller.
 *
 * An op is one awaited thing (a one-shot exec, a readable handle, a file transfer). It completes
 * exactly once, with 0 or -errno; data that belongs to it is fetched from its owner afterwards. A
 * caller either blocks on it (sbx_op_wait) or asks a port to collect it (sbx_op_notify): a port is
 * the queue of one Lua state, and its descriptor becomes readable when something is in it.
 *
 * Ops are reference counted because caller and engine let go of them in either order. Nothing here
 * knows the event loop or Lua.
 */
#ifndef SBX_OP_H
#define SBX_OP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct sbx_port;

struct sbx_op {
  atomic_uint refs;
  uint64_t id; /* never reused: a late completion cannot be taken for another op's */
  pthread_mutex_t lock;
  pthread_cond_t completed;
  bool done;
  int result;
  struct sbx_port *port; /* owned reference while notification is pending */
  struct sbx_op *next;   /* link in the port's queue */
  /* Asks the owner to end the op early; called without locks, at most once, before completion or
   * racing with it. NULL: the op cannot be hurried. */
  void (*cancel)(struct sbx_op *op);
  atomic_bool cancelled;
  bool lends; /* uses memory of its caller until it completes, cancelled or not */
  void (*destroy)(struct sbx_op *op); /* called with the last reference */
};

int sbx_op_init(struct sbx_op *op, void (*cancel)(struct sbx_op *),
                void (*destroy)(struct sbx_op *));
void sbx_op_ref(struct sbx_op *op);
void sbx_op_unref(struct sbx_op *op);

/* Completes op with 0 or -errno; a second completion is ignored. */
void sbx_op_complete(struct sbx_op *op, int result);
bool sbx_op_is_done(struct sbx_op *op);
/* Blocks until op is done; returns its result. */
int sbx_op_wait(struct sbx_op *op);
/* Returns true if op is done already; otherwise port will receive it. */
bool sbx_op_notify(struct sbx_op *op, struct sbx_port *port);
void sbx_op_cancel(struct sbx_op *op);

int sbx_port_new(struct sbx_port **port); /* owned */
void sbx_port_unref(struct sbx_port *port);
int sbx_port_fd(const struct sbx_port *port); /* borrowed */
/* Takes one completed op's id; false when the port is empty. Draining to false re-arms the
 * descriptor. */
bool sbx_port_take(struct sbx_port *port, uint64_t *id);

#endif
