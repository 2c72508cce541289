/* Runs a command inside a machine of the cluster; `cluster up` compiles it, as the tests start it
 * thousands of times.
 *
 * usage: enter PID USER CMD...       PID: the machine's PID 1, USER: a name known there, or a
 * number
 *
 * The command is the only thing in between: it gets our standard streams and terminal, our signals,
 * and ends when we end; we end with its status. It has its own process group, which is the
 * terminal's foreground group when ours was: otherwise a Ctrl-C would reach it twice, once from the
 * terminal and once from us.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <mntent.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMostGroups = 1024, kNotStarted = 126, kNotFound = 127 };

static const int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
static pid_t child;
static int terminal = -1; /* that we are in the foreground of, if any */

static void die(int status, const char* what) {
  fprintf(stderr, "cluster: %s: %s\n", what, strerror(errno));
  exit(status);
}

static void* must(void* made, const char* what) {
  if (made == NULL) die(1, what);
  return made;
}

static char* text(const char* format, const char* a, const char* b) {
  char* made = NULL;
  if (asprintf(&made, format, a, b) < 0) die(1, "enter");
  return made;
}

/* Whether a list with commas has the entry. */
static bool has(const char* list, const char* entry) {
  char* const in = text(",%s,%s", list, "");
  char* const sought = text(",%s,%s", entry, "");
  const bool found = strstr(in, sought) != NULL;
  free(in);
  free(sought);
  return found;
}

/* Moves us where the machine's PID 1 is, in a v1 hierarchy, so that the end of the cluster is our
 * end. */
static void join_cgroup(const char* controllers, const char* path) {
  FILE* const mounts = must(setmntent("/proc/self/mounts", "r"), "/proc/self/mounts");
  for (struct mntent* mount; (mount = getmntent(mounts)) != NULL;) {
    if (strcmp(mount->mnt_type, "cgroup") != 0 || !has(mount->mnt_opts, controllers)) continue;
    char* const group = text("%s%s/cgroup.procs", mount->mnt_dir, path);
    FILE* const procs = must(fopen(group, "we"), group);
    if (fputs("0", procs) < 0 || fclose(procs) != 0) die(1, group);
    free(group);
    break;
  }
  endmntent(mounts);
}

static void join_cgroups(const char* pid) {
  char* const name = text("/proc/%s/cgroup%s", pid, "");
  FILE* const groups = must(fopen(name, "re"), name);
  char* line = NULL;
  size_t size = 0;
  while (getline(&line, &size, groups) > 0) { /* number:controllers:path */
    char* const controllers = strchr(line, ':') + 1;
    char* const path = strchr(controllers, ':') + 1;
    path[-1] = path[strcspn(path, "\n")] = '\0';
    if (*controllers != '\0') join_cgroup(controllers, path);
  }
  free(line);
  fclose(groups);
  free(name);
}

/* mnt last: the others are opened through our /proc. */
static void join_namespaces(const char* pid) {
  static const char* const names[] = {"cgroup", "ipc", "uts", "net", "pid", "mnt"};
  enum { kCount = sizeof names / sizeof *names };
  int descriptors[kCount];
  for (int i = 0; i < kCount; ++i) {
    char* const name = text("/proc/%s/ns/%s", pid, names[i]);
    descriptors[i] = open(name, O_RDONLY | O_CLOEXEC);
    if (descriptors[i] < 0) die(1, name);
    free(name);
  }
  for (int i = 0; i < kCount; ++i) {
    if (setns(descriptors[i], 0) != 0) die(1, text("join the %s namespace%s", names[i], ""));
    close(descriptors[i]);
  }
}

/* The user as known on the machine we have entered; a number need not be known. */
static struct passwd identity(const char* user) {
  char* end = NULL;
  const uid_t number = (uid_t)strtoul(user, &end, 10);
  const bool is_number = *user != '\0' && *end == '\0';
  const struct passwd* const known = is_number ? getpwuid(number) : getpwnam(user);
  if (known != NULL) return *known;
  if (!is_number) {
    fprintf(stderr, "cluster: there is no user \"%s\" on this machine\n", user);
    exit(kNotStarted);
  }
  return (struct passwd){.pw_name = text("%s%s", user, ""),
                         .pw_uid = number,
                         .pw_gid = number,
                         .pw_dir = "/tmp",
                         .pw_shell = "/bin/sh"};
}

static void set_environment(const struct passwd* user) {
  char* const kept[] = {getenv("TERM"), getenv("LANG")};
  clearenv();
  if (kept[0] != NULL) setenv("TERM", kept[0], 1);
  if (kept[1] != NULL) setenv("LANG", kept[1], 1);
  setenv("HOME", user->pw_dir, 1);
  setenv("USER", user->pw_name, 1);
  setenv("LOGNAME", user->pw_name, 1);
  setenv("SHELL", user->pw_shell, 1);
  const bool is_root = user->pw_uid == 0;
  setenv("PATH",
         is_root ? "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                 : "/usr/local/bin:/usr/bin:/bin",
         1);
}

static void become(const char* name) {
  const struct passwd user = identity(name);
  gid_t groups[kMostGroups] = {user.pw_gid};
  int count = kMostGroups;
  if (getgrouplist(user.pw_name, user.pw_gid, groups, &count) < 0) count = 1;
  char* const what = text("run as %s%s", name, "");
  if (setgroups((size_t)count, groups) != 0 ||
      setresgid(user.pw_gid, user.pw_gid, user.pw_gid) != 0 ||
      setresuid(user.pw_uid, user.pw_uid, user.pw_uid) != 0) {
    die(kNotStarted, what);
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM); /* after the change of ids, which clears it */
  umask(022);
  if (chdir(user.pw_uid == 0 ? "/" : user.pw_dir) != 0) die(kNotStarted, what);
  set_environment(&user);
}

/* The child's side; `may_go` ends when its process group is made. */
static void run(const char* user, char** command, int may_go) {
  static const int others[] = {SIGPIPE, SIGTTOU, SIGXFSZ};
  char byte;
  while (read(may_go, &byte, 1) < 0 && errno == EINTR) {
  }
  close(may_go);
  for (size_t i = 0; i < sizeof kForwarded / sizeof *kForwarded; ++i)
    signal(kForwarded[i], SIG_DFL);
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) signal(others[i], SIG_DFL);
  become(user);
  execvp(command[0], command);
  die(errno == ENOENT ? kNotFound : kNotStarted, text("run \"%s\" as %s", command[0], user));
}

static bool is_foreground(void) { return terminal >= 0 && tcgetpgrp(terminal) == getpgrp(); }

/* Fails when the terminal was hung up, or the group has ended. */
static void give_terminal_to(pid_t group) { (void)!tcsetpgrp(terminal, group); }

static void forward(int number) { kill(-child, number); }

/* Waits for the child, stopping and continuing with it. Returns its exit status. */
static int attend(bool lent) {
  for (int status;;) {
    if (waitpid(child, &status, WUNTRACED) < 0) {
      if (errno == EINTR) continue;
      die(1, "wait for the command");
    }
    if (lent) give_terminal_to(getpgrp());
    if (!WIFSTOPPED(status))
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    raise(SIGSTOP);
    lent = is_foreground();
    if (lent) give_terminal_to(child);
    kill(-child, SIGCONT);
  }
}

int main(int count, char** words) {
  if (count < 4) {
    fprintf(stderr, "usage: enter PID USER CMD...\n");
    return 2;
  }
  terminal = open("/dev/tty", O_RDWR | O_CLOEXEC);
  signal(SIGTTOU, SIG_IGN); /* sent to who changes the foreground from the background */
  join_cgroups(words[1]);
  join_namespaces(words[1]);
  int go[2];
  if (pipe2(go, O_CLOEXEC) != 0) die(1, "pipe");
  child = fork();
  if (child < 0) die(1, "fork");
  if (child == 0) {
    close(go[1]);
    run(words[2], words + 3, go[0]);
  }
  close(go[0]);
  setpgid(child, child);
  for (size_t i = 0; i < sizeof kForwarded / sizeof *kForwarded; ++i)
    signal(kForwarded[i], forward);
  const bool lent = is_foreground();
  if (lent) give_terminal_to(child);
  close(go[1]);
  return attend(lent);
}
