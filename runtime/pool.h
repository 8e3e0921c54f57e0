/* SPDX-License-Identifier: MIT
 *
 * Worker threads for what blocks: file work.
 *
 * libuv has a pool too, but it aborts the program when it cannot have its threads, and joins them
 * when a forked child exits, where they do not exist. These are made on the first job, all at once,
 * and never joined; where not all can be had, fewer do.
 */
#ifndef SBX_POOL_H
#define SBX_POOL_H

/* One piece of work, owned by the submitter, valid until run is called. */
struct sbx_job {
  void (*run)(struct sbx_job *job); /* on a worker's thread */
  struct sbx_job *next;
};

/* 0, -EOWNERDEAD in a forked child, or why there is no worker. Jobs begin in the order they came.
 */
int sbx_pool_submit(struct sbx_job *job);

#endif
