#include "launch/hooks/shell_hooks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <deque>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/socket.hpp"
#include "hook_engine/enroot_fstab.hpp"
#include "launch/site/enroot_compat.hpp"
#include "protocol/hook_mount.hpp"
#include "protocol/task.hpp"
#include "task/entering/arrival.hpp"
#include "task/security.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOfFile = 4 << 20;
constexpr std::size_t kMostToLog = 8192;  ///< bytes of output per program
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kMostConnections = 16;

/// The paths under which enroot's hooks find the container being set up.
struct Place {
  std::string root;       ///< ENROOT_ROOTFS
  std::string directory;  ///< ENROOT_RUNTIME_PATH: owned by the user, for the hooks' files
  std::string workdir;    ///< their work directory
  int builder = -1;       ///< mounts for hooks in a step; -1: they keep our capabilities
};

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

/// A runner of programs that may hang, print endlessly, and leave processes behind. The calling
/// process becomes a subreaper and must have no other children. While a program runs, its mount
/// requests are served.
class HookRunner {
 public:
  HookRunner(std::chrono::seconds limit, int builder, Log& log)
      : limit_(limit), builder_(builder), log_(log) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  /// Ends background processes of the programs as well.
  ~HookRunner() { end_descendants(-1); }
  HookRunner(const HookRunner&) = delete;
  HookRunner& operator=(const HookRunner&) = delete;

  /// Creates the socket at which the builder mounts. When the builder hangs up, all programs are
  /// killed.
  Result<void> listen_at(const std::string& path);
  /// Runs a program until it exits. An Error names the program, its kind and its status. Its
  /// standard error goes to the log in lines, its standard output is discarded.
  Result<void> run(const std::string& name, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment);

 private:
  void add_files(std::vector<pollfd>& files) const;
  bool serve(std::span<const pollfd> files);
  void answer(std::size_t connection);

  std::chrono::seconds limit_;
  int builder_;
  Log& log_;
  UniqueFd listener_;
  std::vector<UniqueFd> connections_;
  bool builder_left_ = false;
};

Result<void> HookRunner::listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Error::from_errno(ENAMETOOLONG, "make socket " + in_quotes(path));
  path.copy(address.sun_path, path.size());
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_ ||
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), kMostConnections) != 0) {
    return Error::from_errno(errno, "make socket " + in_quotes(path));
  }
  return {};
}

Result<void> HookRunner::run(const std::string& name, const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment) {
  const std::string hook = "hook " + name;
  auto [lines, writing] = SPC_TRY_DURING(hook, make_pipe());
  Program program{.path = arguments.front(),
                  .arguments = arguments,
                  .environment = environment,
                  .descriptors = {{writing.get(), STDERR_FILENO}},
                  .group = Program::Group::session,
                  .signals = Program::Signals::defaults};
  if (builder_ < 0) {
    program.prepare = [] {
      keep_capabilities_when_executing();
      return true;
    };
  }
  auto child = Child::start(program);
  if (!child) {
    return Error::from_errno(child.error().sys_errno(),
                             formatted("{}: execute {}", hook, in_quotes(arguments.back())))
        .hint("its interpreter must exist on the node");
  }
  writing.reset();
  std::deque<std::string> last;
  std::size_t logged = 0;
  const auto tell = [&](std::string_view text) {
    std::string line = printable(text);
    if (logged >= kMostToLog) {
      last.push_back(std::move(line));
      if (last.size() > kLastLines) last.pop_front();
      return;
    }
    log_.write(LogLevel::info, formatted("{}: {}", hook, line));
    logged += line.size() + 1;
    if (logged >= kMostToLog)
      log_.write(LogLevel::info, formatted("{}: (further output omitted)", hook));
  };
  const RunLimits limits{
      .time = limit_, .lines = INT_MAX - 1, .splits = true, .group = RunLimits::Group::left};
  UniqueFd none;
  const auto end = supervise(*child, none, lines, limits, tell,
                             {.add = [this](auto& files) { add_files(files); },
                              .ready = [this](auto files) { return serve(files); }});
  if (end.good()) return {};
  if (builder_left_)
    return Error(ErrorKind::unavailable,
                 formatted("{}: the start of the container has ended", hook));
  for (const std::string& line : last)
    log_.write(LogLevel::warning, formatted("{}: {}", hook, line));
  const bool is_late = end.kind == ProcessEnd::Kind::timed_out;
  const std::string how = is_late ? formatted("took longer than {} seconds", limit_.count())
                          : end.kind == ProcessEnd::Kind::signalled
                              ? "was killed by signal " + std::to_string(end.number)
                              : "exited with return code " + std::to_string(end.number);
  Error error(ErrorKind::invalid, formatted("{}: {} {}", hook, printable(arguments.back()), how));
  return is_late ? std::move(error).hint("raise hook_timeout in config.toml") : error;
}

void HookRunner::add_files(std::vector<pollfd>& files) const {
  files.push_back({builder_, 0, 0});
  files.push_back({connections_.size() < kMostConnections ? listener_.get() : -1, POLLIN, 0});
  for (const UniqueFd& connection : connections_) files.push_back({connection.get(), POLLIN, 0});
}

bool HookRunner::serve(std::span<const pollfd> files) {
  builder_left_ = files[0].revents != 0;
  if (builder_left_) return false;
  for (std::size_t i = connections_.size(); i-- > 0;) {
    if (files[2 + i].revents != 0) answer(i);
  }
  if (files[1].revents != 0) {
    UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) connections_.push_back(std::move(connection));
  }
  return true;
}

void HookRunner::answer(std::size_t connection) {
  HookMountRequest request;
  const int socket = connections_[connection].get();
  const auto descriptors = receive_struct(socket, request, 2);
  const bool tmpfs = (request.flags & TaskMessage::source_tmpfs) != 0;
  // The builder accepts paths only and gives the container up if it receives another descriptor.
  const auto is_path = [](const UniqueFd& file) {
    return (::fcntl(file.get(), F_GETFL) & O_PATH) != 0;
  };
  bool good = descriptors && descriptors->size() == (tmpfs ? 1 : 2) &&
              std::ranges::all_of(*descriptors, is_path);
  if (good) {
    HookMountAnswer answer;
    answer.error = mount_by(builder_, request, *descriptors);
    good = send_struct(socket, answer, {}, WhenFull::fail).has_value();
  }
  if (!good) connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(connection));
}

/// Returns whether hooks must not set the variable: it selects the code that a program executes or,
/// as in pyxis, differs between tasks.
bool is_left_out(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames{
      "BASH_ENV",       "ENV",          "GCONV_PATH",
      "GLIBC_TUNABLES", "SLURM_PROCID", "SLURM_LOCALID",
      "SLURM_TASK_PID", "PMIX_RANK",    "PMI_FD"};
  if (name.starts_with("LD_") || name.starts_with("BASH_FUNC_")) return true;
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Variables environment_of_hooks(const Place& place, const ShellHookStart& start,
                               const Variables& settings) {
  Variables environment;
  for (const auto& [name, value] : start.job) {
    if (!is_left_out(name) && !name.starts_with("ENROOT_")) environment[name] = value;
  }
  const auto set = [&](const char* name, const std::string& value) {
    environment.try_emplace(name, value);
  };
  for (const auto& [name, value] : settings) {
    // As in enroot: a false value is not set.
    if (is_on_for_enroot(value)) environment[name] = value;
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

/// Returns a file's text; empty unless it is a regular file, since a hook may have replaced it.
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

/// Returns the container's environment as shown to the hooks: the variables set by image and site.
std::string environment_before(const Place& place, const ShellHookStart& start) {
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

/// A file with which a child returns its result to its parent.
class ChildsAnswer {
 public:
  static Result<ChildsAnswer> make() {
    ChildsAnswer answer;
    answer.file_.reset(::memfd_create("spank-container hooks", MFD_CLOEXEC));
    if (!answer.file_) return Error::from_errno(errno, "make a memory file");
    return answer;
  }
  [[nodiscard]] Result<void> give(const Result<HookEdits>& ran) const {
    return write_all(file_.get(), ran ? kDone + ran->serialize() : kFailed + ran.error().message());
  }
  [[nodiscard]] Result<HookEdits> take() const {
    const auto read = read_file(file_.get(), 2 * kMostOfFile);
    if (!read) return read.error();
    const std::string_view text = *read;
    if (text.starts_with(kDone)) return HookEdits::parse(text.substr(1));
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

/// Runs the hooks in order, then mounts the entries that they wrote to ENROOT_MOUNTS. Returns the
/// variables that they wrote to ENROOT_ENVIRON. The calling process must see the host and the
/// container's root.
Result<HookEdits> run_hooks(const std::vector<ShellHook>& hooks, const Place& place,
                            const ShellHookStart& start, Log& log) {
  if (::chdir(place.workdir.c_str()) != 0) [[maybe_unused]]
    const int root = ::chdir("/");
  const auto settings = SPC_TRY(enroot_settings(start.job));
  Variables environment = environment_of_hooks(place, start, settings);
  const std::string before = environment_before(place, start);
  SPC_TRY(write_text(environment["ENROOT_ENVIRON"], before));
  SPC_TRY(write_text(environment["ENROOT_MOUNTS"], ""));
  const UniqueFd directory(::open(place.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  HookEdits edits;
  {
    const std::chrono::seconds limit(std::max<std::int64_t>(start.site.hook_timeout, 1));
    HookRunner runner(limit, place.builder, log);
    if (place.builder >= 0) {
      environment[kHookMountSocket] = place.directory + "/mounts";
      SPC_TRY(runner.listen_at(environment[kHookMountSocket]));
    }
    const auto variables = as_list(environment);
    for (const ShellHook& hook : hooks) {
      if (!hook.runs) continue;
      SPC_TRY(runner.run(hook.name, {hook.path}, variables));
      edits.of_hooks.push_back({hook.name});
      edits.of_hooks.back().edits.notes.push_back("has run: " + hook.path);
    }
    const std::string mounts = environment["ENROOT_MOUNTS"];
    if (!SPC_TRY(file_text(directory, "fstab")).empty()) {
      SPC_TRY(runner.run(
          "mounts", {own_program("enroot/enroot-mount"), "--root", place.root, mounts}, variables));
    }
  }
  const Variables old = as_map(parse_environment_file(before));
  Edits::Environment changed;
  for (const auto& [name, value] :
       as_map(parse_environment_file(SPC_TRY(file_text(directory, "environment"))))) {
    const auto found = old.find(name);
    if (found == old.end() || found->second != value) changed.set[name] = value;
  }
  if (!edits.of_hooks.empty()) edits.of_hooks.back().edits.environment = std::move(changed);
  return edits;
}

}  // namespace

Result<HookEdits> run_shell_hooks_in_step(const std::vector<ShellHook>& hooks,
                                          const ShellHookStart& start,
                                          std::vector<UniqueFd>& descriptors, RootSetup& setup,
                                          int builder, Log& log) {
  if (descriptors.size() != 4) return Error(ErrorKind::internal, "no namespace for hooks");
  const auto answer = SPC_TRY(ChildsAnswer::make());
  const Place place{SPC_RUN_DIR "/root", SPC_RUN_DIR "/hooks", work_directory(), builder};
  const int root = descriptors[2].get();
  const auto inside = [&]() -> Result<void> {
    const auto open_directory = [&](const std::string& path) {
      return open_in_root(root, path, MakeTarget::directory);
    };
    auto ready = attach_host_trees(setup, open_directory, attach_by(builder));
    return answer.give(ready ? run_hooks(hooks, place, start, log)
                             : Result<HookEdits>(ready.error()));
  };
  SPC_TRY(visit_root(descriptors[0].get(), inside));
  auto edits = SPC_TRY(answer.take());
  setup.has_host_trees = true;
  TaskMessage message;
  message.kind = TaskMessageKind::set_up_done;
  SPC_TRY(send_struct(builder, message));
  return edits;
}

Result<HookEdits> run_shell_hooks_alone(const std::vector<ShellHook>& hooks,
                                        const std::string& root, const std::string& directory,
                                        const ShellHookStart& start, Log& log) {
  if (::mkdir(directory.c_str(), 0700) != 0)
    return Error::from_errno(errno, "make a directory for hooks");
  const auto answer = SPC_TRY(ChildsAnswer::make());
  const Place place{root, directory, work_directory()};
  const auto run = [&] { return answer.give(run_hooks(hooks, place, start, log)) ? 0 : 1; };
  SPC_TRY(Child::run(run, "run hooks")).wait();
  return answer.take();
}

}  // namespace spc
