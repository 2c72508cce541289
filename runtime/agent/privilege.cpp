#include "agent/privilege.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "base/process/own_program.hpp"

namespace spc::agent {

namespace {

constexpr std::array kNeeded = {CAP_SYS_ADMIN, CAP_SYS_CHROOT,   CAP_SETUID, CAP_SETGID,
                                CAP_KILL,      CAP_DAC_OVERRIDE, CAP_CHOWN,  CAP_FOWNER,
                                CAP_FSETID,    CAP_SETFCAP};

Result<void> write_file(const std::string& path, const std::string& text) {
  const auto file =
      SPC_TRY(own(::open(path.c_str(), O_WRONLY | O_CLOEXEC), "open " + quoted(path)));
  return check(::write(file.get(), text.data(), text.size()), "write " + quoted(path));
}

}  // namespace

Result<void> keep_needed_privileges() {
  for (int capability = 0; capability <= CAP_LAST_CAP; ++capability) {
    const bool needed = std::ranges::count(kNeeded, capability) > 0;
    // EINVAL: this kernel does not know the capability.
    if (!needed)
      SPC_TRY(check(::prctl(PR_CAPBSET_DROP, capability), "reduce the bounding set", EINVAL));
  }
  cap_t set = ::cap_init();  // never freed
  for (const auto which : {CAP_PERMITTED, CAP_EFFECTIVE})
    ::cap_set_flag(set, which, kNeeded.size(), kNeeded.data(), CAP_SET);
  SPC_TRY_OR(.hint("run slurmd as root; a pod needs SYS_ADMIN"),
             check(::cap_set_proc(set), "reduce the capabilities"));
  SPC_TRY(check(::prctl(PR_SET_DUMPABLE, 0), "become undumpable"));
  return check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs");
}

void stay_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
}

Result<pid_t> fork_child(unsigned long namespaces) {
  const pid_t parent = (namespaces & CLONE_NEWPID) != 0 ? 0 : ::getpid();  // as the child sees it
  // A raw clone without a stack behaves like fork.
  const auto child = static_cast<pid_t>(
      ::syscall(SYS_clone, namespaces | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child < 0) return Error::from_errno(errno, "fork");
  if (child == 0) stay_with(parent);
  return child;
}

Result<pid_t> run_aside(unsigned long namespaces, std::function<void()> body) {
  alignas(16) static std::array<std::byte, 64 << 10> stack;
  const auto call = [](void* it) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped child would stay forever
    (*static_cast<std::function<void()>*>(it))();
    return 0;
  };
  const int how = CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD | static_cast<int>(namespaces);
  const pid_t child = ::clone(call, stack.data() + stack.size(), how, &body);
  if (child < 0) return Error::from_errno(errno, "fork");
  return child;
}

Result<UniqueFd> describe_id_map(uid_t uid, gid_t gid) {
  UniqueFd space;
  const auto take = [&] { space.reset(::open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC)); };
  const pid_t child =
      SPC_TRY_OR(.during("create the ID map").hint("check sysctl user.max_user_namespaces"),
                 run_aside(CLONE_NEWUSER, take));
  const std::string proc = "/proc/" + std::to_string(child);
  auto described = write_file(proc + "/uid_map", "0 " + std::to_string(uid) + " 1\n");
  // Otherwise a process that enters it (--container-remap-root) could drop groups that a file's
  // mode denies.
  if (described) described = write_file(proc + "/setgroups", "deny\n");
  if (described) described = write_file(proc + "/gid_map", "0 " + std::to_string(gid) + " 1\n");
  ::waitpid(child, nullptr, 0);
  if (!described) return std::move(described).error();
  return own(space.release(), "open the user namespace of the ID map");
}

Result<pid_t> start_helper(const char* name, const char* argument, uid_t uid, gid_t gid,
                           const std::vector<int>& descriptors) {
  if (uid == 0)
    return Error(ErrorKind::unavailable, "no service user for images")
        .hint("create the system user spank-container and restart slurmd");
  const std::string program = own_program(name);
  SPC_TRY_OR(.hint("install spank-container on this node"),
             check(::access(program.c_str(), X_OK), "start " + quoted(program)));
  const pid_t parent = ::getpid();
  const pid_t child = SPC_TRY(fork_child());
  if (child > 0) return child;

  // The OOM killer never ends Slurm's daemons (-1000). A helper may be killed, but after the tasks,
  // which can end without it.
  (void)write_file("/proc/self/oom_score_adj", "-500");
  // Dropping needs this order, and the id change makes the kernel forget that the child dies with
  // its parent.
  if (::setgroups(0, nullptr) != 0 || ::setresgid(gid, gid, gid) != 0 ||
      ::setresuid(uid, uid, uid) != 0)
    ::_exit(125);
  stay_with(parent);
  const int null = ::open("/dev/null", O_RDWR);
  if (null < 0) ::_exit(125);
  std::vector<int> high;  // above the numbers that they will get
  for (const int descriptor : descriptors)
    high.push_back(::fcntl(descriptor, F_DUPFD, 3 + descriptors.size()));
  int next = 0;
  while (next < 3) ::dup2(null, next++);
  // Otherwise the descriptor with that number would be passed on.
  for (const int descriptor : high)
    if (::dup2(descriptor, next++) < 0) ::_exit(125);
  ::close_range(static_cast<unsigned>(next), ~0U, 0);
  // The agent blocks all signals.
  ::sigprocmask(SIG_SETMASK, std::array<sigset_t, 1>{}.data(), nullptr);
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(argument),
                             nullptr};
  ::execve(arguments[0], arguments, arguments + 2);  // an empty environment
  ::_exit(126);
}

void stay_as_init(int agent, uid_t uid, gid_t gid) {
  ::signal(SIGCHLD, SIG_IGN);  // the kernel then reaps children
  ::dup2(agent, 3);
  ::close_range(4, ~0U, 0);
  char end = 0;
  const bool is_user = ::setresgid(gid, gid, gid) == 0 && ::setresuid(uid, uid, uid) == 0;
  while (is_user && ::read(3, &end, sizeof end) < 0 && errno == EINTR) continue;
  ::_exit(0);
}

}  // namespace spc::agent
