/* SPDX-License-Identifier: MIT
 *
 * The guard: a small process that stops the commands' groups when this program dies, however it
 * dies (SPEC L6).
 *
 * Both share a table of the groups that are running. A command writes itself into it before it
 * becomes the program it runs, and is taken out before its leader is reaped, so nothing has to be
 * told to the guard: it sleeps until this process is gone, then reads the table. Starting a command
 * costs two stores, not a message.
 */
#ifndef SBX_GUARD_H
#define SBX_GUARD_H

#include <stdatomic.h>
#include <sys/types.h>

/* One running group: its leader's pid, 0 while the slot is free or not yet filled. */
struct sbx_guard_slot {
  atomic_int pid;
};

/* Starts the guard. 0 or -errno. Called by the engine's start, under its lock. */
int sbx_guard_start(void);
/* Undoes sbx_guard_start. */
void sbx_guard_stop(void);
/* A descriptor (borrowed) that becomes readable when the guard has died; -1: there is none. */
int sbx_guard_fd(void);
/* Buries a guard that has died and starts another, which sees the same table. 0 or -errno. */
int sbx_guard_restart(void);
/* The program ends by itself and has stopped its commands. */
void sbx_guard_end(void);
/* Takes a free slot. 0, with *slot NULL where no guard was started; -EAGAIN: the table is full. */
int sbx_guard_take(struct sbx_guard_slot **slot);
/* Empties a slot and gives it back. NULL is fine. */
void sbx_guard_give(struct sbx_guard_slot *slot);

#endif
