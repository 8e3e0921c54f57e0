/* SPDX-License-Identifier: MIT
 *
 * proves: A1, A3 (the part of the runtime)
 *
 * Ops and ports: an op completes once, whoever waits, notifies or cancels at the same moment; a
 * port hands out what completed in order, and its descriptor never forgets to wake.
 */
#define _GNU_SOURCE
#include "../op.h"

#include <poll.h>
#include <pthread.h>

#include "procs.h"

struct tried {
  struct sbx_op op;
  atomic_int cancels;
};

static atomic_int alive;

static void destroy(struct sbx_op *op) {
  atomic_fetch_sub(&alive, 1);
  free(op);
}

static void count_cancel(struct sbx_op *op) {
  atomic_fetch_add(&((struct tried *)op)->cancels, 1);
}

static void complete_on_cancel(struct sbx_op *op) {
  count_cancel(op);
  sbx_op_complete(op, -ECANCELED);
}

static struct sbx_op *new_op(void (*cancel)(struct sbx_op *)) {
  struct tried *tried = calloc(1, sizeof *tried);
  CHECK_EQ_INT(sbx_op_init(&tried->op, cancel, destroy), 0);
  atomic_fetch_add(&alive, 1);
  return &tried->op;
}

static int cancels(struct sbx_op *op) {
  return atomic_load(&((struct tried *)op)->cancels);
}

static bool is_readable(const struct sbx_port *port) {
  struct pollfd look = {.fd = sbx_port_fd(port), .events = POLLIN};
  return poll(&look, 1, 0) == 1;
}

/* Runs the same function in several threads that begin together. */
#define THREADS 4
struct crew {
  pthread_barrier_t start;
  void (*run)(int number, void *arg);
  void *arg;
  atomic_int next;
  pthread_t thread[THREADS];
};

static void *crew_main(void *arg) {
  struct crew *crew = arg;
  int number = atomic_fetch_add(&crew->next, 1);
  pthread_barrier_wait(&crew->start);
  crew->run(number, crew->arg);
  return NULL;
}

static void crew_begin(struct crew *crew, void (*run)(int, void *), void *arg) {
  pthread_barrier_init(&crew->start, NULL, THREADS + 1);
  crew->run = run;
  crew->arg = arg;
  atomic_init(&crew->next, 0);
  for (int i = 0; i < THREADS; i++)
    CHECK_EQ_INT(pthread_create(&crew->thread[i], NULL, crew_main, crew), 0);
  pthread_barrier_wait(&crew->start);
}

static void crew_end(struct crew *crew) {
  for (int i = 0; i < THREADS; i++)
    pthread_join(crew->thread[i], NULL);
  pthread_barrier_destroy(&crew->start);
}

TEST(completes_once) {
  struct sbx_op *op = new_op(NULL);
  CHECK(!sbx_op_is_done(op));
  sbx_op_complete(op, -EPIPE);
  CHECK(sbx_op_is_done(op));
  sbx_op_complete(op, 0);
  CHECK_EQ_INT(sbx_op_wait(op), -EPIPE);
  CHECK_EQ_INT(sbx_op_wait(op), -EPIPE);
  CHECK_EQ_INT(atomic_load(&alive), 1);
  sbx_op_ref(op);
  sbx_op_unref(op);
  CHECK_EQ_INT(atomic_load(&alive), 1);
  sbx_op_unref(op);
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

static void complete_with_number(int number, void *op) {
  sbx_op_complete(op, -1 - number);
}

TEST(first_of_many_completions_counts_and_is_notified_once) {
  for (int i = 0; i < scaled(400, 20); i++) {
    struct sbx_port *port;
    uint64_t id;
    struct crew crew;
    struct sbx_op *op = new_op(NULL);
    CHECK_EQ_INT(sbx_port_new(&port), 0);
    CHECK(!sbx_op_notify(op, port));
    crew_begin(&crew, complete_with_number, op);
    int result = sbx_op_wait(op);
    crew_end(&crew);
    CHECK(result <= -1 && result >= -THREADS);
    CHECK_EQ_INT(sbx_op_wait(op), result);
    CHECK(sbx_port_take(port, &id) && id == op->id);
    CHECK(!sbx_port_take(port, &id));
    sbx_op_unref(op);
    sbx_port_unref(port);
  }
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

static atomic_int waiting, woken;

static void wait_and_count(int number, void *op) {
  (void)number;
  atomic_fetch_add(&waiting, 1);
  CHECK_EQ_INT(sbx_op_wait(op), -EIO);
  atomic_fetch_add(&woken, 1);
}

TEST(several_threads_wait) {
  struct crew crew;
  struct sbx_op *op = new_op(NULL);
  crew_begin(&crew, wait_and_count, op);
  CHECK_COMES(atomic_load(&waiting) == THREADS);
  sleep_us(20000);
  CHECK_EQ_INT(atomic_load(&woken), 0);
  sbx_op_complete(op, -EIO);
  crew_end(&crew);
  CHECK_EQ_INT(atomic_load(&woken), THREADS);
  sbx_op_unref(op);
}

TEST(notify_before_and_after) {
  struct sbx_port *port;
  uint64_t id = 0;
  struct sbx_op *op = new_op(NULL), *done = new_op(NULL);
  CHECK_EQ_INT(sbx_port_new(&port), 0);
  CHECK((fcntl(sbx_port_fd(port), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(!sbx_port_take(port, &id));
  CHECK(!sbx_op_notify(op, port));
  CHECK(!sbx_op_notify(op, port)); /* asking twice is being told once */
  CHECK(!is_readable(port));
  sbx_op_complete(op, 0);
  CHECK(is_readable(port));
  CHECK(sbx_port_take(port, &id));
  CHECK(id == op->id);
  CHECK(!is_readable(port));
  CHECK(!sbx_port_take(port, &id));

  sbx_op_complete(done, 0);
  CHECK(sbx_op_notify(done, port));
  CHECK(!is_readable(port));
  CHECK(!sbx_port_take(port, &id));
  CHECK(op->id != done->id);
  sbx_op_unref(op);
  sbx_op_unref(done);
  sbx_port_unref(port);
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

static void complete_first(int number, void *op) {
  if (number == 0) sbx_op_complete(op, 0);
}

TEST(notify_racing_completion_tells_exactly_once) {
  struct sbx_port *port;
  CHECK_EQ_INT(sbx_port_new(&port), 0);
  for (int i = 0; i < scaled(1000, 20); i++) {
    struct crew crew;
    uint64_t id = 0;
    struct sbx_op *op = new_op(NULL);
    crew_begin(&crew, complete_first, op);
    bool done = sbx_op_notify(op, port);
    crew_end(&crew);
    CHECK(sbx_op_is_done(op));
    CHECK(sbx_port_take(port, &id) == !done);
    if (!done) CHECK(id == op->id);
    CHECK(!sbx_port_take(port, &id));
    sbx_op_unref(op);
  }
  sbx_port_unref(port);
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

#define MANY 1000

static void new_notified(struct sbx_op **ops, int count, struct sbx_port *port) {
  for (int i = 0; i < count; i++) {
    ops[i] = new_op(NULL);
    CHECK(!sbx_op_notify(ops[i], port));
  }
}

TEST(port_keeps_order_and_burst_wakes_once) {
  struct sbx_op *ops[MANY];
  struct sbx_port *port;
  uint64_t id, wakes = 0;
  CHECK_EQ_INT(sbx_port_new(&port), 0);
  new_notified(ops, MANY, port);
  for (int i = 0; i < MANY; i++)
    sbx_op_complete(ops[(i * 7) % MANY], 0);
  CHECK_EQ_INT(read(sbx_port_fd(port), &wakes, sizeof wakes), sizeof wakes);
  CHECK_EQ_INT(wakes, 1);
  for (int i = 0; i < MANY; i++)
    CHECK(sbx_port_take(port, &id) && id == ops[(i * 7) % MANY]->id);
  CHECK(!sbx_port_take(port, &id));
  for (int i = 0; i < MANY; i++)
    sbx_op_unref(ops[i]);

  new_notified(ops, 2, port); /* it wakes again, and stays awake until it is empty */
  sbx_op_complete(ops[0], 0);
  sbx_op_complete(ops[1], 0);
  CHECK(is_readable(port));
  CHECK(sbx_port_take(port, &id) && id == ops[0]->id);
  CHECK(is_readable(port));
  CHECK(sbx_port_take(port, &id) && id == ops[1]->id);
  CHECK(!is_readable(port));
  sbx_op_unref(ops[0]);
  sbx_op_unref(ops[1]);
  sbx_port_unref(port);
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

static void complete_share(int number, void *arg) {
  struct sbx_op **ops = arg;
  for (int i = number; i < MANY; i += THREADS) {
    sbx_op_complete(ops[i], 0);
    sbx_op_unref(ops[i]);
    if (i % 64 < THREADS) sleep_us(50);
  }
}

/* A reader that sleeps on the descriptor gets all of what many threads complete. */
TEST(no_wake_up_is_lost) {
  for (int round = 0; round < scaled(20, 1); round++) {
    struct sbx_op *ops[MANY];
    struct sbx_port *port;
    struct crew crew;
    uint64_t id;
    int got = 0;
    CHECK_EQ_INT(sbx_port_new(&port), 0);
    new_notified(ops, MANY, port);
    crew_begin(&crew, complete_share, ops);
    while (got < MANY) {
      struct pollfd look = {.fd = sbx_port_fd(port), .events = POLLIN};
      int ready = poll(&look, 1, 10000);
      CHECK_EQ_INT(ready, 1);
      if (ready != 1) break;
      while (sbx_port_take(port, &id))
        got++;
    }
    CHECK_EQ_INT(got, MANY);
    crew_end(&crew);
    CHECK(!is_readable(port));
    sbx_port_unref(port);
  }
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

TEST(port_that_goes_first_leaks_nothing) {
  struct sbx_op *ops[3];
  struct sbx_port *port;
  CHECK_EQ_INT(sbx_port_new(&port), 0);
  new_notified(ops, 3, port);
  sbx_op_complete(ops[0], 0); /* queued and never taken */
  sbx_op_unref(ops[0]);
  CHECK_EQ_INT(atomic_load(&alive), 3);
  sbx_port_unref(port);
  sbx_op_complete(ops[1], 0); /* completes after its port's owner has gone */
  sbx_op_unref(ops[1]);
  sbx_op_unref(ops[2]); /* never completes, and holds the port to the last */
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

TEST(cancel_asks_once_and_not_when_done) {
  struct sbx_op *op = new_op(count_cancel), *stubborn = new_op(NULL), *done = new_op(count_cancel);
  sbx_op_cancel(op);
  sbx_op_cancel(op);
  CHECK_EQ_INT(cancels(op), 1);
  CHECK(!sbx_op_is_done(op)); /* it is the owner who completes */
  sbx_op_cancel(stubborn);
  CHECK(!sbx_op_is_done(stubborn));
  sbx_op_complete(done, 0);
  sbx_op_cancel(done);
  CHECK_EQ_INT(cancels(done), 0);
  sbx_op_unref(op);
  sbx_op_unref(stubborn);
  sbx_op_unref(done);
}

static void cancel_or_complete(int number, void *op) {
  if (number == 0)
    sbx_op_complete(op, 0);
  else
    sbx_op_cancel(op);
}

TEST(cancel_racing_completion) {
  for (int i = 0; i < scaled(1000, 20); i++) {
    struct crew crew;
    struct sbx_op *op = new_op(complete_on_cancel);
    crew_begin(&crew, cancel_or_complete, op);
    int result = sbx_op_wait(op);
    crew_end(&crew);
    CHECK(cancels(op) <= 1);
    CHECK(result == 0 || (result == -ECANCELED && cancels(op) == 1));
    sbx_op_unref(op);
  }
  CHECK_EQ_INT(atomic_load(&alive), 0);
}

static uint64_t ids[THREADS * MANY];

static void take_ids(int number, void *arg) {
  (void)arg;
  for (int i = 0; i < MANY; i++) {
    struct sbx_op *op = new_op(NULL);
    ids[number * MANY + i] = op->id;
    sbx_op_unref(op);
  }
}

static int compare_ids(const void *a, const void *b) {
  const uint64_t *x = a, *y = b;
  return *x < *y ? -1 : *x > *y;
}

TEST(no_two_ops_share_an_id) {
  struct crew crew;
  crew_begin(&crew, take_ids, NULL);
  crew_end(&crew);
  qsort(ids, THREADS * MANY, sizeof *ids, compare_ids);
  for (int i = 1; i < THREADS * MANY; i++)
    if (ids[i] == ids[i - 1]) CHECK(ids[i] != ids[i - 1]);
}

CHECK_MAIN()
