/* SPDX-License-Identifier: MIT
 *
 * proves: X12, X13 (the part of the runtime), R3
 *
 * The engine's thread: posted work is run once, in the order of each poster; a burst does not hold
 * up a timer; the start, the fork and the exit of the program, each at its worst moment.
 */
#define _GNU_SOURCE
#include "../engine.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/resource.h>

#include "procs.h"

struct waited {
  struct sbx_work work;
  sem_t done;
  void (*run)(void *arg);
  void *arg;
};

static void run_waited(struct sbx_work *work) {
  struct waited *waited = (struct waited *)(void *)work;
  waited->run(waited->arg);
  sem_post(&waited->done);
}

/* Runs a function on the engine's thread and waits for it. */
static void on_engine(void (*run)(void *), void *arg) {
  struct waited waited = {.work.run = run_waited, .run = run, .arg = arg};
  sem_init(&waited.done, 0, 0);
  CHECK_EQ_INT(sbx_engine_post(&waited.work), 1);
  while (sem_wait(&waited.done) != 0)
    ;
  sem_destroy(&waited.done);
}

static void nothing(void *arg) {
  (void)arg;
}

#define POSTERS 4
#define POSTS 2000

struct posted {
  struct sbx_work work;
  int poster, number;
};

static struct posted posted[POSTERS][POSTS];
static int last_number[POSTERS], out_of_order, elsewhere; /* engine's thread */
static atomic_int ran;
static pthread_t engine_thread;

static void note_thread(void *arg) {
  (void)arg;
  engine_thread = pthread_self();
}

static void note_order(struct sbx_work *work) {
  struct posted *it = (struct posted *)(void *)work;
  if (it->number != last_number[it->poster] + 1) out_of_order++;
  if (!pthread_equal(pthread_self(), engine_thread)) elsewhere++;
  last_number[it->poster] = it->number;
  atomic_fetch_add(&ran, 1);
}

static void *post_many(void *arg) {
  struct posted *mine = arg;
  for (int i = 0; i < POSTS; i++) {
    mine[i].work.run = note_order;
    mine[i].number = i + 1;
    CHECK_EQ_INT(sbx_engine_post(&mine[i].work), 1);
  }
  return NULL;
}

TEST(many_threads_post_and_each_work_runs_once_in_order) {
  pthread_t poster[POSTERS];
  on_engine(note_thread, NULL);
  CHECK(!pthread_equal(engine_thread, pthread_self()));
  for (int i = 0; i < POSTERS; i++) {
    for (int j = 0; j < POSTS; j++)
      posted[i][j].poster = i;
    CHECK_EQ_INT(pthread_create(&poster[i], NULL, post_many, posted[i]), 0);
  }
  for (int i = 0; i < POSTERS; i++)
    pthread_join(poster[i], NULL);
  CHECK_COMES(atomic_load(&ran) == POSTERS * POSTS);
  on_engine(nothing, NULL);
  CHECK_EQ_INT(atomic_load(&ran), POSTERS * POSTS);
  CHECK_EQ_INT(out_of_order, 0);
  CHECK_EQ_INT(elsewhere, 0);
}

struct counted {
  struct sbx_work work;
  atomic_int runs;
};

static void count_run(struct sbx_work *work) {
  atomic_fetch_add(&((struct counted *)(void *)work)->runs, 1);
}

static sem_t gate;

static void hold_engine(struct sbx_work *work) {
  (void)work;
  while (sem_wait(&gate) != 0)
    ;
}

TEST(work_that_is_queued_is_not_queued_again) {
  struct sbx_work hold = {.run = hold_engine};
  struct counted counted = {.work.run = count_run};
  sem_init(&gate, 0, 0);
  CHECK_EQ_INT(sbx_engine_post(&hold), 1);
  CHECK_EQ_INT(sbx_engine_post(&counted.work), 1);
  CHECK_EQ_INT(sbx_engine_post(&counted.work), 0);
  CHECK_EQ_INT(sbx_engine_post(&counted.work), 0);
  sem_post(&gate);
  on_engine(nothing, NULL);
  CHECK_EQ_INT(atomic_load(&counted.runs), 1);
  CHECK_EQ_INT(sbx_engine_post(&counted.work), 1);
  on_engine(nothing, NULL);
  CHECK_EQ_INT(atomic_load(&counted.runs), 2);
  sem_destroy(&gate);
}

static void post_itself(struct sbx_work *work) {
  if (atomic_fetch_add(&((struct counted *)(void *)work)->runs, 1) < 9)
    CHECK_EQ_INT(sbx_engine_post(work), 1);
}

TEST(work_may_post_itself_while_it_runs) {
  struct counted counted = {.work.run = post_itself};
  CHECK_EQ_INT(sbx_engine_post(&counted.work), 1);
  CHECK_COMES(atomic_load(&counted.runs) == 10);
  on_engine(nothing, NULL);
  CHECK_EQ_INT(atomic_load(&counted.runs), 10);
}

#define BUSY 400
static struct counted busy[BUSY];
static int busy_runs, runs_at_timer = -1; /* engine's thread */
static uv_timer_t timer;
static sem_t timer_closed;

static void on_timer_closed(uv_handle_t *handle) {
  (void)handle;
  sem_post(&timer_closed);
}

static void on_timer(uv_timer_t *handle) {
  runs_at_timer = busy_runs;
  uv_close((uv_handle_t *)handle, on_timer_closed);
}

static void start_timer(void *arg) {
  (void)arg;
  uv_update_time(sbx_engine_loop());
  uv_timer_init(sbx_engine_loop(), &timer);
  uv_timer_start(&timer, on_timer, 20, 0);
}

static void be_busy(struct sbx_work *work) {
  uint64_t until = sbx_now_ns() + 1000000;
  (void)work;
  while (sbx_now_ns() < until)
    ;
  busy_runs++;
}

TEST(burst_of_work_does_not_hold_up_a_timer) {
  sem_init(&timer_closed, 0, 0);
  on_engine(start_timer, NULL);
  for (int i = 0; i < BUSY; i++) {
    busy[i].work.run = be_busy;
    CHECK_EQ_INT(sbx_engine_post(&busy[i].work), 1);
  }
  while (sem_wait(&timer_closed) != 0)
    ;
  on_engine(nothing, NULL);
  CHECK_EQ_INT(busy_runs, BUSY);
  CHECK(runs_at_timer >= 0 && runs_at_timer < BUSY / 2);
  sem_destroy(&timer_closed);
}

static void look_at_mask(void *arg) {
  pthread_sigmask(SIG_SETMASK, NULL, arg);
}

TEST(engine_blocks_signals_and_leaves_ours_alone) {
  sigset_t engines, ours;
  on_engine(look_at_mask, &engines);
  pthread_sigmask(SIG_SETMASK, NULL, &ours);
  static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGPIPE, SIGCHLD, SIGXFSZ, SIGALRM};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    CHECK_EQ_INT(sigismember(&engines, signals[i]), 1);
    CHECK_EQ_INT(sigismember(&ours, signals[i]), 0);
  }
}

static void write_scratch(void *arg) {
  (void)arg;
  CHECK(sbx_engine_scratch() != NULL);
  memset(sbx_engine_scratch(), 0x55, SBX_ENGINE_SCRATCH);
}

TEST(scratch_buffer_is_as_large_as_said) {
  uint64_t before = sbx_now_ns();
  on_engine(write_scratch, NULL);
  CHECK(sbx_now_ns() > before);
}

static void call_in_forked_child(void *arg) {
  struct counted counted = {.work.run = count_run};
  (void)arg;
  alarm(10);
  CHECK(!sbx_engine_usable());
  CHECK_EQ_INT(sbx_engine_start(), -EOWNERDEAD);
  CHECK_EQ_INT(sbx_engine_post(&counted.work), -EOWNERDEAD);
  CHECK_EQ_INT(atomic_load(&counted.runs), 0);
}

static void fork_again(void *arg) {
  call_in_forked_child(arg);
  check_in_child(call_in_forked_child, arg);
}

static atomic_bool hammering;

static void *hammer(void *arg) {
  struct counted *counted = arg;
  while (atomic_load(&hammering)) {
    int rc = sbx_engine_post(&counted->work);
    CHECK(rc == 0 || rc == 1 || rc == -ECANCELED);
    if (rc == -ECANCELED) break; /* the program is ending */
  }
  return NULL;
}

TEST(forked_child_is_told_and_never_hangs) {
  pthread_t thread[2];
  struct counted counted[2] = {{.work.run = count_run}, {.work.run = count_run}};
  check_in_child(fork_again, NULL);
  atomic_store(&hammering, true);
  for (int i = 0; i < 2; i++)
    CHECK_EQ_INT(pthread_create(&thread[i], NULL, hammer, &counted[i]), 0);
  for (int i = 0; i < scaled(100, 5); i++) /* whatever is locked at that moment */
    check_in_child(call_in_forked_child, NULL);
  atomic_store(&hammering, false);
  for (int i = 0; i < 2; i++)
    pthread_join(thread[i], NULL);
  on_engine(nothing, NULL);
  CHECK(sbx_engine_usable());
}

/* Scenarios. */

static int exit_code_of(const char *scenario) {
  char text[16];
  int status = run_scenario(scenario, text, sizeof text);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int count_threads(void) {
  int count = 0;
  DIR *dir = opendir("/proc/self/task");
  while (dir != NULL && readdir(dir) != NULL)
    count++;
  if (dir != NULL) closedir(dir);
  return count;
}

static pthread_barrier_t together;

static void *start_together(void *arg) {
  (void)arg;
  pthread_barrier_wait(&together);
  CHECK_EQ_INT(sbx_engine_start(), 0);
  return NULL;
}

static void start_from_two_threads(void) {
  pthread_t thread[2];
  int descriptors = check_open_descriptors();
  CHECK_EQ_INT(sbx_engine_usable(), 1);
  pthread_barrier_init(&together, NULL, 2);
  CHECK_EQ_INT(pthread_create(&thread[0], NULL, start_together, NULL), 0);
  CHECK_EQ_INT(pthread_create(&thread[1], NULL, start_together, NULL), 0);
  pthread_join(thread[0], NULL);
  pthread_join(thread[1], NULL);
  /* ".", "..", this thread and the engine's; the thread sanitizer has one more. One that was joined
   * may be seen for a moment yet. */
  CHECK_COMES(count_threads() == 4 + (IS_TSAN ? 1 : 0));
  int open = check_open_descriptors();
  CHECK(open > descriptors);
  CHECK_EQ_INT(sbx_engine_start(), 0);
  on_engine(nothing, NULL);
  CHECK_EQ_INT(count_threads(), 4 + (IS_TSAN ? 1 : 0));
  CHECK_EQ_INT(check_open_descriptors(), open);
}

TEST(two_threads_start_one_engine) {
  for (int i = 0; i < scaled(20, 2); i++)
    CHECK_EQ_INT(exit_code_of("start-from-two-threads"), 0);
}

static void set_limit(__rlimit_resource_t what, rlim_t limit) {
  struct rlimit both;
  getrlimit(what, &both);
  both.rlim_cur = limit;
  CHECK_EQ_INT(setrlimit(what, &both), 0);
}

static void start_without_descriptors(void) {
  int descriptors = check_open_descriptors();
  int lowest = dup(0);
  close(lowest);
  int rc = -1;
  for (int room = 0; rc != 0 && room < 20; room++) {
    set_limit(RLIMIT_NOFILE, (rlim_t)(lowest + room));
    rc = sbx_engine_start();
    set_limit(RLIMIT_NOFILE, 256);
    CHECK(rc == 0 || rc == -EMFILE);
    CHECK(rc == -EMFILE || room >= 4);
    if (rc != 0) CHECK_EQ_INT(check_open_descriptors(), descriptors);
  }
  CHECK_EQ_INT(rc, 0);
  on_engine(nothing, NULL);
}

static void start_without_threads(void) {
  int descriptors = check_open_descriptors();
  if (setuid(65534) != 0) exit(77);
  set_limit(RLIMIT_NPROC, 0);
  for (int i = 0; i < 20; i++)
    CHECK_EQ_INT(sbx_engine_start(), -EAGAIN);
  /* libuv keeps one pipe for the whole process from its first loop on. */
  CHECK(check_open_descriptors() <= descriptors + 2);
  set_limit(RLIMIT_NPROC, 1000);
  on_engine(nothing, NULL);
}

TEST(failed_start_leaves_nothing_and_is_tried_again) {
  CHECK_EQ_INT(exit_code_of("start-without-descriptors"), 0);
}

TEST(start_without_a_thread_to_be_had) {
  if (getuid() != 0) SKIP("only root can become another user");
  CHECK_EQ_INT(exit_code_of("start-without-threads"), 0);
}

static void exit_under_posts(void) {
  static struct counted counted[2] = {{.work.run = count_run}, {.work.run = count_run}};
  pthread_t thread;
  atomic_store(&hammering, true);
  for (int i = 0; i < 2; i++) {
    CHECK_EQ_INT(pthread_create(&thread, NULL, hammer, &counted[i]), 0);
    pthread_detach(thread);
  }
  while (atomic_load(&counted[0].runs) < 100)
    sleep_us(100);
  atomic_store(&hammering, false); /* their last posts race with the end */
  exit(7);
}

static void *call_exit(void *arg) {
  (void)arg;
  exit(8);
}

static void exit_from_thread(void) {
  pthread_t thread;
  on_engine(nothing, NULL);
  CHECK_EQ_INT(pthread_create(&thread, NULL, call_exit, NULL), 0);
  for (;;)
    pause();
}

static void post_at_exit(void) {
  on_engine(nothing, NULL);
}

static void exit_handler_that_posts(void) {
  CHECK_EQ_INT(sbx_engine_start(), 0);
  atexit(post_at_exit);
  exit(9);
}

TEST(exit_with_work_in_flight) {
  for (int i = 0; i < scaled(20, 2); i++)
    CHECK_EQ_INT(exit_code_of("exit-under-posts"), 7);
  CHECK_EQ_INT(exit_code_of("exit-from-thread"), 8);
  CHECK_EQ_INT(exit_code_of("exit-handler-that-posts"), 9);
}

struct lively {
  struct sbx_live live;
  char name;
};

static struct lively lively[4] = {{.name = 'a'}, {.name = 'b'}, {.name = 'c'}, {.name = 'd'}};

static void say_stop(struct sbx_live *live) {
  CHECK_EQ_INT(write(1, &((struct lively *)(void *)live)->name, 1), 1);
}

static void arrange_live(void *removed) {
  for (int i = 0; i < 4; i++) {
    lively[i].live.stop = say_stop;
    sbx_engine_add_live(&lively[i].live);
  }
  for (const char *name = removed; *name != '\0'; name++)
    sbx_engine_remove_live(&lively[*name - 'a'].live);
}

static void live_without_middle(void) {
  on_engine(arrange_live, "bc");
}
static void live_without_ends(void) {
  on_engine(arrange_live, "ad");
}
static void live_without_any(void) {
  on_engine(arrange_live, "dacb");
}

TEST(exit_stops_what_lives) {
  char text[16];
  CHECK_EQ_INT(run_scenario("live-without-middle", text, sizeof text), 0);
  CHECK(strcmp(text, "da") == 0);
  CHECK_EQ_INT(run_scenario("live-without-ends", text, sizeof text), 0);
  CHECK(strcmp(text, "cb") == 0);
  CHECK_EQ_INT(run_scenario("live-without-any", text, sizeof text), 0);
  CHECK(strcmp(text, "") == 0);
}

static const struct scenario scenarios[] = {
    {"start-from-two-threads", start_from_two_threads},
    {"start-without-descriptors", start_without_descriptors},
    {"start-without-threads", start_without_threads},
    {"exit-under-posts", exit_under_posts},
    {"exit-from-thread", exit_from_thread},
    {"exit-handler-that-posts", exit_handler_that_posts},
    {"live-without-middle", live_without_middle},
    {"live-without-ends", live_without_ends},
    {"live-without-any", live_without_any},
};

int main(int argc, char **argv) {
  /* Before the tests, whose descriptors are counted. */
  if (argc < 2) CHECK_EQ_INT(sbx_engine_start(), 0);
  return scenario_main(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
