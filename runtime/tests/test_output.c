/* SPDX-License-Identifier: MIT
 *
 * proves: X10, X12 (the part of the runtime), R3
 *
 * The output buffer against a model: order over memory and file, both streams, bounds, what is left
 * on the disk, and every way the file can fail.
 */
#define _GNU_SOURCE
#include "../output.h"

#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "procs.h"

/* What was put in, and how far it was taken out: byte n of the whole is byte_at(n), and pieces say
 * which stream it belongs to. */
struct model {
  struct piece {
    size_t len;
    enum sbx_stream stream;
  } * pieces;
  size_t first, count, room;
  uint64_t put, taken;
};

static char byte_at(uint64_t n) {
  uint64_t x = (n / 8 + 1) * 0x9e3779b97f4a7c15u;
  return (char)(x >> (n % 8 * 8));
}

static void fill(char *data, size_t len, uint64_t at) {
  for (size_t i = 0; i < len; i++)
    data[i] = byte_at(at + i);
}

static int model_put(struct model *model, struct sbx_output *output, enum sbx_stream stream,
                     size_t len) {
  static char data[SBX_CHUNK_MAX];
  fill(data, len, model->put);
  int rc = sbx_output_put(output, stream, data, len);
  if (rc != 0 || len == 0) return rc;
  if (model->count == model->room) {
    model->room = model->room * 2 + 64;
    model->pieces = realloc(model->pieces, model->room * sizeof *model->pieces);
  }
  model->pieces[model->count++] = (struct piece){len, stream};
  model->put += len;
  return 0;
}

static bool is_expected(struct model *model, const struct sbx_chunk *chunk) {
  size_t left = chunk->len;
  for (size_t i = 0; i < chunk->len; i++)
    if (chunk->data[i] != byte_at(model->taken + i)) return false;
  while (left > 0) {
    if (model->first == model->count) return false;
    struct piece *piece = &model->pieces[model->first];
    size_t part = piece->len < left ? piece->len : left;
    if (piece->stream != chunk->stream) return false;
    piece->len -= part;
    left -= part;
    if (piece->len == 0) model->first++;
  }
  model->taken += chunk->len;
  return true;
}

/* Takes up to count chunks; how many there were. */
static int model_take(struct model *model, struct sbx_output *output, int count) {
  int taken = 0;
  while (taken < count) {
    struct sbx_chunk *chunk = NULL;
    int rc = sbx_output_take(output, &chunk);
    CHECK(rc == 0 || rc == -EAGAIN);
    CHECK((rc == -EAGAIN) == (model->taken == model->put));
    if (rc != 0) break;
    CHECK(chunk->len > 0 && chunk->len <= SBX_CHUNK_MAX);
    bool good = is_expected(model, chunk);
    CHECK(good);
    free(chunk);
    if (!good) break;
    taken++;
  }
  CHECK(sbx_output_is_empty(output) == (model->taken == model->put));
  return taken;
}

static void model_end(struct model *model, struct sbx_output *output) {
  model_take(model, output, INT_MAX);
  CHECK_EQ_INT(model->taken, model->put);
  free(model->pieces);
  int spill_fd = output->spill_fd;
  sbx_output_free(output);
  if (spill_fd >= 0) CHECK_EQ_INT(fcntl(spill_fd, F_GETFD), -1);
}

TEST(empty_output) {
  struct sbx_output output;
  struct sbx_chunk *chunk = NULL;
  sbx_output_init(&output);
  CHECK(sbx_output_is_empty(&output));
  CHECK_EQ_INT(sbx_output_take(&output, &chunk), -EAGAIN);
  CHECK_EQ_INT(sbx_output_put(&output, SBX_STDOUT, "", 0), 0);
  CHECK(sbx_output_is_empty(&output));
  CHECK_EQ_INT(sbx_output_take(&output, &chunk), -EAGAIN);
  CHECK(chunk == NULL);
  sbx_output_free(&output);
  sbx_output_free(&output);
}

TEST(streams_interleave_in_order) {
  struct sbx_output output;
  struct model model = {0};
  sbx_output_init(&output);
  for (int i = 0; i < 100; i++)
    CHECK_EQ_INT(model_put(&model, &output, i % 3 == 0 ? SBX_STDERR : SBX_STDOUT, 7), 0);
  CHECK(model_take(&model, &output, INT_MAX) >= 66);
  model_end(&model, &output);
}

TEST(single_bytes_are_gathered) {
  struct sbx_output output;
  struct model model = {0};
  sbx_output_init(&output);
  for (int i = 0; i < 10000; i++)
    CHECK_EQ_INT(model_put(&model, &output, SBX_STDOUT, 1), 0);
  CHECK(output.in_memory < 20000);
  int chunks = model_take(&model, &output, INT_MAX);
  CHECK(chunks > 0 && chunks <= 10000 / 512 + 1);
  CHECK_EQ_INT(output.in_memory, 0);
  model_end(&model, &output);
}

static void fill_up(struct model *model, struct sbx_output *output, uint64_t bytes) {
  uint64_t until = model->put + bytes;
  for (int i = 0; model->put < until; i++)
    CHECK_EQ_INT(model_put(model, output, i & 1 ? SBX_STDERR : SBX_STDOUT, 5000), 0);
}

TEST(memory_then_file_then_memory) {
  struct sbx_output output;
  struct model model = {0};
  struct stat st;
  sbx_output_init(&output);
  for (int round = 0; round < 3; round++) {
    fill_up(&model, &output, SBX_OUTPUT_MEMORY / 2);
    CHECK_EQ_INT(output.spill_read, output.spill_write);
    fill_up(&model, &output, SBX_OUTPUT_MEMORY * 2);
    CHECK(output.spill_fd >= 0 && output.spill_write > (off_t)SBX_OUTPUT_MEMORY);
    CHECK(output.in_memory <= SBX_OUTPUT_MEMORY + SBX_CHUNK_MAX + sizeof(struct sbx_chunk));
    model_take(&model, &output, 250); /* memory is read out, the file has begun to be */
    CHECK(output.head == NULL && output.spill_read > 0);
    fill_up(&model, &output, 5000); /* must not overtake what is in the file */
    CHECK(output.head == NULL);
    model_take(&model, &output, INT_MAX);
    CHECK_EQ_INT(output.in_memory, 0);
    CHECK_EQ_INT(fstat(output.spill_fd, &st), 0);
    CHECK_EQ_INT(st.st_size, 0);
  }
  model_end(&model, &output);
}

/* Lengths as pipes give them: mostly small, some whole chunks, sometimes all there can be. */
static size_t random_len(uint32_t *seed) {
  switch (next_random(seed) % 8) {
  case 0:
    return SBX_CHUNK_MAX;
  case 1:
    return next_random(seed) % SBX_CHUNK_MAX;
  case 2:
    return 500 + next_random(seed) % 30;
  case 3:
    return next_random(seed) % 3;
  default:
    return next_random(seed) % 4096;
  }
}

static void check_random(uint32_t seed, uint64_t bytes) {
  struct sbx_output output;
  struct model model = {0};
  bool filling = true;
  int spilled = 0;
  sbx_output_init(&output);
  while (model.put < bytes) {
    /* Runs in which one side is faster, so that the file fills and empties several times. */
    if (next_random(&seed) % 400 == 0) filling = !filling;
    int puts = (int)(next_random(&seed) % (filling ? 8 : 2));
    int takes = (int)(next_random(&seed) % (filling ? 2 : 8));
    for (int i = 0; i < puts; i++) {
      enum sbx_stream stream = next_random(&seed) % 3 == 0 ? SBX_STDERR : SBX_STDOUT;
      CHECK_EQ_INT(model_put(&model, &output, stream, random_len(&seed)), 0);
    }
    model_take(&model, &output, takes);
    if (next_random(&seed) % 500 == 0) model_take(&model, &output, INT_MAX);
    spilled += output.spill_read != output.spill_write;
    CHECK(output.in_memory <= SBX_OUTPUT_MEMORY + SBX_CHUNK_MAX + sizeof(struct sbx_chunk));
  }
  CHECK(spilled > 0 || bytes < 10000000);
  model_end(&model, &output);
}

TEST(random_puts_and_takes_match_the_model) {
  for (uint32_t seed = 1; seed <= (uint32_t)scaled(8, 1); seed++)
    check_random(seed * 2654435761u, in_valgrind() ? 3000000 : 12000000);
}

static void check_spill_in(const char *dir) {
  struct sbx_output output;
  struct model model = {0};
  struct stat st;
  char link[64], target[PATH_MAX] = "";
  sbx_output_init(&output);
  fill_up(&model, &output, SBX_OUTPUT_MEMORY + 100000);
  CHECK(output.spill_fd >= 0);
  CHECK_EQ_INT(fstat(output.spill_fd, &st), 0);
  CHECK_EQ_INT(st.st_nlink, 0);
  CHECK_EQ_INT(st.st_mode & 07777, 0600);
  CHECK((fcntl(output.spill_fd, F_GETFD) & FD_CLOEXEC) != 0);
  snprintf(link, sizeof link, "/proc/self/fd/%d", output.spill_fd);
  CHECK(readlink(link, target, sizeof target - 1) > 0);
  CHECK(strncmp(target, dir, strlen(dir)) == 0 && target[strlen(dir)] == '/');
  model_end(&model, &output);
}

TEST(file_is_in_tmpdir_without_a_name) {
  char made[] = "/tmp/sbx-test-output-XXXXXX";
  const char *before = getenv("TMPDIR");
  char *kept = before != NULL ? strdup(before) : NULL;
  CHECK(mkdtemp(made) != NULL);
  CHECK_EQ_INT(setenv("TMPDIR", made, 1), 0);
  check_spill_in(made);
  CHECK_EQ_INT(rmdir(made), 0); /* so nothing is left in it */
  CHECK_EQ_INT(setenv("TMPDIR", "not/absolute", 1), 0);
  check_spill_in("/tmp");
  CHECK_EQ_INT(unsetenv("TMPDIR"), 0);
  check_spill_in("/tmp");
  if (kept != NULL) setenv("TMPDIR", kept, 1);
  free(kept);
}

/* Puts until one fails; what was put before still comes out whole, and the output is of use
 * again. */
static void check_failing(int expected) {
  struct sbx_output output;
  struct model model = {0};
  int rc = 0;
  sbx_output_init(&output);
  for (int i = 0; rc == 0 && model.put < 40 * SBX_OUTPUT_MEMORY; i++)
    rc = model_put(&model, &output, i & 1 ? SBX_STDERR : SBX_STDOUT, 30000);
  CHECK_EQ_INT(rc, expected);
  CHECK(model.put >= SBX_OUTPUT_MEMORY / 2);
  CHECK_EQ_INT(model_put(&model, &output, SBX_STDOUT, 30000), expected);
  model_take(&model, &output, 3);
  model_take(&model, &output, INT_MAX);
  CHECK_EQ_INT(model.taken, model.put);
  CHECK_EQ_INT(model_put(&model, &output, SBX_STDOUT, 30000), 0);
  model_end(&model, &output);
}

static void fail_in_missing_tmpdir(void *arg) {
  (void)arg;
  setenv("TMPDIR", "/nonexistent/place", 1);
  check_failing(-ENOENT);
}

static void fail_in_unwritable_tmpdir(void *dir) {
  setenv("TMPDIR", dir, 1);
  if (getuid() == 0) CHECK_EQ_INT(setuid(65534), 0);
  check_failing(-EACCES);
}

static void fail_with_file_limit(void *arg) {
  struct rlimit limit = {3000000, 3000000};
  (void)arg;
  signal(SIGXFSZ, SIG_IGN);
  CHECK_EQ_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
  check_failing(-EFBIG);
}

static void fail_without_descriptors(void *arg) {
  struct rlimit limit = {0, 0};
  (void)arg;
  CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
  check_failing(-EMFILE);
}

TEST(file_that_cannot_be_used_is_an_error) {
  char made[] = "/tmp/sbx-test-output-XXXXXX";
  CHECK(mkdtemp(made) != NULL);
  CHECK_EQ_INT(chmod(made, 0555), 0);
  check_in_child(fail_in_missing_tmpdir, NULL);
  check_in_child(fail_in_unwritable_tmpdir, made);
  check_in_child(fail_with_file_limit, NULL);
  if (!in_valgrind()) check_in_child(fail_without_descriptors, NULL); /* it has its own limit */
  CHECK_EQ_INT(rmdir(made), 0);
}

TEST(discard_forgets_all_and_goes_on) {
  struct sbx_output output;
  struct model model = {0};
  sbx_output_init(&output);
  for (int round = 0; round < 2; round++) {
    fill_up(&model, &output, round == 0 ? 100000 : SBX_OUTPUT_MEMORY * 2);
    model_take(&model, &output, 5);
    int spill_fd = output.spill_fd;
    sbx_output_discard(&output);
    model.first = model.count;
    model.taken = model.put;
    CHECK(sbx_output_is_empty(&output));
    CHECK_EQ_INT(output.in_memory, 0);
    CHECK_EQ_INT(output.spill_fd, -1);
    if (spill_fd >= 0) CHECK_EQ_INT(fcntl(spill_fd, F_GETFD), -1);
    CHECK_EQ_INT(model_take(&model, &output, INT_MAX), 0);
    fill_up(&model, &output, 20000);
    CHECK(model_take(&model, &output, INT_MAX) > 0);
  }
  model_end(&model, &output);
}

CHECK_MAIN()
