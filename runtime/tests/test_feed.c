/* SPDX-License-Identifier: MIT
 *
 * proves: X6, X11 (the part of the runtime)
 *
 * The queue of stdin writes over a real pipe: order, bound, lent data that is given back, given up
 * or dropped, and a random run against a model in which every byte is accounted for.
 */
#define _GNU_SOURCE
#include "../feed.h"

#include "procs.h"

struct line {
  int in, out; /* the pipe: write end (does not block), read end */
  struct sbx_feed feed;
};

static void line_open(struct line *line) {
  int fd[2];
  CHECK_EQ_INT(pipe2(fd, O_CLOEXEC | O_NONBLOCK), 0);
  CHECK(fcntl(fd[1], F_SETPIPE_SZ, 4096) >= 4096);
  *line = (struct line){.out = fd[0], .in = fd[1]};
}

static void line_close(struct line *line) {
  CHECK(sbx_feed_is_empty(&line->feed));
  CHECK_EQ_INT(line->feed.buffered, 0);
  if (line->in >= 0) close(line->in);
  if (line->out >= 0) close(line->out);
}

/* Writes and reads until the feed and the pipe are empty; how much has come. */
static size_t run_dry(struct line *line, char *data, size_t room) {
  size_t len = 0;
  for (;;) {
    int rc = sbx_feed_write(&line->feed, line->in);
    CHECK(rc == 0 || rc == -EAGAIN);
    ssize_t got = read(line->out, data + len, room - len);
    if (got > 0) len += (size_t)got;
    if (got <= 0 && rc == 0) return len;
    if (got <= 0 && rc != 0) {
      CHECK(got > 0);
      return len;
    }
  }
}

static atomic_int alive;

static void destroy(struct sbx_op *op) {
  atomic_fetch_sub(&alive, 1);
  free(op);
}

static struct sbx_op *new_op(void) {
  struct sbx_op *op = calloc(1, sizeof *op);
  CHECK_EQ_INT(sbx_op_init(op, NULL, destroy), 0);
  atomic_fetch_add(&alive, 1);
  return op;
}

/* The result of an op that must be done. */
static int result_of(struct sbx_op *op) {
  CHECK(sbx_op_is_done(op));
  return sbx_op_is_done(op) ? sbx_op_wait(op) : 1;
}

static char blob[4 * SBX_FEED_BUFFER];

static void fill_blob(void) {
  uint32_t seed = 7;
  for (size_t i = 0; i < sizeof blob; i++)
    blob[i] = (char)next_random(&seed);
}

TEST(writes_come_in_order) {
  struct line line;
  char got[64];
  line_open(&line);
  CHECK(sbx_feed_is_empty(&line.feed));
  CHECK_EQ_INT(sbx_feed_write(&line.feed, line.in), 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, "one ", 4), 0);
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, "two ", 4, NULL), 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, "three\0", 6), 0);
  CHECK(!sbx_feed_is_empty(&line.feed));
  CHECK_EQ_INT(sbx_feed_pending(&line.feed), 14);
  CHECK_EQ_INT(run_dry(&line, got, sizeof got), 14);
  CHECK(memcmp(got, "one two three\0", 14) == 0);
  CHECK_EQ_INT(sbx_feed_pending(&line.feed), 0);
  CHECK_EQ_INT(line.feed.written, 14);
  line_close(&line);
}

TEST(copies_are_bounded_and_room_comes_back) {
  struct line line;
  static char got[2 * SBX_FEED_BUFFER];
  line_open(&line);
  fill_blob();
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob, SBX_FEED_BUFFER + 1), -EAGAIN);
  CHECK(sbx_feed_is_empty(&line.feed));
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob, 1), 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob + 1, SBX_FEED_BUFFER), -EAGAIN);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob + 1, SBX_FEED_BUFFER - 1), 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, "x", 1), -EAGAIN);
  CHECK_EQ_INT(sbx_feed_write(&line.feed, line.in), -EAGAIN);
  size_t room = (size_t)line.feed.written;
  CHECK(room > 0 && room < SBX_FEED_BUFFER);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob + SBX_FEED_BUFFER, room + 1), -EAGAIN);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob + SBX_FEED_BUFFER, room), 0);
  CHECK_EQ_INT(sbx_feed_pending(&line.feed), SBX_FEED_BUFFER);
  CHECK_EQ_INT(run_dry(&line, got, sizeof got), SBX_FEED_BUFFER + room);
  CHECK(memcmp(got, blob, SBX_FEED_BUFFER + room) == 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob, SBX_FEED_BUFFER), 0);
  run_dry(&line, got, sizeof got);
  line_close(&line);
}

TEST(copied_data_may_go_at_once) {
  struct line line;
  char mine[4] = "abc", got[8];
  line_open(&line);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, mine, 3), 0);
  memset(mine, 'x', 3);
  CHECK_EQ_INT(run_dry(&line, got, sizeof got), 3);
  CHECK(memcmp(got, "abc", 3) == 0);
  line_close(&line);
}

TEST(lent_data_is_done_when_all_of_it_is_written) {
  struct line line;
  static char got[sizeof blob];
  struct sbx_op *first = new_op(), *second = new_op();
  line_open(&line);
  fill_blob();
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, blob, 100000, first), 0);
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, blob + 100000, 10, second), 0);
  CHECK_EQ_INT(line.feed.buffered, 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob + 100010, SBX_FEED_BUFFER), 0);
  size_t len = 0;
  while (!sbx_op_is_done(second)) {
    sbx_feed_write(&line.feed, line.in);
    CHECK(sbx_op_is_done(first) == (line.feed.written >= 100000));
    CHECK(sbx_op_is_done(second) == (line.feed.written >= 100010));
    ssize_t some = read(line.out, got + len, 1000);
    CHECK(some > 0);
    if (some <= 0) break;
    len += (size_t)some;
  }
  CHECK_EQ_INT(result_of(first), 0);
  CHECK_EQ_INT(result_of(second), 0);
  len += run_dry(&line, got + len, sizeof got - len);
  CHECK_EQ_INT(len, 100010 + SBX_FEED_BUFFER);
  CHECK(memcmp(got, blob, len) == 0);
  sbx_op_unref(first);
  sbx_op_unref(second);
  CHECK_EQ_INT(atomic_load(&alive), 0);
  line_close(&line);
}

/* Abandons the lent write at this place among three; the other two come. */
static void check_abandon_untouched(int place, bool copy_first) {
  static const char *const words[] = {"first ", "second ", "third "};
  struct line line;
  struct sbx_op *ops[3];
  char got[64], expected[64] = "";
  line_open(&line);
  if (copy_first) CHECK_EQ_INT(sbx_feed_copy(&line.feed, "copy ", 5), 0);
  if (copy_first) strcat(expected, "copy ");
  for (int i = 0; i < 3; i++) {
    ops[i] = new_op();
    CHECK_EQ_INT(sbx_feed_lend(&line.feed, words[i], strlen(words[i]), ops[i]), 0);
    if (i != place) strcat(expected, words[i]);
  }
  CHECK_EQ_INT(sbx_feed_abandon(&line.feed, ops[place]), 0);
  CHECK_EQ_INT(result_of(ops[place]), -ECANCELED);
  CHECK_EQ_INT(sbx_feed_abandon(&line.feed, ops[place]), 0); /* it is no longer there */
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, "end", 3), 0);
  strcat(expected, "end");
  CHECK_EQ_INT(sbx_feed_pending(&line.feed), strlen(expected));
  CHECK_EQ_INT(run_dry(&line, got, sizeof got), strlen(expected));
  CHECK(memcmp(got, expected, strlen(expected)) == 0);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ_INT(result_of(ops[i]), i == place ? -ECANCELED : 0);
    sbx_op_unref(ops[i]);
  }
  CHECK_EQ_INT(atomic_load(&alive), 0);
  line_close(&line);
}

TEST(abandoned_before_it_began_it_never_goes_out) {
  for (int place = 0; place < 3; place++) {
    check_abandon_untouched(place, false);
    check_abandon_untouched(place, true);
  }
  struct line line;
  struct sbx_op *op = new_op();
  line_open(&line); /* the only one */
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, "gone", 4, op), 0);
  CHECK_EQ_INT(sbx_feed_abandon(&line.feed, op), 0);
  CHECK(sbx_feed_is_empty(&line.feed));
  CHECK_EQ_INT(sbx_feed_abandon(&line.feed, op), 0);
  sbx_op_unref(op);
  line_close(&line);
}

static void check_abandon_begun(bool followed) {
  struct line line;
  static char got[sizeof blob];
  struct sbx_op *op = new_op();
  size_t lent = 3 * SBX_FEED_BUFFER, more = followed ? 100 : 0;
  char *mine = malloc(lent);
  line_open(&line);
  fill_blob();
  memcpy(mine, blob, lent);
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, mine, lent, op), 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob + lent, more), 0);
  CHECK_EQ_INT(sbx_feed_write(&line.feed, line.in), -EAGAIN);
  CHECK(line.feed.written > 0);
  CHECK_EQ_INT(sbx_feed_abandon(&line.feed, op), 0);
  memset(mine, 0, lent);
  free(mine);
  CHECK_EQ_INT(result_of(op), -ECANCELED);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, "x", 1), -EAGAIN); /* what is owed counts */
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, blob + lent + more, 50, NULL), 0);
  CHECK_EQ_INT(run_dry(&line, got, sizeof got), lent + more + 50);
  CHECK(memcmp(got, blob, lent + more + 50) == 0);
  sbx_op_unref(op);
  CHECK_EQ_INT(atomic_load(&alive), 0);
  line_close(&line);
}

TEST(abandoned_after_it_began_it_goes_out_whole) {
  check_abandon_begun(false);
  check_abandon_begun(true);
}

TEST(drop_ends_every_wait_with_the_error) {
  struct line line;
  struct sbx_op *begun = new_op(), *untouched = new_op();
  char got[8];
  line_open(&line);
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, blob, 100000, begun), 0);
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, blob, 100000, untouched), 0);
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, blob, 1000), 0);
  CHECK_EQ_INT(sbx_feed_write(&line.feed, line.in), -EAGAIN);
  sbx_feed_drop(&line.feed, -EPIPE);
  CHECK(sbx_feed_is_empty(&line.feed));
  CHECK_EQ_INT(line.feed.buffered, 0);
  CHECK_EQ_INT(result_of(begun), -EPIPE);
  CHECK_EQ_INT(result_of(untouched), -EPIPE);
  sbx_op_unref(begun);
  sbx_op_unref(untouched);
  CHECK_EQ_INT(atomic_load(&alive), 0);
  sbx_feed_drop(&line.feed, -EPIPE);
  while (read(line.out, blob, sizeof blob) > 0)
    ;
  CHECK_EQ_INT(sbx_feed_copy(&line.feed, "again", 5), 0);
  CHECK_EQ_INT(run_dry(&line, got, sizeof got), 5);
  line_close(&line);
}

TEST(reader_that_has_gone_is_an_error_and_keeps_the_rest) {
  struct line line;
  struct sbx_op *op = new_op();
  line_open(&line);
  close(line.out);
  line.out = -1;
  CHECK_EQ_INT(sbx_feed_lend(&line.feed, "x", 1, op), 0);
  CHECK_EQ_INT(sbx_feed_write(&line.feed, line.in), -EPIPE);
  CHECK(!sbx_op_is_done(op));
  CHECK(!sbx_feed_is_empty(&line.feed));
  sbx_feed_drop(&line.feed, -EPIPE);
  sbx_op_unref(op);
  CHECK_EQ_INT(atomic_load(&alive), 0);
  line_close(&line);
}

/* The model: every write that was taken, where its bytes begin in what must come out. */
#define LENT_MAX 20000

struct lent {
  char *data;
  size_t len;
  uint64_t start;
  struct sbx_op *op;
};

struct model {
  char *expected;
  uint64_t end, read;
  struct lent lent[64];
  int lents;
};

/* Lets go of what is done, giving the memory back as a caller would. */
static void settle(struct model *model, const struct sbx_feed *feed) {
  int kept = 0;
  for (int i = 0; i < model->lents; i++) {
    struct lent *lent = &model->lent[i];
    CHECK(sbx_op_is_done(lent->op) == (feed->written >= lent->start + lent->len));
    if (!sbx_op_is_done(lent->op)) {
      model->lent[kept++] = *lent;
      continue;
    }
    CHECK_EQ_INT(sbx_op_wait(lent->op), 0);
    sbx_op_unref(lent->op);
    memset(lent->data, 0xee, lent->len);
    free(lent->data);
  }
  model->lents = kept;
}

static void random_write(struct model *model, struct line *line, uint32_t *seed) {
  size_t len = 1 + next_random(seed) % (next_random(seed) % 4 == 0 ? LENT_MAX : 300);
  char *bytes = model->expected + model->end;
  for (size_t i = 0; i < len; i++)
    bytes[i] = (char)next_random(seed);
  size_t before = line->feed.buffered;
  if (next_random(seed) % 2 == 0) {
    int rc = sbx_feed_copy(&line->feed, bytes, len);
    CHECK_EQ_INT(rc, before + len <= SBX_FEED_BUFFER ? 0 : -EAGAIN);
    if (rc == 0) model->end += len;
    return;
  }
  if (model->lents == 64) return;
  struct lent lent = {malloc(len), len, model->end, new_op()};
  memcpy(lent.data, bytes, len);
  CHECK_EQ_INT(sbx_feed_lend(&line->feed, lent.data, len, lent.op), 0);
  model->lent[model->lents++] = lent;
  model->end += len;
}

/* One that has begun stays in what is expected; one that has not is cut out of it. */
static void random_abandon(struct model *model, struct line *line, uint32_t *seed) {
  if (model->lents == 0) return;
  int which = (int)(next_random(seed) % (unsigned)model->lents);
  struct lent lent = model->lent[which];
  bool begun = line->feed.written > lent.start;
  CHECK_EQ_INT(sbx_feed_abandon(&line->feed, lent.op), 0);
  CHECK_EQ_INT(result_of(lent.op), -ECANCELED);
  sbx_op_unref(lent.op);
  memset(lent.data, 0xdd, lent.len);
  free(lent.data);
  model->lents--;
  for (int i = which; i < model->lents; i++) {
    model->lent[i] = model->lent[i + 1];
    if (!begun) model->lent[i].start -= lent.len;
  }
  if (begun) return;
  memmove(model->expected + lent.start, model->expected + lent.start + lent.len,
          model->end - lent.start - lent.len);
  model->end -= lent.len;
}

static void random_read(struct model *model, struct line *line, uint32_t *seed) {
  char got[5000];
  size_t want = 1 + next_random(seed) % (next_random(seed) % 3 == 0 ? sizeof got - 1 : 100);
  ssize_t len = read(line->out, got, want);
  CHECK(len > 0 || (len < 0 && errno == EAGAIN && model->read == line->feed.written));
  if (len <= 0) return;
  CHECK(memcmp(got, model->expected + model->read, (size_t)len) == 0);
  model->read += (uint64_t)len;
}

static void check_random(uint32_t seed, uint64_t bytes) {
  struct line line;
  struct model model = {.expected = malloc(bytes + 2000000)};
  line_open(&line);
  while (model.end < bytes) {
    bool full = sbx_feed_pending(&line.feed) > 500000; /* so that the room above is enough */
    switch (next_random(&seed) % 16) {
    case 0:
    case 1:
    case 2:
      if (!full) random_write(&model, &line, &seed);
      break;
    case 3:
      if (next_random(&seed) % 8 == 0) random_abandon(&model, &line, &seed);
      break;
    case 4:
    case 5:
    case 6:
    case 7: {
      int rc = sbx_feed_write(&line.feed, line.in);
      CHECK(rc == (model.end == line.feed.written ? 0 : -EAGAIN));
      settle(&model, &line.feed);
      break;
    }
    default:
      random_read(&model, &line, &seed);
    }
    CHECK_EQ_INT(sbx_feed_pending(&line.feed), model.end - line.feed.written);
  }
  while (model.read < model.end) {
    sbx_feed_write(&line.feed, line.in);
    random_read(&model, &line, &seed);
  }
  settle(&model, &line.feed);
  CHECK_EQ_INT(model.lents, 0);
  CHECK_EQ_INT(atomic_load(&alive), 0);
  free(model.expected);
  line_close(&line);
}

TEST(random_writes_over_a_small_pipe_match_the_model) {
  for (uint32_t seed = 1; seed <= (uint32_t)scaled(4, 1); seed++)
    check_random(seed * 2246822519u, in_valgrind() ? 1000000 : 11000000);
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  return check_run_all();
}
