/* SPDX-License-Identifier: MIT
 *
 * proves: X2, X4, X5
 *
 * Starting a command: which program is run or refused and why, what of ours it gets (nothing), and
 * what is left when it cannot be started (nothing).
 */
#define _GNU_SOURCE
#include "process_try.h"

#include <pthread.h>
#include <sys/time.h>

static void check_refused(const char *name, const char *path, int error, int exit_code) {
  char *argv[] = {(char *)(uintptr_t)name, NULL};
  char *envp[] = {(char *)(uintptr_t)path, NULL};
  struct started started = start_with(argv, envp);
  if (started.rc != 0 || started.refusal.error != error || started.refusal.exit_code != exit_code)
    fprintf(stderr, "%s with %s:\n", name, path);
  CHECK_EQ_INT(started.rc, 0);
  CHECK_EQ_INT(started.refusal.error, error);
  CHECK_EQ_INT(started.refusal.exit_code, exit_code);
  CHECK_EQ_INT(started.process.pid, 0);
  CHECK_EQ_INT(started.process.pidfd, -1);
  CHECK_COMES(count_children() == 0);
  CHECK(!sbx_process_group_alive(&started.process));
  finish(&started);
}

static void make_unfit_programs(void) {
  write_file("plain", "#!/bin/sh\necho no\n", 0644);
  write_file("empty", "", 0755);
  write_file("text", "echo no\n", 0755);
  write_file("broken", "\177ELF and then nothing that makes sense", 0755);
  copy_file("/bin/true", "cut", 200);
  write_file("no-interpreter", "#!/no/such/interpreter\n", 0755);
  write_file("file-in-interpreter", "#!/etc/passwd/sh\n", 0755);
  CHECK_EQ_INT(mkdirat(place.fd, "ws/dir", 0755), 0);
  CHECK_EQ_INT(mkfifoat(place.fd, "ws/fifo", 0755), 0);
  CHECK_EQ_INT(symlinkat("loop", place.fd, "ws/loop"), 0);
}

TEST(what_cannot_be_run_is_refused) {
  static char long_name[400];
  if (in_valgrind()) SKIP("valgrind hides what the child says");
  make_unfit_programs();
  memset(long_name, 'x', sizeof long_name - 1);
  check_refused("no-such-command", USUAL_PATH, ENOENT, 127);
  check_refused("./no-such-command", USUAL_PATH, ENOENT, 127);
  check_refused("/no/such/command", USUAL_PATH, ENOENT, 127);
  check_refused("./plain/x", USUAL_PATH, ENOTDIR, 127);
  check_refused("plain", "PATH=/bin/sh:./plain", ENOENT, 127);
  check_refused("./loop", USUAL_PATH, ELOOP, 127);
  check_refused(long_name, USUAL_PATH, ENAMETOOLONG, 127);
  check_refused("./dir", USUAL_PATH, EACCES, 126);
  check_refused("dir", "PATH=.", EISDIR, 126);
  check_refused("./fifo", USUAL_PATH, EACCES, 126);
  check_refused("fifo", "PATH=.", EACCES, 126);
  check_refused("./plain", USUAL_PATH, EACCES, 126);
  check_refused("plain", "PATH=.", EACCES, 126);
  check_refused("plain", "PATH=.:/no/such/place", EACCES, 126);
  check_refused("./empty", USUAL_PATH, ENOEXEC, 126);
  check_refused("./text", USUAL_PATH, ENOEXEC, 126);
  check_refused("text", "PATH=.", ENOEXEC, 126);
  check_refused("./broken", USUAL_PATH, ENOEXEC, 126);
}

static struct sbx_refusal refusal_of(char *name) {
  char *argv[] = {name, NULL}, *envp[] = {USUAL_PATH, NULL};
  struct started started = start_with(argv, envp);
  CHECK_EQ_INT(started.rc, 0);
  finish(&started);
  return started.refusal;
}

TEST(missing_interpreter_is_not_a_missing_command) {
  if (in_valgrind()) SKIP("valgrind hides what the child says");
  struct sbx_refusal missing = refusal_of("./no-interpreter");
  CHECK_EQ_INT(missing.exit_code, 126);
  CHECK_EQ_INT(missing.error, ENOENT);
  CHECK(missing.interpreter);
  struct sbx_refusal below = refusal_of("./file-in-interpreter");
  CHECK_EQ_INT(below.exit_code, 126);
  CHECK(below.interpreter);
  CHECK(!refusal_of("./no-such-command").interpreter);
  CHECK(!refusal_of("./plain").interpreter);
  struct sbx_refusal cut = refusal_of("./cut"); /* ELF, but its headers point nowhere */
  CHECK_EQ_INT(cut.exit_code, 126);
}

/* The output of `tool` run with this environment; what is refused gives the exit code. */
static const char *found_by(const char *env) {
  static char text[64];
  char *argv[] = {"tool", NULL}, *envp[] = {"XPATH=ws", (char *)(uintptr_t)env, "PATH=c", NULL};
  struct started started = start_with(argv, envp);
  CHECK_EQ_INT(started.rc, 0);
  if (started.refusal.exit_code != 0)
    snprintf(text, sizeof text, "%d", started.refusal.exit_code);
  else
    read_line(&started, text, sizeof text);
  finish(&started);
  return text;
}

static void check_found(const char *env, const char *expected) {
  const char *found = found_by(env);
  if (strcmp(found, expected) != 0) fprintf(stderr, "%s finds %s\n", env, found);
  CHECK(strcmp(found, expected) == 0);
}

TEST(path_is_searched_in_its_order) {
  CHECK_EQ_INT(mkdirat(place.fd, "ws/a", 0755), 0);
  CHECK_EQ_INT(mkdirat(place.fd, "ws/b", 0755), 0);
  CHECK_EQ_INT(mkdirat(place.fd, "ws/c", 0755), 0);
  CHECK_EQ_INT(mkdirat(place.fd, "ws/d", 0755), 0);
  CHECK_EQ_INT(mkdirat(place.fd, "ws/d/tool", 0755), 0);
  write_file("tool", "#!/bin/sh\necho here\n", 0755);
  write_file("a/tool", "#!/bin/sh\necho a\n", 0755);
  write_file("b/tool", "#!/bin/sh\necho b\n", 0755);
  write_file("c/tool", "#!/bin/sh\necho c\n", 0644);
  check_found("PATH=a:b", "a");
  check_found("PATH=b:a", "b");
  check_found("PATH=/no/such/place:b:a", "b");
  check_found("PATH=c:b", "b");
  check_found("PATH=d:b", "b");
  check_found("PATH=tool:b", "b");
  check_found("PATH=c", "126");
  check_found("PATH=c:/no/such/place", "126");
  check_found("PATH=d", "126");
  check_found("PATH=/no/such/place", "127");
  check_found("PATH=:a", "here");
  check_found("PATH=/no/such/place::a", "here");
  check_found("PATH=/no/such/place:", "here");
  check_found("PATH=a:", "a");
  check_found("PATHS=a", "126"); /* then PATH=c is the first */
}

TEST(unset_path_finds_nothing) {
  char *argv[] = {"sh", NULL}, *envp[] = {"HOME=/", NULL};
  struct started started = start_with(argv, envp);
  CHECK_EQ_INT(started.rc, 0);
  CHECK_EQ_INT(started.refusal.exit_code, 127);
  finish(&started);
}

TEST(command_gets_its_arguments_environment_and_directory) {
  char *argv[] = {"sh", "-c", "echo \"$0|$1|$2|$A|$B\"; env; pwd", "zero", "", "b c", NULL};
  char *envp[] = {USUAL_PATH, "A=", "B=x=\ny", NULL};
  char text[2000], expected[PATH_MAX + 600];
  CHECK_EQ_INT(setenv("SBX_TEST_LEAK", "leaked", 1), 0);
  struct started started = start_with(argv, envp);
  read_rest(&started, text, sizeof text);
  CHECK_EQ_INT(exit_code_of(&started), 0);
  CHECK(strncmp(text, "zero||b c||x=\ny\n", 16) == 0);
  CHECK(strstr(text, "SBX_TEST_LEAK") == NULL);
  CHECK(strstr(text, "\nA=\n") != NULL || strstr(text, "y\nA=\n") != NULL);
  snprintf(expected, sizeof expected, "\n%s\n", scratch_path(&place, "ws"));
  CHECK(strlen(text) > strlen(expected) &&
        strcmp(text + strlen(text) - strlen(expected), expected) == 0);
  finish(&started);
}

/* What the command is, as /proc of its own says. */
static uint64_t status_field(const char *text, const char *name, int base) {
  const char *at = strstr(text, name);
  CHECK(at != NULL);
  return at == NULL ? 0 : strtoull(at + strlen(name), NULL, base);
}

static void check_clean(void) {
  char *argv[] = {"cat", "/proc/self/status", "/proc/self/stat", NULL};
  char *envp[] = {USUAL_PATH, NULL};
  char text[8000];
  struct started started = start_with(argv, envp);
  CHECK_EQ_INT(started.rc, 0);
  read_rest(&started, text, sizeof text);
  CHECK_EQ_INT(status_field(text, "\nSigBlk:", 16), 0);
  CHECK_EQ_INT(status_field(text, "\nSigPnd:", 16), 0);
  CHECK_EQ_INT(status_field(text, "\nSigCgt:", 16), 0);
  /* The C library of a program that is run by posix_spawn or fork keeps 32 and 33 as well. */
  CHECK_EQ_INT(status_field(text, "\nSigIgn:", 16), 0);
  CHECK_EQ_INT(status_field(text, "\nUmask:", 8), 022);
  int group = 0, session = 0, terminal = -1, parent = 0;
  const char *after = strrchr(text, ')');
  CHECK(after != NULL &&
        sscanf(after + 1, " %*c %d %d %d %d", &parent, &group, &session, &terminal) == 4);
  CHECK_EQ_INT(parent, getpid());
  CHECK_EQ_INT(group, started.process.pid);
  CHECK_EQ_INT(session, started.process.pid);
  CHECK_EQ_INT(terminal, 0);
  finish(&started);
  run_shell("ls /proc/self/fd | tr '\\n' ' '", text, sizeof text);
  CHECK(strcmp(text, "0 1 2 3 ") == 0); /* 3 is the directory that ls reads */
}

static void ignore_handler(int sig) {
  (void)sig;
}

static void be_unclean(void *arg) {
  sigset_t all;
  (void)arg;
  umask(0777);
  for (int sig = 1; sig < NSIG; sig++)
    signal(sig, sig == SIGUSR1 ? ignore_handler : sig == SIGCHLD ? SIG_DFL : SIG_IGN);
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL);
  raise(SIGUSR1);
  CHECK(dup2(2, 50) == 50 && dup2(2, 900) == 900 && dup(2) > 2);
  check_clean();
  umask(0);
  check_clean();
}

TEST(nothing_of_ours_reaches_the_command) {
  if (in_valgrind()) SKIP("valgrind keeps descriptors and signals of its own");
  check_clean();
  check_in_child(be_unclean, NULL);
}

static void close_standard_descriptors(void *arg) {
  char text[64] = "";
  int quiet = dup(2);
  (void)arg;
  close(0);
  close(1);
  close(2);
  int exit_code = run_shell("cat; echo out; echo err >&2; ls /proc/self/fd | wc -l", text, 64);
  dup2(quiet, 2);
  close(quiet);
  CHECK_EQ_INT(exit_code, 0);
  CHECK(strcmp(text, "out\nerr\n4\n") == 0);
}

/* The command's descriptors 0, 1, 2 are ours 1, 2, 0: each is in another's way. */
static void rotate_standard_descriptors(void *arg) {
  struct sbx_process process;
  struct sbx_refusal refusal;
  char *argv[] = {"sh", "-c", "cat; echo err >&2", NULL}, *envp[] = {USUAL_PATH, NULL};
  char text[16] = "";
  int in[2], out[2], err[2], quiet = dup(2);
  (void)arg;
  CHECK(pipe(in) == 0 && pipe(out) == 0 && pipe(err) == 0);
  CHECK_EQ_INT(write(in[1], "in\n", 3), 3);
  close(in[1]);
  CHECK(dup2(in[0], 1) == 1 && dup2(out[1], 2) == 2 && dup2(err[1], 0) == 0);
  struct sbx_spawn spawn = {.argv = argv, .envp = envp, .cwd_fd = place.fd, .stdio = {1, 2, 0}};
  int rc = sbx_process_spawn(&spawn, &process, &refusal);
  dup2(quiet, 2);
  CHECK_EQ_INT(rc, 0);
  if (rc != 0) return; /* nobody would write */
  CHECK(read(out[0], text, sizeof text) == 3 && memcmp(text, "in\n", 3) == 0);
  CHECK(read(err[0], text, sizeof text) == 4 && memcmp(text, "err\n", 4) == 0);
}

TEST(standard_descriptors_whatever_ours_are) {
  check_in_child(close_standard_descriptors, NULL);
  check_in_child(rotate_standard_descriptors, NULL);
}

static void check_not_started(char *const *argv, int expected) {
  char *envp[] = {USUAL_PATH, NULL};
  int descriptors = check_open_descriptors();
  struct started started = start_with(argv, envp);
  CHECK_EQ_INT(started.rc, expected);
  CHECK_EQ_INT(started.refusal.exit_code, 0);
  CHECK_EQ_INT(started.process.pid, 0);
  CHECK_EQ_INT(started.process.pidfd, -1);
  finish(&started);
  CHECK_EQ_INT(check_open_descriptors(), descriptors);
  CHECK_EQ_INT(waitpid(-1, NULL, WNOHANG), -1);
}

TEST(too_many_arguments) {
  if (in_valgrind()) SKIP("valgrind hides what the child says");
  char *huge = malloc(200000), *argv[] = {"true", huge, NULL};
  memset(huge, 'x', 199999);
  huge[199999] = '\0';
  check_not_started(argv, -E2BIG);
  huge[100000] = '\0'; /* and this is not too many */
  struct started started = start_with(argv, (char *[]){USUAL_PATH, NULL});
  CHECK_EQ_INT(started.rc, 0);
  CHECK_EQ_INT(exit_code_of(&started), 0);
  finish(&started);
  free(huge);
}

static void start_without_descriptors(void *arg) {
  struct rlimit limit = {0, 0};
  char *argv[] = {"true", NULL};
  int pipe_fd[2], null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  (void)arg;
  CHECK_EQ_INT(pipe(pipe_fd), 0);
  int lowest = dup(0);
  close(lowest);
  limit.rlim_cur = (rlim_t)lowest;
  limit.rlim_max = 256;
  CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
  struct sbx_process process;
  struct sbx_refusal refusal;
  struct sbx_spawn spawn = {.argv = argv,
                            .envp = (char *[]){USUAL_PATH, NULL},
                            .cwd_fd = place.fd,
                            .stdio = {null_fd, pipe_fd[1], pipe_fd[1]}};
  CHECK_EQ_INT(sbx_process_spawn(&spawn, &process, &refusal), -EMFILE);
  CHECK(process.pid == 0 && process.pidfd == -1 && refusal.exit_code == 0);
  CHECK_EQ_INT(waitpid(-1, NULL, WNOHANG), -1);
  limit.rlim_cur = 256;
  CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
  CHECK_EQ_INT(dup(0), lowest);
}

TEST(no_descriptor_to_be_had) {
  if (in_valgrind()) SKIP("valgrind has a limit of its own");
  check_in_child(start_without_descriptors, NULL);
}

static void start_without_processes(void *arg) {
  struct rlimit limit = {0, 0};
  char *argv[] = {"true", NULL};
  (void)arg;
  CHECK_EQ_INT(setuid(65534), 0);
  CHECK_EQ_INT(setrlimit(RLIMIT_NPROC, &limit), 0);
  check_not_started(argv, -EAGAIN);
}

static void start_where_we_may_not_go(void *arg) {
  char *argv[] = {"true", NULL};
  (void)arg;
  CHECK_EQ_INT(fchmodat(place.fd, "ws", 0700, 0), 0);
  CHECK_EQ_INT(setuid(65534), 0);
  check_not_started(argv, -EACCES);
}

TEST(limits_of_another_user) {
  if (getuid() != 0) SKIP("only root can become another user");
  CHECK_EQ_INT(fchmodat(place.fd, ".", 0755, 0), 0);
  check_in_child(start_without_processes, NULL);
  if (in_valgrind()) SKIP("valgrind hides what the child says");
  check_in_child(start_where_we_may_not_go, NULL);
  CHECK_EQ_INT(fchmodat(place.fd, "ws", 0755, 0), 0);
}

static void *start_many(void *arg) {
  (void)arg;
  for (int i = 0; i < scaled(50, 3); i++) {
    char text[64], expected[64];
    struct started started = start_shell("echo $$; ls /proc/self/fd | wc -l");
    read_rest(&started, text, sizeof text);
    snprintf(expected, sizeof expected, "%d\n4\n", (int)started.process.pid);
    CHECK(strcmp(text, expected) == 0);
    CHECK_EQ_INT(exit_code_of(&started), 0);
    finish(&started);
  }
  return NULL;
}

TEST(several_threads_start_commands) {
  pthread_t thread[4];
  if (in_valgrind()) SKIP("valgrind keeps descriptors of its own");
  for (int i = 0; i < 4; i++)
    CHECK_EQ_INT(pthread_create(&thread[i], NULL, start_many, NULL), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(thread[i], NULL);
  CHECK_COMES(count_children() == 0);
}

static volatile sig_atomic_t in_us, in_others;
static pid_t us;

static void count_where(int sig) {
  (void)sig;
  if ((pid_t)syscall(SYS_getpid) == us)
    in_us++;
  else
    in_others++;
}

TEST(handlers_of_ours_never_run_in_the_child) {
  struct sigaction action = {.sa_handler = count_where, .sa_flags = SA_RESTART}, before;
  struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  if (in_valgrind()) SKIP("valgrind runs handlers in its own way");
  us = getpid();
  sigaction(SIGALRM, &action, &before);
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < scaled(200, 10); i++) {
    struct started started = start_shell("exit 0");
    finish(&started);
  }
  setitimer(ITIMER_REAL, &never, NULL);
  sigaction(SIGALRM, &before, NULL);
  CHECK(in_us > 0);
  CHECK_EQ_INT(in_others, 0);
}

int main(void) {
  return run_all_in_place();
}
