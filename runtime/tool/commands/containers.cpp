#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <tuple>

#include "base/bytes.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/environment.hpp"
#include "base/unique_fd.hpp"
#include "launch/spec/environment.hpp"
#include "task/security.hpp"
#include "tool/command.hpp"
#include "tool/containers/detached.hpp"
#include "tool/containers/job_step.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/containers/running.hpp"
#include "tool/containers/stored_containers.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- containers ---

namespace {

std::string user_name(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry != nullptr ? entry->pw_name : std::to_string(uid);
}

Json as_json(const StoredContainer& one, const ContainerSize& size) {
  Json object{{"name", one.name},         {"owner", user_name(one.uid)},
              {"uid", one.uid},           {"image", one.image},
              {"bytes", size.bytes},      {"bytes_complete", size.complete},
              {"last_used", one.used_at}, {"in_use", one.in_use}};
  if (!one.job.empty()) object["job"] = one.job;
  return object;
}

Json as_json(const RunningContainer& one) {
  return {{"name", one.name},   {"owner", user_name(::geteuid())},
          {"uid", ::geteuid()}, {"image", one.image},
          {"pid", one.pid},     {"in_use", true}};
}

Json as_json(const OwnContainer& one) {
  Json tasks = Json::array();
  for (const pid_t task : one.tasks) tasks.push_back(task);
  Json object{{"name", one.name},
              {"owner", user_name(::geteuid())},
              {"uid", ::geteuid()},
              {"image", one.image},
              {"digest", one.digest},
              {"node", one.node},
              {"named", one.has_name},
              {"tasks", tasks},
              {"in_use", !one.tasks.empty()}};
  if (!one.job.empty()) object["job"] = one.job;
  if (one.made_at != 0) object["made"] = one.made_at;
  return object;
}

std::vector<std::string> as_row(const OwnContainer& one) {
  const std::int64_t age = std::max<std::int64_t>(0, std::time(nullptr) - one.made_at);
  const std::string known = one.made_at == 0 ? "-" : "made " + human_age(age);
  return {printable(one.name),
          printable(user_name(::geteuid())),
          printable(one.image),
          "-",
          one.tasks.empty() ? known : "in use",
          "node " + printable(one.node) + (one.job.empty() ? "" : ", job " + printable(one.job))};
}

std::vector<std::string> as_row(const StoredContainer& one, const ContainerSize& size) {
  const std::int64_t age = std::max<std::int64_t>(0, std::time(nullptr) - one.used_at);
  return {printable(one.name),
          printable(user_name(one.uid)),
          printable(one.image),
          (size.complete ? "" : "> ") + human_bytes(size.bytes),
          one.in_use ? "in use" : human_age(age),
          one.job.empty() ? "-" : "job " + printable(one.job)};
}

std::vector<std::string> as_row(const RunningContainer& one) {
  return {printable(one.name),
          printable(user_name(::geteuid())),
          printable(one.image),
          "-",
          "in use",
          formatted("process {}", one.pid)};
}

void print_list(const Arguments& arguments, const Json& list,
                const std::vector<std::vector<std::string>>& table) {
  if (arguments.has("json")) {
    std::puts(list.str(2).c_str());
  } else {
    print_table(table);
  }
}

bool is_meant(const Arguments& arguments, const std::string& name, const std::string& node = {}) {
  const std::string wanted = arguments.value("node");
  if (!wanted.empty() && node != wanted) return false;
  return arguments.words.size() < 2 || std::find(arguments.words.begin() + 1, arguments.words.end(),
                                                 name) != arguments.words.end();
}

/// Lists the containers of --container-name and the caller's own of `scontainer run`. For root, the
/// former are those of all users, read from the store. For users they are those noted in the home
/// directory.
Result<int> list_containers_of(const Arguments& arguments) {
  std::vector<StoredContainer> stored;
  if (::geteuid() == 0) stored = SPC_TRY(stored_containers());
  const auto order = [](const StoredContainer& one) {
    return std::tie(one.uid, one.name, one.key);
  };
  std::ranges::sort(stored, [&](const auto& a, const auto& b) { return order(a) < order(b); });
  const auto places = SPC_TRY(Places::find());
  const auto running = SPC_TRY(running_containers(places.running));
  Json all = Json::array();
  std::vector<std::vector<std::string>> table{{"NAME", "OWNER", "IMAGE", "SIZE", "LAST USE", "OF"}};
  for (const StoredContainer& one : stored) {
    if (!is_meant(arguments, one.name) && !is_meant(arguments, user_name(one.uid) + "/" + one.name))
      continue;
    const ContainerSize size = size_of(one);
    all.push_back(as_json(one, size));
    table.push_back(as_row(one, size));
  }
  for (const OwnContainer& one :
       ::geteuid() == 0 ? std::vector<OwnContainer>() : own_containers()) {
    if (!is_meant(arguments, one.name, one.node)) continue;
    all.push_back(as_json(one));
    table.push_back(as_row(one));
  }
  for (const RunningContainer& one : running) {
    if (!is_meant(arguments, one.name)) continue;
    all.push_back(as_json(one));
    table.push_back(as_row(one));
  }
  if (arguments.words.size() > 1 && table.size() == 1) {
    return Error(ErrorKind::not_found, "no container " + in_quotes(arguments.words[1]))
        .hint("scontainer containers lists them");
  }
  print_list(arguments, all, table);
  return 0;
}

Result<int> remove_all(const Arguments& arguments) {
  for (auto name = arguments.words.begin() + 1; name != arguments.words.end(); ++name) {
    const int status = SPC_TRY(remove_named(
        {*name, arguments.value("node"), arguments.value("job"), arguments.has("force")}));
    if (status != 0) return status;
  }
  return 0;
}

/// Makes the path absolute, as the step may have another work directory.
Result<int> write_to_file(const Arguments& arguments) {
  if (arguments.words.size() != 3)
    return Error(ErrorKind::invalid, "export: NAME and FILE required");
  const auto file = SPC_TRY(absolute_path(arguments.words[2]));
  return export_named(
      {arguments.words[1], arguments.value("node"), arguments.value("job"), arguments.has("force")},
      file);
}

}  // namespace

Result<int> run_containers(const Arguments& arguments) {
  const std::string verb = arguments.words.empty() ? "list" : arguments.words[0];
  if (verb == "list") return list_containers_of(arguments);
  if (arguments.words.size() < 2)
    return Error(ErrorKind::invalid, formatted("{}: name of a container required", verb));
  if (verb == "inspect") {
    Arguments of_one = arguments;
    of_one.options["json"];
    return list_containers_of(of_one);
  }
  if (verb == "rm") return remove_all(arguments);
  if (verb == "export") return write_to_file(arguments);
  return Error(ErrorKind::invalid, formatted("unknown word {}", in_quotes(verb)))
      .hint("list, inspect, rm or export");
}

// --- exec ---

namespace {

/// Returns the environment with which the container's command was started.
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
  SPC_TRY(read_variables(arguments, environment));
  SPC_TRY(join(process));
  return supervise([&] { return execute({arguments.rest}, environment, container.image); },
                   [](pid_t) {});
}

// --- stop ---

namespace {

/// Stops a container as podman does: SIGTERM, then SIGKILL after ten seconds. Killing the
/// supervisor ends the whole container.
Result<void> stop_one(const Places& places, const std::string& name) {
  constexpr int kPatience = 10'000;  // milliseconds
  const auto container = SPC_TRY(find_container(places.running, name));
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, container.supervisor, 0)));
  if (!process)
    return errno == ESRCH ? Result<void>() : Error::from_errno(errno, "stop " + in_quotes(name));
  const auto send = [&](int number) {
    return ::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0) == 0;
  };
  pollfd end{process.get(), POLLIN, 0};
  if (send(SIGTERM) && ::poll(&end, 1, kPatience) > 0) return {};
  send(SIGKILL);
  if (::poll(&end, 1, kPatience) > 0) return {};
  return Error(ErrorKind::unavailable, formatted("stop {}: it does not end", in_quotes(name)));
}

}  // namespace

Result<int> run_stop(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  for (const std::string& name : arguments.words) SPC_TRY(stop_one(places, name));
  return 0;
}

Result<int> run_attach(const Arguments& arguments) {
  const std::string& job = arguments.words[0];
  if (!names_job(job))
    return Error(ErrorKind::invalid, in_quotes(job) + " is no job")
        .hint("JOB or JOB.STEP, as in squeue --steps");
  // Debian's bash puts debian_chroot before its own prompt.
  const std::string prompt = formatted("export PS1='{}:\\w\\$ ' debian_chroot={}; ", job, job);
  return become_step_in(
      job, {"sh", "-c", prompt + "command -v bash >/dev/null && exec bash -i || exec sh -i"});
}

}  // namespace spc::tool
