/* SPDX-License-Identifier: MIT
 *
 * The engine: the one I/O thread of the process, with a libuv loop of its own.
 *
 * Deadlines, drains and kills live on this thread, so they hold while the program computes or sits
 * in a blocking call. Any thread posts work to it; only the engine's thread touches the loop. The
 * engine starts with the first post and ends when the process exits. A child forked
 * after the library was loaded has no part in it: there every call answers -EOWNERDEAD instead of
 * waiting for a thread that does not exist.
 */
#ifndef SBX_ENGINE_H
#define SBX_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct sbx_chunk;

/* One piece of work for the engine's thread. Owned by the poster, embedded in what it is about;
 * must stay valid until run is called. Posting one that is still queued does nothing. */
struct sbx_work {
  void (*run)(struct sbx_work *work); /* on the engine's thread */
  struct sbx_work *next;
  bool queued;
};

/* 0, -EOWNERDEAD in a forked child, or why the thread could not be started. */
int sbx_engine_start(void);
/* Returns 1 when work was queued, 0 when it was queued already, or as sbx_engine_start. */
int sbx_engine_post(struct sbx_work *work);
/* False in a forked child, where locks and threads of the engine must not be touched. */
bool sbx_engine_usable(void);

/* Below: on the engine's thread only. */
uv_loop_t *sbx_engine_loop(void); /* borrowed */
/* A buffer of SBX_ENGINE_SCRATCH bytes, valid until the callback returns. */
#define SBX_ENGINE_SCRATCH ((size_t)64 * 1024)
char *sbx_engine_scratch(void); /* NULL when memory is short */
/* Takes that buffer away: the chunk that it is the data of. Owned by the caller. */
struct sbx_chunk *sbx_engine_take_scratch(void);

/* What must be stopped when the process exits: `stop` is called on the engine's thread. */
struct sbx_live {
  struct sbx_live *prev, *next;
  void (*stop)(struct sbx_live *live);
};
void sbx_engine_add_live(struct sbx_live *live);
void sbx_engine_remove_live(struct sbx_live *live);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t sbx_now_ns(void);

#endif
