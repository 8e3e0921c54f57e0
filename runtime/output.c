/* SPDX-License-Identifier: MIT
 *
 * The ordered output buffer and its temporary file (see output.h).
 *
 * The file holds records of a small header and the bytes. While it holds anything, all that comes
 * goes there too: that is what keeps the order. Small chunks of one stream are gathered, so a
 * command that prints byte by byte does not cost a block of memory a byte.
 */
#define _GNU_SOURCE
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHUNK_MIN ((size_t)512)
#define CHUNK_WHOLE (SBX_CHUNK_MAX / 2)

/* Chunks of full size at rest. A command that prints much makes the engine's thread ask for them
 * and a reader's thread give them back, the pattern that costs malloc a page fault per page each
 * time. */
#define POOL_MAX 16u
static struct {
  pthread_mutex_t lock;
  struct sbx_chunk *head;
  unsigned count;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct record {
  uint32_t len;
  uint32_t stream;
};

void sbx_output_init(struct sbx_output *output) {
  *output = (struct sbx_output){.spill_fd = -1};
}

static void free_chunks(struct sbx_output *output) {
  while (output->head != NULL) {
    struct sbx_chunk *chunk = output->head;
    output->head = chunk->next;
    sbx_chunk_free(chunk);
  }
  output->tail = NULL;
  output->in_memory = 0;
}

static void close_spill(struct sbx_output *output) {
  if (output->spill_fd >= 0) close(output->spill_fd);
  output->spill_fd = -1;
  output->spill_read = output->spill_write = 0;
}

void sbx_output_discard(struct sbx_output *output) {
  free_chunks(output);
  close_spill(output);
}

void sbx_output_free(struct sbx_output *output) {
  sbx_output_discard(output);
}

static struct sbx_chunk *new_chunk(enum sbx_stream stream, size_t room) {
  struct sbx_chunk *chunk = malloc(sizeof *chunk + room);
  if (chunk == NULL) return NULL;
  chunk->next = NULL;
  chunk->len = 0;
  chunk->room = room;
  chunk->stream = stream;
  return chunk;
}

struct sbx_chunk *sbx_chunk_new(void) {
  pthread_mutex_lock(&pool.lock);
  struct sbx_chunk *chunk = pool.head;
  if (chunk != NULL) {
    pool.head = chunk->next;
    pool.count--;
  }
  pthread_mutex_unlock(&pool.lock);
  if (chunk == NULL) return new_chunk(SBX_STDOUT, SBX_CHUNK_MAX);
  chunk->next = NULL;
  chunk->len = 0;
  return chunk;
}

void sbx_chunk_free(struct sbx_chunk *chunk) {
  if (chunk != NULL && chunk->room == SBX_CHUNK_MAX) {
    pthread_mutex_lock(&pool.lock);
    if (pool.count < POOL_MAX) {
      chunk->next = pool.head;
      pool.head = chunk;
      pool.count++;
      chunk = NULL;
    }
    pthread_mutex_unlock(&pool.lock);
  }
  free(chunk);
}

static void append(struct sbx_output *output, struct sbx_chunk *chunk) {
  if (output->tail == NULL)
    output->head = chunk;
  else
    output->tail->next = chunk;
  output->tail = chunk;
  output->in_memory += sizeof *chunk + chunk->room;
}

static int put_in_memory(struct sbx_output *output, enum sbx_stream stream, const char *data,
                         size_t len) {
  struct sbx_chunk *tail = output->tail;
  if (tail == NULL || tail->stream != stream || tail->room - tail->len < len) {
    tail = new_chunk(stream, len < CHUNK_MIN ? CHUNK_MIN : len);
    if (tail == NULL) return -ENOMEM;
    append(output, tail);
  }
  memcpy(tail->data + tail->len, data, len);
  tail->len += len;
  return 0;
}

/* O_TMPFILE where the file system has it; else a name that is gone at once. */
static int open_spill(void) {
  const char *dir = getenv("TMPDIR");
  if (dir == NULL || dir[0] != '/') dir = "/tmp";
  int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  char path[4096];
  int len = snprintf(path, sizeof path, "%s/sbx-output-XXXXXX", dir);
  if (len < 0 || (size_t)len >= sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  fd = mkostemp(path, O_CLOEXEC);
  if (fd >= 0) unlink(path);
  return fd;
}

static int write_all(int fd, const void *data, size_t len, off_t at) {
  const char *from = data;
  while (len > 0) {
    ssize_t wrote = pwrite(fd, from, len, at);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return -errno;
    }
    from += wrote;
    len -= (size_t)wrote;
    at += wrote;
  }
  return 0;
}

static int read_all(int fd, void *data, size_t len, off_t at) {
  char *to = data;
  while (len > 0) {
    ssize_t got = pread(fd, to, len, at);
    if (got < 0) {
      if (errno == EINTR) continue;
      return -errno;
    }
    if (got == 0) return -EIO;
    to += got;
    len -= (size_t)got;
    at += got;
  }
  return 0;
}

static int put_in_file(struct sbx_output *output, enum sbx_stream stream, const char *data,
                       size_t len) {
  if (output->spill_fd < 0) {
    output->spill_fd = open_spill();
    if (output->spill_fd < 0) return -errno;
  }
  struct record record = {.len = (uint32_t)len, .stream = (uint32_t)stream};
  int rc = write_all(output->spill_fd, &record, sizeof record, output->spill_write);
  if (rc == 0)
    rc = write_all(output->spill_fd, data, len, output->spill_write + (off_t)sizeof record);
  if (rc == 0) output->spill_write += (off_t)(sizeof record + len);
  return rc;
}

int sbx_output_put(struct sbx_output *output, enum sbx_stream stream, const char *data,
                   size_t len) {
  if (len == 0) return 0;
  bool spilled = output->spill_read != output->spill_write;
  return spilled || output->in_memory >= SBX_OUTPUT_MEMORY
             ? put_in_file(output, stream, data, len)
             : put_in_memory(output, stream, data, len);
}

int sbx_output_give(struct sbx_output *output, enum sbx_stream stream, struct sbx_chunk *chunk) {
  bool spilled = output->spill_read != output->spill_write;
  if (spilled || output->in_memory >= SBX_OUTPUT_MEMORY) {
    int rc = put_in_file(output, stream, chunk->data, chunk->len);
    sbx_chunk_free(chunk);
    return rc;
  }
  chunk->next = NULL;
  chunk->stream = stream;
  append(output, chunk);
  return 0;
}

bool sbx_output_is_empty(const struct sbx_output *output) {
  return output->head == NULL && output->spill_read == output->spill_write;
}

static int take_from_file(struct sbx_output *output, struct sbx_chunk **out) {
  struct record record;
  int rc = read_all(output->spill_fd, &record, sizeof record, output->spill_read);
  if (rc != 0) return rc;
  struct sbx_chunk *chunk =
      record.len > CHUNK_WHOLE ? sbx_chunk_new() : new_chunk(SBX_STDOUT, record.len);
  if (chunk == NULL) return -ENOMEM;
  chunk->stream = (enum sbx_stream)record.stream;
  rc = read_all(output->spill_fd, chunk->data, record.len,
                output->spill_read + (off_t)sizeof record);
  if (rc != 0) {
    sbx_chunk_free(chunk);
    return rc;
  }
  chunk->len = record.len;
  output->spill_read += (off_t)(sizeof record + record.len);
  if (output->spill_read == output->spill_write) {
    output->spill_read = output->spill_write = 0;
    if (ftruncate(output->spill_fd, 0) != 0) close_spill(output);
  }
  *out = chunk;
  return 0;
}

int sbx_output_take(struct sbx_output *output, struct sbx_chunk **out) {
  struct sbx_chunk *chunk = output->head;
  if (chunk == NULL)
    return output->spill_read != output->spill_write ? take_from_file(output, out) : -EAGAIN;
  output->head = chunk->next;
  if (output->head == NULL) output->tail = NULL;
  output->in_memory -= sizeof *chunk + chunk->room;
  *out = chunk;
  return 0;
}
