/* SPDX-License-Identifier: MIT
 *
 * proves: P6 (the part of the runtime)
 *
 * Identities of processes: the living are alive, the dead are not, whoever has their pid now; what
 * cannot be seen from here counts as alive.
 */
#define _GNU_SOURCE
#include "../owner.h"

#include <sys/prctl.h>

#include "procs.h"

#define PARTS 5

enum { HOST, BOOT, NAMESPACE, PID, STARTED };

/* This process's identity with one part replaced. */
static void forge(char text[SBX_OWNER_MAX], int replaced, const char *part) {
  char self[SBX_OWNER_MAX];
  CHECK_EQ_INT(sbx_owner_self(self), 0);
  char *rest = self;
  size_t len = 0;
  text[0] = '\0';
  for (int i = 0; i < PARTS; i++) {
    const char *own = strsep(&rest, "/");
    CHECK(own != NULL);
    len += (size_t)snprintf(text + len, SBX_OWNER_MAX - len, "%s%s", i > 0 ? "/" : "",
                            i == replaced ? part : own);
  }
  CHECK(rest == NULL);
}

static bool forged_lives(int replaced, const char *part) {
  char text[SBX_OWNER_MAX];
  forge(text, replaced, part);
  return sbx_owner_may_live(text);
}

/* A child that tells its identity and lives until its pipe is closed. */
struct kin {
  pid_t pid;
  int hold;
  char identity[SBX_OWNER_MAX];
};

static void kin_start(struct kin *kin, const char *name) {
  int told[2], held[2];
  CHECK_EQ_INT(pipe2(told, O_CLOEXEC), 0);
  CHECK_EQ_INT(pipe2(held, O_CLOEXEC), 0);
  fflush(NULL);
  kin->pid = fork();
  if (kin->pid == 0) {
    char text[SBX_OWNER_MAX] = "", end;
    close(held[1]);
    if (name != NULL) prctl(PR_SET_NAME, name);
    int failed = sbx_owner_self(text) != 0 || write(told[1], text, sizeof text) < 0;
    while (read(held[0], &end, 1) < 0 && errno == EINTR)
      ;
    _exit(failed);
  }
  close(told[1]);
  close(held[0]);
  kin->hold = held[1];
  CHECK_EQ_INT(read(told[0], kin->identity, sizeof kin->identity), sizeof kin->identity);
  close(told[0]);
}

TEST(a_process_knows_itself) {
  char one[SBX_OWNER_MAX], two[SBX_OWNER_MAX];
  CHECK_EQ_INT(sbx_owner_self(one), 0);
  CHECK_EQ_INT(sbx_owner_self(two), 0);
  CHECK(strcmp(one, two) == 0);
  CHECK(sbx_owner_may_live(one));
  forge(two, PARTS, "");
  CHECK(strcmp(one, two) == 0);
}

TEST(a_child_lives_is_a_zombie_and_is_gone) {
  struct kin kin;
  char self[SBX_OWNER_MAX];
  kin_start(&kin, NULL);
  CHECK_EQ_INT(sbx_owner_self(self), 0);
  CHECK(strcmp(self, kin.identity) != 0);
  CHECK(sbx_owner_may_live(kin.identity));
  close(kin.hold);
  CHECK_COMES(process_state(kin.pid, NULL, NULL) == 'Z');
  CHECK(!sbx_owner_may_live(kin.identity));
  CHECK_EQ_INT(wait_for(kin.pid), 0);
  CHECK(!sbx_owner_may_live(kin.identity));
}

TEST(a_stopped_process_lives) {
  struct kin kin;
  kin_start(&kin, NULL);
  kill(kin.pid, SIGSTOP);
  CHECK_COMES(process_state(kin.pid, NULL, NULL) == 'T');
  CHECK(sbx_owner_may_live(kin.identity));
  kill(kin.pid, SIGKILL);
  CHECK(WIFSIGNALED(wait_for(kin.pid)));
  CHECK(!sbx_owner_may_live(kin.identity));
  close(kin.hold);
}

TEST(a_process_may_have_any_name) {
  const char *names[] = {") Z 1 (", "a b", ")", "(((", "x) Z 1 1 1 1"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    struct kin kin;
    kin_start(&kin, names[i]);
    CHECK(sbx_owner_may_live(kin.identity));
    close(kin.hold);
    CHECK_EQ_INT(wait_for(kin.pid), 0);
    CHECK(!sbx_owner_may_live(kin.identity));
  }
}

TEST(a_pid_that_was_given_out_again_is_another_process) {
  char self[SBX_OWNER_MAX], part[32];
  CHECK(!forged_lives(STARTED, "1"));
  CHECK_EQ_INT(sbx_owner_self(self), 0);
  unsigned long long started = strtoull(strrchr(self, '/') + 1, NULL, 10);
  for (int by = -1; by <= 1; by += 2) {
    snprintf(part, sizeof part, "%llu", started + (unsigned long long)by);
    CHECK(!forged_lives(STARTED, part));
  }
  snprintf(part, sizeof part, "%llu", started);
  CHECK(forged_lives(STARTED, part));
}

TEST(a_pid_that_nobody_has_is_dead) {
  CHECK(!forged_lives(PID, "2147483646"));
}

TEST(another_boot_of_this_machine_is_over) {
  CHECK(!forged_lives(BOOT, "00000000-0000-0000-0000-000000000000"));
}

TEST(what_cannot_be_seen_from_here_counts_as_alive) {
  char text[SBX_OWNER_MAX];
  CHECK(forged_lives(NAMESPACE, "pid:[1]"));
  CHECK(forged_lives(HOST, "0123+elsewhere"));
  CHECK(forged_lives(HOST, "+"));
  /* Another namespace's pids are not ours: that nobody has this one here tells nothing. */
  forge(text, STARTED, "1");
  char *pid_namespace = strchr(strchr(text, '/') + 1, '/') + 1;
  CHECK(!sbx_owner_may_live(text));
  *pid_namespace = 'x';
  CHECK(sbx_owner_may_live(text));
  /* The host is looked at first: the boots of another one tell nothing. */
  forge(text, HOST, "0123+elsewhere");
  char *boot = strchr(text, '/') + 1;
  *boot = *boot == '0' ? '1' : '0';
  CHECK(sbx_owner_may_live(text));
}

TEST(text_that_is_no_identity_counts_as_alive) {
  char text[SBX_OWNER_MAX + 8], self[SBX_OWNER_MAX];
  char long_text[5000];
  const char *others[] = {
      "",          "/",        "////",        "a/b/c/d/e", "h/b/n/1",       "h/b/n/x/1",
      "h/b/n/1/x", "h//n/1/1", "ledger:0123", "\n",        "%s%n/%s/%s/1/1"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    CHECK(sbx_owner_may_live(others[i]));
  CHECK(forged_lives(PID, "0"));
  CHECK(forged_lives(PID, "-1"));
  CHECK(forged_lives(PID, ""));
  CHECK(forged_lives(STARTED, ""));
  CHECK(forged_lives(STARTED, "x"));
  /* A dead owner's text with something behind it, or cut. */
  forge(self, STARTED, "1");
  CHECK(!sbx_owner_may_live(self));
  snprintf(text, sizeof text, "%s/", self);
  CHECK(sbx_owner_may_live(text));
  snprintf(text, sizeof text, "%s x", self);
  CHECK(sbx_owner_may_live(text));
  *strrchr(self, '/') = '\0';
  CHECK(sbx_owner_may_live(self));
  memset(long_text, 'x', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = '\0';
  CHECK(sbx_owner_may_live(long_text));
  for (size_t i = 150; i < sizeof long_text - 1; i += 150)
    long_text[i] = '/';
  CHECK(sbx_owner_may_live(long_text));
}

CHECK_MAIN()
