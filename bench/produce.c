/* SPDX-License-Identifier: MIT
 *
 * A command that does nothing but write: bench_produce BYTES WRITE_BYTES (SPEC N2).
 *
 * No two writes are alike: equal strings would be one string to a Lua that reads them.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SHIFTS ((size_t)128 * 1024) /* writes begin at one of as many places in the data */
#define SHIFT_STEP ((size_t)4099)   /* a prime, so that all of them are used */

static char *random_data(size_t len) {
  char *data = malloc(len);
  if (data == NULL) return NULL;
  uint32_t state = 2463534242u;
  for (size_t i = 0; i < len; i++) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    data[i] = (char)(state & 0xff);
  }
  return data;
}

int main(int argc, char **argv) {
  unsigned long long left = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
  size_t step = argc == 3 ? (size_t)strtoull(argv[2], NULL, 10) : 0;
  char *data = step > 0 ? random_data(SHIFTS + step) : NULL;
  if (data == NULL) {
    fputs("usage: bench_produce BYTES WRITE_BYTES\n", stderr);
    return 2;
  }
  size_t shift = 0;
  while (left > 0) {
    ssize_t wrote = write(STDOUT_FILENO, data + shift, left < step ? (size_t)left : step);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      perror("bench_produce");
      return 1;
    }
    left -= (unsigned long long)wrote;
    shift = (shift + SHIFT_STEP) % SHIFTS;
  }
  free(data);
  return 0;
}
