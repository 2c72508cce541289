#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/format.hpp"
#include "base/process/environment.hpp"
#include "launch/spec/environment.hpp"
#include "task/fake_root.hpp"
#include "tool/command.hpp"
#include "tool/containers/job_step.hpp"
#include "tool/containers/running.hpp"
#include "tool/containers/supervise.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {
namespace {

/// The environment of the container's command, when it was started.
Result<std::map<std::string, std::string>> environment_of(pid_t process) {
  const auto all =
      SPC_TRY_DURING("read the container's environment", environment_of_process(process));
  std::vector<const char*> variables;
  for (const std::string& one : all) variables.push_back(one.c_str());
  variables.push_back(nullptr);
  return as_map(variables.data());
}

Result<UniqueFd> open_of(const std::string& process, const char* what, int flags) {
  UniqueFd file(::open((process + what).c_str(), flags | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, std::string("open the container's ") + what);
  return file;
}

bool same_file(const UniqueFd& a, const UniqueFd& b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a.get(), &first) == 0 && ::fstat(b.get(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

Result<void> join(const std::string& process) {
  const uid_t outside = ::geteuid();
  const auto user = SPC_TRY(open_of(process, "ns/user", O_RDONLY));
  const auto own_user = SPC_TRY(open_of("/proc/self/", "ns/user", O_RDONLY));
  const auto mounts = SPC_TRY(open_of(process, "ns/mnt", O_RDONLY));
  const auto cgroup = SPC_TRY(open_of(process, "ns/cgroup", O_RDONLY));
  const auto own_cgroups = SPC_TRY(open_of("/proc/self/", "ns/cgroup", O_RDONLY));
  const auto workdir = SPC_TRY(open_of(process, "cwd", O_PATH | O_DIRECTORY));
  if (!same_file(user, own_user) && ::setns(user.get(), CLONE_NEWUSER) != 0) {
    return Error::from_errno(errno, "join the container's user namespace");
  }
  if (!same_file(cgroup, own_cgroups) && ::setns(cgroup.get(), CLONE_NEWCGROUP) != 0) {
    return Error::from_errno(errno, "join the container's cgroup namespace");
  }
  if (::setns(mounts.get(), CLONE_NEWNS) != 0)
    return Error::from_errno(errno, "join the container");
  if (::fchdir(workdir.get()) != 0)
    return Error::from_errno(errno, "enter the container's work directory");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error::from_errno(errno, "set no_new_privs");
  const bool became_root = outside != 0 && ::geteuid() == 0;
  return became_root ? fake_root_calls() : Result<void>();
}

}  // namespace

Result<int> run_exec(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const std::string& wanted = arguments.words[0];
  if (arguments.rest.empty())
    return Error(ErrorKind::invalid, "command required").hint("scontainer exec NAME COMMAND");
  auto found = find_container(places.running, wanted);
  if (!found && names_job(wanted)) return become_step_in(wanted, arguments.rest);
  if (!found && wanted.find_first_of("/:.") != std::string::npos) {
    return Error(ErrorKind::not_found, found.error().what())
        .hint("for a command in an image: scontainer run IMAGE COMMAND");
  }
  const auto container = SPC_TRY(std::move(found));
  const std::string process = "/proc/" + std::to_string(container.pid) + "/";
  auto environment = SPC_TRY(environment_of(container.pid));
  for (const std::string& text : arguments.values("env")) {
    const std::string name = text.substr(0, text.find('='));
    if (name.empty())
      return Error(ErrorKind::invalid, formatted("--env: {}: invalid format", in_quotes(text)))
          .hint("NAME or NAME=VALUE");
    const char* outside = std::getenv(name.c_str());
    if (name.size() < text.size()) {
      environment[name] = text.substr(name.size() + 1);
    } else if (outside != nullptr) {
      environment[name] = outside;
    }
  }
  SPC_TRY(join(process));
  return supervise([&] { return execute({arguments.rest}, environment, container.image); },
                   [](pid_t) {});
}

}  // namespace spc::tool
