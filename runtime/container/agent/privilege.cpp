#include "container/agent/privilege.hpp"

#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "base/file.hpp"

namespace spc {
namespace {

constexpr std::array kNeeded = {CAP_SYS_ADMIN,    CAP_SYS_CHROOT, CAP_SETUID, CAP_SETGID, CAP_KILL,
                                CAP_DAC_OVERRIDE, CAP_CHOWN,      CAP_FOWNER, CAP_FSETID};

Result<void> write_proc(pid_t pid, const char* file, const std::string& text) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + file;
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, "open " + quoted(path));
  SPC_TRY_DURING(path, write_all(fd.get(), text));
  return {};
}

}  // namespace

Result<void> keep_needed_privileges() {
  if (::setgroups(0, nullptr) != 0) return Error::from_errno(errno, "drop groups");
  for (int capability = 0; capability <= CAP_LAST_CAP; ++capability) {
    bool needed = false;
    for (const int wanted : kNeeded) needed = needed || wanted == capability;
    // EINVAL: a capability that this kernel does not know.
    if (!needed && ::prctl(PR_CAPBSET_DROP, capability) != 0 && errno != EINVAL) {
      return Error::from_errno(errno, "reduce the bounding set");
    }
  }
  cap_t set = ::cap_init();
  if (set == nullptr) return Error::from_errno(errno, "allocate a capability set");
  ::cap_set_flag(set, CAP_PERMITTED, kNeeded.size(), kNeeded.data(), CAP_SET);
  ::cap_set_flag(set, CAP_EFFECTIVE, kNeeded.size(), kNeeded.data(), CAP_SET);
  const int failed = ::cap_set_proc(set) != 0 ? errno : 0;
  ::cap_free(set);
  if (failed != 0) return Error::from_errno(failed, "reduce the capabilities").hint("the agent must be started as root");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Error::from_errno(errno, "set no_new_privs");
  return {};
}

Result<UniqueFd> describe_id_map(uid_t uid, gid_t gid) {
  int gate[2];
  if (::pipe2(gate, O_CLOEXEC) != 0) return Error::from_errno(errno, "create a pipe");
  UniqueFd reader(gate[0]);
  UniqueFd writer(gate[1]);
  // A raw clone without a stack behaves like fork.
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (child < 0) {
    return Error::from_errno(errno, "create a user namespace for the id map").hint("is the sysctl user.max_user_namespaces 0?");
  }
  if (child == 0) {
    writer.reset();
    char end = 0;
    [[maybe_unused]] const auto got = ::read(reader.get(), &end, 1);  // until the parent closes its end
    ::_exit(0);
  }
  const auto describe = [&]() -> Result<UniqueFd> {
    SPC_TRY(write_proc(child, "uid_map", "0 " + std::to_string(uid) + " 1\n"));
    SPC_TRY(write_proc(child, "gid_map", "0 " + std::to_string(gid) + " 1\n"));
    UniqueFd space(::open(("/proc/" + std::to_string(child) + "/ns/user").c_str(), O_RDONLY | O_CLOEXEC));
    if (!space) return Error::from_errno(errno, "open the user namespace of the id map");
    return space;
  };
  auto space = describe();
  writer.reset();
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return space;
}

Result<pid_t> start_helper(const char* program, const char* argument, uid_t uid, gid_t gid,
                           std::initializer_list<int> descriptors) {
  if (uid == 0) {
    return Error(ErrorKind::unavailable, "there is no service user to handle images")
        .hint("create the system user spank-container and restart slurmd");
  }
  if (::access(program, X_OK) != 0) {
    return Error::from_errno(errno, "start " + quoted(program)).hint("install spank-container on this node");
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return Error::from_errno(errno, "fork");
  if (child > 0) return child;

  // Dropping needs this order; PDEATHSIG is cleared by the id change, hence after it.
  if (::setgroups(0, nullptr) != 0 || ::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0) ::_exit(125);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(125);
  const int null = ::open("/dev/null", O_RDWR);
  if (null < 0) ::_exit(125);
  std::vector<int> high;  // out of the way of the numbers they will get
  for (const int descriptor : descriptors) high.push_back(::fcntl(descriptor, F_DUPFD, 100));
  int next = 0;
  while (next < 3) ::dup2(null, next++);
  for (const int descriptor : high) ::dup2(descriptor, next++);
  ::close_range(static_cast<unsigned>(next), ~0U, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  char* const arguments[] = {const_cast<char*>(program), const_cast<char*>(argument), nullptr};
  char* const environment[] = {nullptr};
  ::execve(program, arguments, environment);
  ::_exit(126);
}

}  // namespace spc
