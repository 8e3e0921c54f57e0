/* SPDX-License-Identifier: MIT
 *
 * The smallest test frame that will do. TEST(name) { ... } defines and registers a test, CHECK and
 * CHECK_EQ_INT record a failure and go on, SKIP says loudly why a test cannot run here, and
 * CHECK_MAIN() runs all tests in the order of the file. A test fails too when it leaves more or
 * fewer descriptors open than it found. Checks may be used in threads; check_in_child runs a
 * function that changes the process (umask, user, limits) in a child.
 */
#ifndef SBX_TESTS_CHECK_H
#define SBX_TESTS_CHECK_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

struct check_test {
  const char *name;
  void (*run)(void);
  struct check_test *next;
};

static struct check_test *check_first;
static struct check_test **check_last = &check_first;
static atomic_int check_failures;
static atomic_int check_skips;

#define TEST(test)                                                 \
  static void test(void);                                          \
  __attribute__((constructor)) static void test##_register(void) { \
    static struct check_test entry = {.name = #test, .run = test}; \
    *check_last = &entry;                                          \
    check_last = &entry.next;                                      \
  }                                                                \
  static void test(void)

#define CHECK(cond)                                                      \
  do {                                                                   \
    if (!(cond)) {                                                       \
      atomic_fetch_add(&check_failures, 1);                              \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
    }                                                                    \
  } while (0)

#define CHECK_EQ_INT(a, b)                                                                       \
  do {                                                                                           \
    long long check_a = (long long)(a);                                                          \
    long long check_b = (long long)(b);                                                          \
    if (check_a != check_b) {                                                                    \
      atomic_fetch_add(&check_failures, 1);                                                      \
      fprintf(stderr, "%s:%d: %s is %lld, not %s (%lld)\n", __FILE__, __LINE__, #a, check_a, #b, \
              check_b);                                                                          \
    }                                                                                            \
  } while (0)

/* Leaves the test, or the function it calls. */
#define SKIP(reason)                                                     \
  do {                                                                   \
    atomic_fetch_add(&check_skips, 1);                                   \
    fprintf(stderr, "%s:%d: SKIPPED: %s\n", __FILE__, __LINE__, reason); \
    return;                                                              \
  } while (0)

static inline int check_open_descriptors(void) {
  int count = 0;
  DIR *dir = opendir("/proc/self/fd");
  if (dir == NULL) {
    return -1;
  }
  while (readdir(dir) != NULL) {
    count++;
  }
  closedir(dir);
  return count;
}

/* Runs the function in a child of its own; the checks that fail in there fail the test. */
static inline void check_in_child(void (*run)(void *), void *arg) {
  int status = -1;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    atomic_store(&check_failures, 0);
    run(arg);
    _exit(atomic_load(&check_failures) > 0 ? 1 : 0);
  }
  CHECK(pid > 0);
  CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
  CHECK_EQ_INT(status, 0);
}

static inline int check_run_all(void) {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  for (const struct check_test *test = check_first; test != NULL; test = test->next) {
    int failures = atomic_load(&check_failures);
    int skips = atomic_load(&check_skips);
    int descriptors = check_open_descriptors();
    test->run();
    CHECK_EQ_INT(check_open_descriptors(), descriptors);
    if (atomic_load(&check_failures) > failures) {
      failed++;
      fprintf(stderr, "FAILED %s\n", test->name);
    } else if (atomic_load(&check_skips) > skips) {
      skipped++;
    } else {
      passed++;
    }
  }
  printf("%d passed, %d failed", passed, failed);
  if (skipped > 0) {
    printf(", %d SKIPPED", skipped);
  }
  printf("\n");
  return failed > 0 ? 1 : 0;
}

#define CHECK_MAIN()        \
  int main(void) {          \
    return check_run_all(); \
  }

#endif
