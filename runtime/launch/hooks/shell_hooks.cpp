#include "launch/hooks/shell_hooks.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "base/file.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "hook_engine/root_path.hpp"
#include "launch/site/enroot_compat.hpp"
#include "launch/site/enroot_text.hpp"
#include "protocol/task.hpp"
#include "task/entering/visit.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOfFile = 4 << 20;

/// What decides about the code that a program executes; and, as pyxis, what is not the same for all
/// tasks.
bool is_left_out(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames{
      "BASH_ENV",       "ENV",          "GCONV_PATH",
      "GLIBC_TUNABLES", "SLURM_PROCID", "SLURM_LOCALID",
      "SLURM_TASK_PID", "PMIX_RANK",    "PMI_FD"};
  if (name.starts_with("LD_") || name.starts_with("BASH_FUNC_")) return true;
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Variables environment_of_hooks(const ShellHookPlace& place, const ShellHookStart& start,
                               const Variables& settings) {
  Variables environment;
  for (const auto& [name, value] : start.job) {
    if (!is_left_out(name) && !name.starts_with("ENROOT_")) environment[name] = value;
  }
  const auto set = [&](const char* name, const std::string& value) {
    environment.try_emplace(name, value);
  };
  for (const auto& [name, value] : settings) {
    if (is_on_for_enroot(value)) environment[name] = value;  // as enroot: what says no is not set
  }
  const auto decide = [&](const char* name, bool on) {
    environment.erase(name);
    if (on) environment[name] = "y";
  };
  decide("ENROOT_ROOTFS_WRITABLE", start.request.writable.value_or(true));
  decide("ENROOT_REMAP_ROOT", start.request.remap_root.value_or(false));
  decide("ENROOT_MOUNT_HOME", !start.request.contain && start.request.mount_home.value_or(false));
  const auto home = start.job.find("HOME");
  const std::string data = (home == start.job.end() ? place.directory : home->second);
  set("ENROOT_CONFIG_PATH", enroot_directory_of_user(settings, start.job));
  set("ENROOT_CACHE_PATH", data + "/.cache/enroot");
  set("ENROOT_DATA_PATH", data + "/.local/share/enroot");
  set("ENROOT_TEMP_PATH", place.directory);
  environment["ENROOT_SYSCONF_PATH"] = "/etc/enroot";
  const std::string tools = own_program("enroot");
  environment["ENROOT_LIBRARY_PATH"] = tools;
  environment["ENROOT_LIBEXEC_PATH"] = tools;
  environment["ENROOT_RUNTIME_PATH"] = place.directory;
  environment["ENROOT_PID"] = std::to_string(::getpid());
  environment["ENROOT_ROOTFS"] = place.root;
  environment["ENROOT_ENVIRON"] = place.directory + "/environment";
  environment["ENROOT_MOUNTS"] = place.directory + "/fstab";
  const std::string path = environment["PATH"];
  environment["PATH"] = tools + ":" + (path.empty() ? "/usr/local/bin:/usr/bin:/bin" : path);
  return environment;
}

std::vector<std::string> as_list(const Variables& variables) {
  std::vector<std::string> list;
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

Variables as_map(const std::vector<std::string>& list) {
  Variables variables;
  for (const std::string& variable : list) {
    const auto equals = variable.find('=');
    if (equals != std::string::npos)
      variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return variables;
}

/// Anything but a regular file is empty: a hook may have put something else there.
Result<std::string> file_text(const UniqueFd& directory, const char* name) {
  const UniqueFd file(
      ::openat(directory.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::string();
  return read_file(file.get(), kMostOfFile);
}

Result<void> write_text(const std::string& path, const std::string& text) {
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return Error::from_errno(errno, "make " + in_quotes(path));
  return write_all(file.get(), text);
}

/// What the hooks are shown of the container's environment: what image and site set.
std::string environment_before(const ShellHookPlace& place, const ShellHookStart& start) {
  std::string text;
  const auto add = [&](const std::string& variable) {
    if (variable.find('\n') == std::string::npos) text += variable + "\n";
  };
  if (start.spec.settings.in_files) {
    const UniqueFd root(::open(place.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const auto etc = open_in_root(root.get(), "/etc/", MakeTarget::no);
    const auto found = etc ? file_text(*etc, "environment") : Result<std::string>(std::string());
    for (const std::string& variable : parse_environment_file(found ? *found : "")) add(variable);
  }
  for (const std::string& variable : start.spec.settings.environment) add(variable);
  for (const std::string& variable : start.site.env) add(variable);
  return text;
}

/// What a child has to say to the process that has started it.
class ChildsAnswer {
 public:
  static Result<ChildsAnswer> make() {
    ChildsAnswer answer;
    answer.file_.reset(::memfd_create("spank-container hooks", MFD_CLOEXEC));
    if (!answer.file_) return Error::from_errno(errno, "make a memory file");
    return answer;
  }
  [[nodiscard]] Result<void> give(const Result<TaskEdits>& ran) const {
    return write_all(file_.get(), ran ? kDone + ran->serialize() : kFailed + ran.error().message());
  }
  [[nodiscard]] Result<TaskEdits> take() const {
    const auto read = read_file(file_.get(), 2 * kMostOfFile);
    if (!read) return read.error();
    const std::string_view text = *read;
    if (text.starts_with(kDone)) return TaskEdits::parse(text.substr(1));
    return Error(ErrorKind::invalid, text.empty() ? "hooks: the hook runner exited unexpectedly"
                                                  : std::string(text.substr(1)));
  }

 private:
  static constexpr char kDone = '+';
  static constexpr char kFailed = '-';
  UniqueFd file_;
};

std::string work_directory() {
  std::array<char, PATH_MAX> path{};
  return ::getcwd(path.data(), path.size()) == nullptr ? "/" : path.data();
}

int mount_by(int builder, const HookMountRequest& request, const std::vector<UniqueFd>& opened) {
  TaskMessage message;
  message.kind = TaskMessageKind::target;
  message.source_flags = request.flags & ~TaskMessage::source_squashfs;
  message.size = request.size;
  std::array<int, 2> passed{opened[0].get(), opened.size() == 2 ? opened[1].get() : -1};
  if (!send_struct(builder, message, std::span(passed.data(), opened.size())) ||
      !receive_struct(builder, message))
    return EIO;
  return message.error;
}

}  // namespace

Result<TaskEdits> run_shell_hooks(const std::vector<ShellHook>& hooks, const ShellHookPlace& place,
                                  const ShellHookStart& start, Log& log,
                                  const std::function<Result<void>(HookRunner&)>& prepare) {
  if (::chdir(place.workdir.c_str()) != 0) [[maybe_unused]]
    const int root = ::chdir("/");
  const auto settings = SPC_TRY(enroot_settings(start.job));
  Variables environment = environment_of_hooks(place, start, settings);
  const std::string before = environment_before(place, start);
  SPC_TRY(write_text(environment["ENROOT_ENVIRON"], before));
  SPC_TRY(write_text(environment["ENROOT_MOUNTS"], ""));
  const UniqueFd directory(::open(place.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto seconds = start.site.hook_timeout;
  TaskEdits edits;
  {
    HookRunner runner(as_list(environment), static_cast<unsigned>(seconds), log);
    SPC_TRY(prepare(runner));
    for (const ShellHook& hook : hooks) {
      if (!hook.runs) continue;
      SPC_TRY(runner.run(hook.name, {hook.path}));
      edits.of_hooks.push_back({hook.name, {}});
      edits.of_hooks.back().second.notes.push_back("has run: " + hook.path);
    }
    const std::string mounts = environment["ENROOT_MOUNTS"];
    if (!SPC_TRY(file_text(directory, "fstab")).empty()) {
      SPC_TRY(
          runner.run("mounts", {own_program("enroot/enroot-mount"), "--root", place.root, mounts}));
    }
  }
  const Variables old = as_map(parse_environment_file(before));
  Edits::Environment changed;
  for (const auto& [name, value] :
       as_map(parse_environment_file(SPC_TRY(file_text(directory, "environment"))))) {
    const auto found = old.find(name);
    if (found == old.end() || found->second != value) changed.set[name] = value;
  }
  if (!edits.of_hooks.empty()) edits.of_hooks.back().second.environment = std::move(changed);
  return edits;
}

Result<TaskEdits> run_shell_hooks_in_step(const std::vector<ShellHook>& hooks,
                                          const ShellHookStart& start,
                                          std::vector<UniqueFd>& descriptors, RootSetup& setup,
                                          int builder, Log& log) {
  if (descriptors.size() != 4) return Error(ErrorKind::internal, "no namespace for hooks");
  const auto answer = SPC_TRY(ChildsAnswer::make());
  const ShellHookPlace place{SPC_RUN_DIR "/root", SPC_RUN_DIR "/hooks", work_directory()};
  const int root = descriptors[2].get();
  const auto inside = [&]() -> Result<void> {
    const auto open_directory = [&](const std::string& path) {
      return open_in_root(root, path, MakeTarget::directory);
    };
    const auto mount = [&](const HookMountRequest& request, const std::vector<UniqueFd>& opened) {
      return mount_by(builder, request, opened);
    };
    auto ready = attach_host_trees(setup, open_directory, attach_by(builder));
    return answer.give(!ready
                           ? Result<TaskEdits>(ready.error())
                           : run_shell_hooks(hooks, place, start, log, [&](HookRunner& runner) {
                               return runner.answer_at(place.directory + "/mounts", mount, builder);
                             }));
  };
  SPC_TRY(visit_root(descriptors[0].get(), inside));
  auto edits = SPC_TRY(answer.take());
  setup.has_host_trees = true;
  TaskMessage message;
  message.kind = TaskMessageKind::set_up_done;
  SPC_TRY(send_struct(builder, message));
  return edits;
}

Result<TaskEdits> run_shell_hooks_alone(const std::vector<ShellHook>& hooks,
                                        const std::string& root, const std::string& directory,
                                        const ShellHookStart& start, Log& log) {
  if (::mkdir(directory.c_str(), 0700) != 0)
    return Error::from_errno(errno, "make a directory for hooks");
  const auto answer = SPC_TRY(ChildsAnswer::make());
  const ShellHookPlace place{root, directory, work_directory()};
  const auto keep = [](HookRunner& runner) -> Result<void> {
    runner.keep_capabilities();
    return {};
  };
  const auto run = [&] {
    return answer.give(run_shell_hooks(hooks, place, start, log, keep)) ? 0 : 1;
  };
  SPC_TRY(Child::run(run, "run hooks")).wait();
  return answer.take();
}

}  // namespace spc
