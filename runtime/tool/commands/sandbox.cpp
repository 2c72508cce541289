// scontainer sandbox: many short-lived containers of one user, for tests, agents and reinforcement
// learning.
//
// An image is mounted once for all sandboxes of a step, by an idle process that ends with the last
// of them. A sandbox has a user, mount, PID, IPC and UTS namespace, a writable layer in memory, and
// one idle process: process 1. Both processes are `sandbox-idle`. `exec` joins the namespaces.
// The state directory has a record for each image and sandbox. A record is valid while its process
// runs: nothing has to be removed after a kill.

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <set>

#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "hooks/hook.hpp"
#include "launch/sources/host_side.hpp"
#include "launch/spec/environment.hpp"
#include "task/security.hpp"
#include "tool/command.hpp"
#include "tool/containers/detached.hpp"
#include "tool/containers/running.hpp"
#include "tool/containers/user_container.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

using namespace sandboxes;

constexpr int kTimedOut = 124;  // as timeout(1)
constexpr std::uint32_t kNamespaces = own_pid | own_ipc | own_uts;

// --- idle processes ---

/// Descriptors that an idle process keeps (container_helper/idle.cpp).
struct Kept {
  int begin, image_in_use, changes, step;
};

/// Executes `sandbox-idle` as an idle process. `helper`: the open program.
Error become_idle(int helper, const Kept& kept, std::vector<std::string> arguments,
                  const std::map<std::string, std::string>& environment) {
  constexpr int kFirst = 3;
  constexpr int kAbove = 20;
  const int given[] = {kept.begin, kept.image_in_use, kept.changes, kept.step};
  std::array<int, 4> moved{};
  for (std::size_t i = 0; i < moved.size(); ++i)
    moved[i] = given[i] < 0 ? -1 : ::fcntl(given[i], F_DUPFD_CLOEXEC, kAbove);
  const int program = ::fcntl(helper, F_DUPFD_CLOEXEC, kAbove);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const int number = kFirst + static_cast<int>(i);
    if (moved[i] < 0) {
      ::close(number);
    } else {
      ::dup2(moved[i], number);
    }
  }
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> words;
  for (auto& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  std::vector<char*> pointers;
  for (auto& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  ::syscall(SYS_execveat, program, "", words.data(), pointers.data(), AT_EMPTY_PATH);
  return Error::from_errno(errno, "execute sandbox-idle").hint("install spank-container again");
}

/// Detaches this process from terminal, pipes and the caller's open files other than `numbers`.
void leave_caller(std::vector<int> numbers) {
  ::setsid();
  [[maybe_unused]] const int moved = ::chdir("/");
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::dup2(nothing.get(), number);
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
  std::ranges::sort(numbers);
  unsigned next = STDERR_FILENO + 1;
  for (const int number : numbers) {
    if (number < 0) continue;
    const auto here = static_cast<unsigned>(number);
    if (here > next) ::close_range(next, here - 1, 0);
    next = here + 1;
  }
  ::close_range(next, ~0U, 0);
}

Result<UniqueFd> open_helper() {
  const std::string path = own_program("sandbox-idle");
  return own(::open(path.c_str(), O_PATH | O_CLOEXEC), "open " + in_quotes(path));
}

/// Runs `work` in a process that outlives this one, and returns what it has written to its pipe. It
/// succeeds by executing another program. A text that begins with `!` is an error.
Result<std::string> run_idle(const std::function<Error(int report)>& work) {
  auto [reading, writing] = SPC_TRY(make_pipe());
  const auto begin = [&]() -> int {
    const auto failed = work(writing.get());
    (void)write_all(writing.get(), "!" + failed.message()).has_value();
    return 1;
  };
  SPC_TRY(Child::run(begin, "start an idle process", 0)).release();
  writing.reset();
  std::string text = read_pipe(reading.get(), 64 << 10);
  const auto error = text.find('!');
  if (error == std::string::npos) return text;
  return Error(ErrorKind::system, text.substr(error + 1));
}

// --- image ---

/// An image that is mounted for sandboxes.
struct HeldImage {
  UniqueFd user, mounts;  ///< namespaces
  UniqueFd in_use;        ///< the image stays mounted while a process has it open
  std::string name, settings, place;
  std::size_t layers = 0;
};

/// Returns a name for the image's record: that of the image's content and the caller's step.
std::string key_of(const OpenedImage& image, const Process& step) {
  std::string text = formatted("{}\n{}\n{}\n{}\n", image.name, image.settings,
                               std::uint64_t(step.pid), step.began);
  const auto add = [&](const UniqueFd& file) {
    struct stat status {};
    if (file && ::fstat(file.get(), &status) == 0) {
      text += formatted("{} {} {} {}\n", std::uint64_t(status.st_dev), std::uint64_t(status.st_ino),
                        std::int64_t(status.st_mtim.tv_sec), std::int64_t(status.st_mtim.tv_nsec));
    }
  };
  for (const SquashfsFile& layer : image.files.layers) add(layer.file);
  add(image.files.directory);
  std::array<char, 40> key{};
  std::snprintf(key.data(), key.size(), "%016zx%016zx", std::hash<std::string>()(text),
                std::hash<std::string>()(text + text));
  return key.data();
}

/// In the image's own process: mounts it and becomes idle.
Error hold_image(const Places& places, OpenedImage& image, const std::string& record, int in_use,
                 const Process& step) {
  const UniqueFd step_file = open_process(step);
  const auto mounted = [&]() -> Result<UniqueFd> {
    auto helper = SPC_TRY(open_helper());
    const std::size_t layers = image.files.layers.size() + (image.files.directory ? 1U : 0U);
    SPC_TRY(image.files.start_servers(RootMap::self));
    SPC_TRY(enter_user_namespace(RootMap::self));
    auto mounts = SPC_TRY(
        mount_image(std::move(image.files), places.workspace(), WritableLayer{.wanted = false}));
    for (Child& server : mounts.servers) server.release();
    Json head = json_of(process_of(::getpid()));
    head["name"] = image.name;
    head["place"] = mounts.place;
    head["layers"] = layers;
    SPC_TRY(write_record(record, head.str() + "\n" + image.settings));
    return helper;
  }();
  if (!mounted) return mounted.error();
  return become_idle(mounted->get(), {in_use, -1, -1, step_file.get()},
                     {"sandbox-image", record, record + ".lock"}, {});
}

/// Opens an image that is mounted already. Empty if there is none.
std::optional<HeldImage> open_held(const std::string& path) {
  const auto text = record_text(path);
  if (!text) return std::nullopt;
  const std::size_t end = std::min(text->find('\n'), text->size());
  const auto head = Json::parse(text->substr(0, end));
  if (!head || !is_running(process_in(*head))) return std::nullopt;
  HeldImage held;
  held.name = text_in(*head, "name");
  held.place = text_in(*head, "place");
  held.layers = number_in(*head, "layers");
  held.settings = text->substr(std::min(end + 1, text->size()));
  const std::string process = "/proc/" + std::to_string(process_in(*head).pid);
  held.user = UniqueFd(::open((process + "/ns/user").c_str(), O_RDONLY | O_CLOEXEC));
  held.mounts = UniqueFd(::open((process + "/ns/mnt").c_str(), O_RDONLY | O_CLOEXEC));
  held.in_use = UniqueFd(::open((process + "/fd/3").c_str(), O_WRONLY | O_CLOEXEC));
  if (!held.user || !held.mounts || !held.in_use) return std::nullopt;
  return held;
}

/// Opens the image and mounts it unless another sandbox of this step has done so.
Result<HeldImage> hold(const Places& places, const Config& config, const std::string& state,
                       const std::string& wanted) {
  auto image = SPC_TRY(
      open_image(places, config, {.image = wanted, .platform = {}, .pull = PullPolicy::missing}));
  const Process step = step_daemon();
  const std::string record = formatted("{}/images/{}", state, key_of(image, step));
  const auto lock = SPC_TRY(lock_record(record + ".lock"));
  if (auto held = open_held(record)) return *std::move(held);
  auto ends = SPC_TRY(make_pipe());
  SPC_TRY(run_idle([&](int report) -> Error {
    std::vector<int> kept{report, ends.first.get()};
    for (const SquashfsFile& layer : image.files.layers) kept.push_back(layer.file.get());
    if (image.files.directory) kept.push_back(image.files.directory.get());
    leave_caller(kept);
    return hold_image(places, image, record, ends.first.get(), step);
  }));
  if (auto held = open_held(record)) return *std::move(held);
  return Error(ErrorKind::unavailable, "its process has ended");
}

// --- limits ---

/// Limits of a sandbox; 0: none.
struct Limits {
  std::uint64_t memory = 0;  ///< bytes
  std::uint64_t cpus = 0;
  std::uint64_t pids = 0;
  std::uint64_t timeout = 0;  ///< seconds until it ends
};

/// Returns the value of an option, or of the variable that sets it for all sandboxes of a job.
std::string value_or_variable(const Arguments& arguments, const std::string& option,
                              const char* variable) {
  if (arguments.has(option)) return arguments.value(option);
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

Result<std::uint64_t> number_for(const Arguments& arguments, const std::string& option,
                                 const char* variable) {
  const std::string text = value_or_variable(arguments, option, variable);
  if (text.empty()) return std::uint64_t{0};
  const auto number = parse_number<std::uint32_t>(text);
  if (number && *number > 0) return std::uint64_t{*number};
  const std::string from = arguments.has(option) ? "--" + option : variable;
  return Error(ErrorKind::invalid,
               formatted("{}: {} is not a positive whole number", from, in_quotes(text)))
      .hint("--" + option + "=60");
}

Result<Limits> read_limits(const Arguments& arguments) {
  Limits limits;
  const std::string memory = value_or_variable(arguments, "memory", "SCONTAINER_SANDBOX_MEMORY");
  if (!memory.empty()) {
    const auto size = SPC_TRY_DURING("--memory", MemorySize::parse(memory));
    limits.memory = SPC_TRY_DURING("--memory", bytes_of(size, memory_of_job(as_map(environ)), ""));
  }
  limits.cpus = SPC_TRY(number_for(arguments, "cpus", "SCONTAINER_SANDBOX_CPUS"));
  limits.pids = SPC_TRY(number_for(arguments, "pids", "SCONTAINER_SANDBOX_PIDS"));
  limits.timeout = SPC_TRY(number_for(arguments, "timeout", "SCONTAINER_SANDBOX_TIMEOUT"));
  return limits;
}

Limits limits_in(const Json& record) {
  return {number_in(record, "memory"), number_in(record, "cpus"), number_in(record, "pids"),
          number_in(record, "timeout")};
}

/// Binds this process to `count` of the CPUs that it may use. Sandboxes start at different ones.
void use_cpus(std::uint64_t count, std::uint64_t first) {
  cpu_set_t all;
  if (count == 0 || ::sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  }
  if (count >= cpus.size()) return;
  cpu_set_t some;
  CPU_ZERO(&some);
  for (std::uint64_t i = 0; i < count; ++i) CPU_SET(cpus[(first * count + i) % cpus.size()], &some);
  ::sched_setaffinity(0, sizeof some, &some);
}

/// In a process of the sandbox: memory is limited for each process, PIDs for all together, because
/// the sandbox has a user namespace of its own.
Result<void> apply_rlimits(const Limits& limits, pid_t init) {
  const auto set = [](auto resource, std::uint64_t value, const char* what) -> Result<void> {
    if (value == 0) return {};
    rlimit limit{};
    ::getrlimit(resource, &limit);
    limit.rlim_max = std::min<rlim_t>(limit.rlim_max, value);
    limit.rlim_cur = limit.rlim_max;
    return check(::setrlimit(resource, &limit), std::string("limit ") + what);
  };
  SPC_TRY(set(RLIMIT_DATA, limits.memory, "memory"));
  SPC_TRY(set(RLIMIT_NPROC, limits.pids, "processes"));
  use_cpus(limits.cpus, static_cast<std::uint64_t>(init));
  return {};
}

// --- snapshots ---

// A snapshot is a directory with the changed files, `up`, and a record. A sandbox made of it has
// `up` as its uppermost read-only layer.

void print_created(const Arguments& arguments, const Json& record);

Result<Json> find_snapshot(const std::string& state, const std::string& name) {
  const auto text = is_name(name) ? record_text(formatted("{}/snapshots/{}/record", state, name))
                                  : Result<std::string>(no_sandbox(name));
  if (!text)
    return Error(ErrorKind::not_found, "no snapshot " + in_quotes(name))
        .hint("scontainer sandbox snapshot SANDBOX NAME");
  return Json::parse(*text);
}

Result<int> snapshot(const Arguments& arguments, const std::string& state) {
  if (arguments.words.size() != 3 || !is_name(arguments.words[2]))
    return Error(ErrorKind::invalid, "snapshot: SANDBOX and NAME of the snapshot required")
        .hint("scontainer sandbox snapshot a ready");
  const std::string& name = arguments.words[2];
  const auto record = SPC_TRY(find_sandbox(state, arguments.words[1]));
  const UniqueFd process = open_process(process_in(record));
  if (!process) return no_sandbox(arguments.words[1]);
  constexpr int kChanges = 5;  // container_helper/idle.cpp
  const auto changes =
      SPC_TRY(own(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), kChanges, 0)),
                  "open the changed files"));
  const std::string place = formatted("{}/snapshots/{}", state, name);
  const std::string making =
      formatted("{}/snapshots/{}.{}~", state, name, std::uint64_t(::getpid()));
  if (::access(place.c_str(), F_OK) == 0)
    return Error(ErrorKind::invalid, formatted("snapshot {} exists", in_quotes(name)))
        .hint("scontainer sandbox rm " + name);
  SPC_TRY(make_directories(making + "/up"));
  const auto to = SPC_TRY(own(::open((making + "/up").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                              "open the snapshot"));
  // In the sandbox's user namespace files without permissions can be read.
  const auto copy = [&]() -> Result<void> {
    SPC_TRY(check(::setns(process.get(), CLONE_NEWUSER), "join the sandbox's user namespace"));
    return copy_directory(changes.get(), to.get());
  };
  const auto work = [&] {
    const auto copied = copy();
    if (!copied) report_error(copied.error().message());
    return copied ? 0 : kNoContainer;
  };
  auto layers = texts_in(record, "changes");
  layers.push_back(place + "/up");
  Json kept{{"name", name},
            {"image", text_in(record, "image_given")},
            {"changes", layers},
            {"step", json_of(step_daemon())}};
  auto child = SPC_TRY(Child::run(work, "copy the changed files"));
  if (const int status = child.wait().code(); status != 0) {
    remove_files(making);
    return status;
  }
  SPC_TRY(write_record(making + "/record", kept.str()));
  SPC_TRY(check(::rename(making.c_str(), place.c_str()), "create snapshot " + in_quotes(name)));
  print_created(arguments, kept);
  return 0;
}

/// Removes snapshots that no running sandbox is made of.
Result<int> remove_snapshots(const Arguments& arguments, const std::string& state) {
  const auto all = SPC_TRY(running_sandboxes(state));
  for (std::size_t i = 1; i < arguments.words.size(); ++i) {
    const std::string& name = arguments.words[i];
    SPC_TRY(find_snapshot(state, name));
    const std::string place = formatted("{}/snapshots/{}", state, name);
    for (const auto& [sandbox, record] : all) {
      const auto layers = texts_in(record, "changes");
      if (std::ranges::find(layers, place + "/up") == layers.end()) continue;
      return Error(ErrorKind::refused, formatted("rm {}: sandbox {} is made of it", in_quotes(name),
                                                 in_quotes(sandbox)))
          .hint("scontainer sandbox stop " + sandbox);
    }
    remove_files(place);
  }
  return 0;
}

// --- create ---

/// The parts of a new sandbox.
struct NewSandbox {
  std::string name, image;
  RootMap map = RootMap::self;
  bool has_network = true;
  Limits limits;
  std::vector<std::string> changes;  ///< directories of snapshots, bottom one first
  std::map<std::string, std::string> environment;
  std::string size;    ///< of its writable layer, in tmpfs syntax
  UniqueFd variables;  ///< memory file in which process 1 leaves its environment
};

/// Hooks for devices and MPI are for jobs. The one that lets apt run is for all.
SitePolicy site_without_hooks() {
  SitePolicy site = SitePolicy::read();
  for (const Hook* hook : builtin_hooks()) {
    if (hook->name != std::string_view("10-aptfix")) site.hooks_off.emplace_back(hook->name);
  }
  return site;
}

/// Brings up 127.0.0.1 in a new network namespace.
Result<void> start_loopback() {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{.ifr_ifrn = {"lo"}, .ifr_ifru = {}};
  request.ifr_flags = IFF_UP;
  return check(::ioctl(socket.get(), SIOCSIFFLAGS, &request), "bring up the loopback interface");
}

/// In process 1 of the sandbox: makes the container and becomes idle.
Error become_sandbox(const NewSandbox& made, const HeldImage& image, const UniqueFd& helper,
                     int begin, int step) {
  std::map<std::string, std::string> environment;
  for (const char* name : {"LANG", "LC_ALL", "TERM", "TZ"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  UniqueFd changes;
  const auto entered = [&]() -> Result<void> {
    if (!made.has_network) SPC_TRY(start_loopback());
    const auto mounted = SPC_TRY(mount_again(image.place, image.layers, made.changes, made.size));
    if (!mounted.writable)
      return Error(ErrorKind::unavailable, "an unprivileged writable container needs Linux 6.12");
    changes =
        SPC_TRY(own(::open((mounted.place + "/up").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                    "open the writable layer"));
    LaunchRequest request;
    request.image = made.image;
    request.writable = true;
    request.mount_home = false;
    request.contain = true;
    request.gpu = false;
    request.namespaces = kNamespaces | (made.has_network ? 0U : own_net);
    request.mounts.push_back(
        {.kind = MountSpec::Kind::removal, .target = "/tmp", .shown_as = "/tmp"});
    StderrLog log;
    auto user = identity_inside(made.map);
    auto container =
        SPC_TRY(make_user_container(mounted, request, ImageSettings::parse(image.settings),
                                    made.map, {}, environment, site_without_hooks(), log));
    SPC_TRY(begin_task(request, container.settings, container.edits, container.hooks, made.map,
                       std::move(user), environment, ContainerSpec(), log));
    for (const auto& [name, value] : made.environment) environment[name] = value;
    SPC_TRY(write_all(made.variables.get(), Json(environment).str()));
    return check(::sethostname(made.name.c_str(), made.name.size()), "set the host name");
  }();
  if (!entered) return entered.error();
  return become_idle(helper.get(), {begin, image.in_use.get(), changes.get(), step},
                     {"sandbox", std::to_string(made.limits.timeout), made.name}, environment);
}

/// In a process of its own: enters the image's namespaces, makes the sandbox's, and starts its
/// process 1, whose PID it writes to `report`.
Error start_sandbox(const NewSandbox& made, const HeldImage& image, int begin, int report,
                    const Process& step) {
  auto started = [&]() -> Result<void> {
    const auto helper = SPC_TRY(open_helper());
    const UniqueFd step_file = open_process(step);
    SPC_TRY(check(::setns(image.user.get(), CLONE_NEWUSER), "join the image's user namespace"));
    SPC_TRY(check(::setns(image.mounts.get(), CLONE_NEWNS), "join the image's mount namespace"));
    SPC_TRY(enter_user_namespace(made.map));
    SPC_TRY(check(::unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                            (made.has_network ? 0 : CLONE_NEWNET)),
                  "create the sandbox's namespaces"));
    const pid_t init = fork_process();
    if (init < 0) return Error::from_errno(errno, "start the sandbox's process");
    if (init == 0) {
      const auto failed = become_sandbox(made, image, helper, begin, step_file.get());
      (void)write_all(report, "!" + failed.message()).has_value();
      ::_exit(1);
    }
    SPC_TRY(write_all(report, std::to_string(init) + "\n"));
    ::_exit(0);
  }();
  return started.error();
}

std::string random_name() {
  std::array<unsigned char, 5> bytes{};
  [[maybe_unused]] const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
  std::string name = "sandbox-";
  constexpr const char* kDigits = "0123456789abcdef";
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

/// Takes the name, until this process ends or the record is replaced. Checks the limit of the job.
Result<void> reserve(const std::string& state, const std::string& name,
                     const Arguments& arguments) {
  if (!is_name(name))
    return Error(ErrorKind::invalid, formatted("--name: {} is not a name", in_quotes(name)))
        .hint("letters, digits, _, - and ., at most 64");
  const auto most = SPC_TRY(number_for(arguments, "most", "SCONTAINER_SANDBOX_MOST"));
  UniqueFd lock;
  if (most > 0) {
    lock = SPC_TRY(lock_record(state + "/lock"));
    std::uint64_t count = 0;
    const auto all = SPC_TRY(running_sandboxes(state));
    for (const auto& [other, record] : all) count += text_in(record, "job") == job_of_caller();
    if (count >= most) {
      return Error(ErrorKind::refused, formatted("{} sandboxes run already", count))
          .hint("scontainer sandbox stop NAME, or raise SCONTAINER_SANDBOX_MOST");
    }
  }
  const std::string path = state + "/sandboxes/" + name;
  const auto old = record_text(path);
  if (old) {
    const auto record = Json::parse(*old);
    if (record && !is_running(process_in(*record))) ::unlink(path.c_str());
  }
  const std::string mine = formatted("{}.{}~", path, std::uint64_t(::getpid()));
  SPC_TRY(write_record(mine, json_of(process_of(::getpid())).str()));
  const int linked = ::link(mine.c_str(), path.c_str());
  const int err = errno;
  ::unlink(mine.c_str());
  if (linked == 0) return {};
  if (err != EEXIST) return Error::from_errno(err, "create " + in_quotes(path));
  return Error(ErrorKind::invalid, formatted("--name: sandbox {} runs already", in_quotes(name)))
      .hint(formatted("scontainer sandbox stop {}, or another name", name));
}

Json record_of(const NewSandbox& made, const HeldImage& image, const Process& init) {
  Json record = json_of(init);
  record["name"] = made.name;
  record["image"] = image.name;
  record["image_given"] = made.image;
  record["root"] = made.map == RootMap::root;
  record["network"] = made.has_network;
  record["made"] = std::int64_t{std::time(nullptr)};
  record["limits"] =
      made.limits.memory + made.limits.cpus + made.limits.pids > 0 ? "rlimits" : "none";
  record["memory"] = made.limits.memory;
  record["cpus"] = made.limits.cpus;
  record["pids"] = made.limits.pids;
  record["timeout"] = made.limits.timeout;
  record["changes"] = made.changes;
  record["job"] = job_of_caller();
  return record;
}

void print_created(const Arguments& arguments, const Json& record) {
  if (arguments.has("json")) {
    std::puts(record.str().c_str());
  } else {
    std::puts(text_in(record, "name").c_str());
  }
}

Result<int> create(const Arguments& arguments, const std::string& state) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  NewSandbox made;
  made.name = arguments.has("name") ? arguments.value("name") : random_name();
  made.map = arguments.has("remap-root") ? RootMap::root : RootMap::self;
  made.has_network = !arguments.has("no-network");
  made.limits = SPC_TRY(read_limits(arguments));
  SPC_TRY(read_variables(arguments, made.environment));
  const bool is_fork = arguments.has("from");
  if (arguments.words.size() != (is_fork ? 1 : 2))
    return Error(ErrorKind::invalid, "create: IMAGE or --from=SNAPSHOT required")
        .hint("scontainer sandbox create debian:12");
  if (is_fork) {
    const auto snapshot = SPC_TRY(find_snapshot(state, arguments.value("from")));
    made.image = text_in(snapshot, "image");
    made.changes = texts_in(snapshot, "changes");
  } else {
    made.image = arguments.words[1];
  }
  SPC_TRY(reserve(state, made.name, arguments));
  const std::string path = state + "/sandboxes/" + made.name;
  const auto begun = [&]() -> Result<Json> {
    const auto image =
        SPC_TRY_DURING("image " + in_quotes(made.image), hold(places, config, state, made.image));
    auto ends = SPC_TRY(make_pipe());
    const Process step = step_daemon();
    made.size = made.limits.memory > 0 ? std::to_string(made.limits.memory) : config.upper_size;
    made.variables = SPC_TRY(own(::memfd_create("variables", MFD_CLOEXEC), "make a memory file"));
    const auto report = SPC_TRY(run_idle([&](int pipe) -> Error {
      leave_caller({pipe, ends.first.get(), image.user.get(), image.mounts.get(),
                    image.in_use.get(), made.variables.get()});
      return start_sandbox(made, image, ends.first.get(), pipe, step);
    }));
    const Process init = process_of(std::atoi(report.c_str()));
    const auto variables = SPC_TRY(read_file(made.variables.get(), 64 << 20));
    Json record = record_of(made, image, init);
    Json kept = record;
    kept["environment"] = SPC_TRY(Json::parse(variables));
    SPC_TRY(write_record(path, kept.str()));
    // Process 1 ends unless it is recorded.
    SPC_TRY(write_all(ends.second.get(), "b"));
    return record;
  }();
  if (!begun) {
    ::unlink(path.c_str());
    return begun.error();
  }
  print_created(arguments, *begun);
  return 0;
}

// --- exec ---

/// Kills the processes of a session and their descendants in the sandbox.
void kill_session(int proc, pid_t session) {
  std::set<std::string> doomed{std::to_string(session)};
  for (std::size_t before = 0; before != doomed.size();) {
    before = doomed.size();
    DirectoryReader entries(UniqueFd(::openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
    while (entries.next()) {
      const std::string pid(entries.name());
      if (pid[0] < '0' || pid[0] > '9') continue;
      const auto fields = stat_of(proc, pid);
      constexpr std::size_t kParent = 1;
      constexpr std::size_t kSession = 3;
      if (fields.size() <= kSession) continue;
      const bool is_one = fields[kSession] == std::to_string(session);
      if (is_one || doomed.contains(fields[kParent])) doomed.insert(pid);
    }
    for (const std::string& pid : doomed) ::kill(std::atoi(pid.c_str()), SIGKILL);
  }
}

/// A command's end.
struct ExecEnd {
  int status = 0;
  bool timed_out = false;
  bool truncated = false;
  std::string out, err;
};

/// Runs `child` in a session of its own, with a time limit (0: none). `captures`: keeps its output.
/// Processes that it leaves in the background do not delay the end.
Result<ExecEnd> run_limited(const std::function<int()>& child, std::uint64_t seconds, bool captures,
                            int proc) {
  constexpr std::size_t kMostOutput = 16 << 20;
  ExecEnd end;
  auto out = SPC_TRY(make_pipe());
  auto err = SPC_TRY(make_pipe());
  const auto begin = [&] {
    ::setsid();
    ::signal(SIGPIPE, SIG_DFL);
    if (captures) {
      ::dup2(out.second.get(), STDOUT_FILENO);
      ::dup2(err.second.get(), STDERR_FILENO);
    }
    return child();
  };
  auto process = SPC_TRY(Child::run(begin, "start the command"));
  out.second.reset();
  err.second.reset();
  const std::uint64_t until = now_us() + seconds * 1'000'000;
  pollfd polled[] = {
      {process.watch(), POLLIN, 0}, {out.first.get(), POLLIN, 0}, {err.first.get(), POLLIN, 0}};
  std::string* const texts[] = {&end.out, &end.err};
  for (int index : {1, 2}) ::fcntl(polled[index].fd, F_SETFL, O_NONBLOCK);
  const auto drain = [&](int index) {
    std::array<char, 65536> buffer{};
    for (;;) {
      const ssize_t got = ::read(polled[index].fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) polled[index].fd = -1;
      if (got <= 0) return;
      std::string& text = *texts[index - 1];
      const std::size_t room = kMostOutput - text.size();
      text.append(buffer.data(), std::min(room, static_cast<std::size_t>(got)));
      end.truncated = end.truncated || static_cast<std::size_t>(got) > room;
    }
  };
  for (;;) {
    const std::uint64_t now = now_us();
    const auto left = seconds == 0 ? -1
                                   : static_cast<int>(std::min<std::uint64_t>(
                                         until > now ? (until - now) / 1000 + 1 : 0, 1 << 30));
    const int ready = ::poll(polled, 3, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && now_us() >= until) {
      end.timed_out = true;
      kill_session(proc, process.pid());
    }
    for (int index : {1, 2}) {
      if (polled[index].fd >= 0) drain(index);
    }
    if (end.timed_out || polled[0].revents != 0) break;
  }
  const int code = process.wait().code();
  for (int index : {1, 2}) {
    if (polled[index].fd >= 0) drain(index);
  }
  end.status = end.timed_out ? kTimedOut : code;
  return end;
}

/// Moves this process into the sandbox. Its children are in its PID namespace.
Result<void> join(const Json& record, const UniqueFd& process) {
  // Processes of the sandbox must not trace this one, which has the caller's files and variables.
  SPC_TRY(check(::prctl(PR_SET_DUMPABLE, 0), "protect this process"));
  const Json* const network = record.find("network");
  const bool own_network = network != nullptr && !network->as_boolean();
  const int all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                  (own_network ? CLONE_NEWNET : 0);
  return check(::setns(process.get(), all), "join the sandbox");
}

Result<int> exec(const Arguments& arguments, const std::string& state) {
  if (arguments.words.size() < 2 || arguments.rest.empty())
    return Error(ErrorKind::invalid, "exec: NAME and COMMAND required")
        .hint("scontainer sandbox exec NAME COMMAND");
  const std::string& name = arguments.words[1];
  const auto record = SPC_TRY(find_sandbox(state, name));
  const Process init = process_in(record);
  const UniqueFd process = open_process(init);
  if (!process) return no_sandbox(name);
  const auto seconds = SPC_TRY(number_for(arguments, "timeout", "SCONTAINER_EXEC_TIMEOUT"));
  const std::string directory = "/proc/" + std::to_string(init.pid);
  // The kernel does not show those of process 1, which may not be traced.
  std::map<std::string, std::string> environment;
  if (const Json* const variables = record.find("environment")) {
    for (const Json::Member& one : variables->members()) environment[one.key] = one.value.as_text();
  }
  SPC_TRY(read_variables(arguments, environment));
  const auto workdir = SPC_TRY(own(
      ::open((directory + "/cwd").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC), "open the sandbox"));
  const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Json* const root = record.find("root");
  const bool is_root = root != nullptr && root->as_boolean();
  const auto security = SPC_TRY(read_security(LaunchRequest(), SitePolicy::read(), is_root));
  SPC_TRY(join(record, process));
  const auto begin = [&]() -> Result<void> {
    SPC_TRY(apply_rlimits(limits_in(record), init.pid));
    SPC_TRY(check(::fchdir(workdir.get()), "enter the sandbox's work directory"));
    if (arguments.has("workdir")) {
      const std::string path = arguments.value("workdir");
      SPC_TRY(check(::chdir(path.c_str()), "--workdir: enter " + in_quotes(path)));
    }
    SPC_TRY(check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs"));
    if (is_root) SPC_TRY(fake_root_calls());
    return security.apply();
  };
  const auto child = [&] {
    if (const auto begun = begin(); !begun) {
      report_error(begun.error().message());
      return kNoContainer;
    }
    return execute({arguments.rest}, environment, text_in(record, "image"));
  };
  const bool json = arguments.has("json");
  if (!json && seconds == 0) return supervise(child, [](pid_t) {});
  const std::uint64_t began = now_us();
  const auto end = SPC_TRY(run_limited(child, seconds, json, proc.get()));
  if (!json) {
    if (end.timed_out)
      report_error(formatted("sandbox {}: command killed after {} s (hint: a larger --timeout)",
                             in_quotes(name), seconds));
    return end.status;
  }
  const Json object{{"name", name},
                    {"exit_status", end.status},
                    {"timed_out", end.timed_out},
                    {"truncated", end.truncated},
                    {"milliseconds", (now_us() - began) / 1000},
                    {"stdout", end.out},
                    {"stderr", end.err}};
  std::puts(object.str().c_str());
  return end.status;
}

// --- cp ---

Result<int> copy(const Arguments& arguments, const std::string& state) {
  const auto is_inside = [](const std::string& word) {
    const auto colon = word.find(":/");
    return colon != std::string::npos && is_name(std::string_view(word).substr(0, colon));
  };
  if (arguments.words.size() != 3 ||
      is_inside(arguments.words[1]) == is_inside(arguments.words[2])) {
    return Error(ErrorKind::invalid, "cp: a file and NAME:/PATH required")
        .hint("scontainer sandbox cp data.json a:/tmp/");
  }
  const bool out = is_inside(arguments.words[1]);
  const std::string& inside = arguments.words[out ? 1 : 2];
  const std::string name = inside.substr(0, inside.find(':'));
  const std::string path = inside.substr(name.size() + 1);
  const auto record = SPC_TRY(find_sandbox(state, name));
  const UniqueFd process = open_process(process_in(record));
  const std::string root = formatted("/proc/{}/root", process_in(record).pid);
  const auto opened = SPC_TRY(own(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC),
                                  "open sandbox " + in_quotes(name)));
  if (!process || !is_running(process_in(record))) return no_sandbox(name);
  if (out) {
    SPC_TRY_DURING("cp", copy_out(opened.get(), path, arguments.words[2]));
  } else {
    SPC_TRY_DURING("cp", copy_in(arguments.words[1], opened.get(), path));
  }
  return 0;
}

// --- list ---

Result<int> list(const Arguments& arguments, const std::string& state) {
  const auto all = SPC_TRY(running_sandboxes(state));
  Json objects = Json::array();
  std::vector<std::vector<std::string>> table{
      {"NAME", "IMAGE", "PROCESS", "MADE", "LIMITS", "JOB"}};
  for (const auto& [name, record] : all) {
    Json shown = record;
    shown.erase("environment");
    objects.push_back(std::move(shown));
    const auto age = std::time(nullptr) - static_cast<std::int64_t>(number_in(record, "made"));
    const std::string job = text_in(record, "job");
    table.push_back({name, printable(text_in(record, "image")),
                     std::to_string(process_in(record).pid), human_age(age),
                     text_in(record, "limits"), job.empty() ? "-" : job});
  }
  if (arguments.has("json")) {
    std::puts(objects.str().c_str());
  } else {
    print_table(table);
  }
  return 0;
}

// --- stop ---

/// Kills the sandboxes, which ends all of their processes, and waits for their end.
Result<int> stop(const Arguments& arguments, const std::string& state) {
  std::map<std::string, Json> doomed;
  if (arguments.has("all")) {
    for (const auto& [name, record] : SPC_TRY(running_sandboxes(state))) {
      if (job_of_caller().empty() || text_in(record, "job") == job_of_caller())
        doomed.emplace(name, record);
    }
  } else if (arguments.words.size() < 2) {
    return Error(ErrorKind::invalid, "stop: NAME or --all required")
        .hint("scontainer sandbox list");
  }
  for (std::size_t i = 1; i < arguments.words.size(); ++i)
    doomed.emplace(arguments.words[i], SPC_TRY(find_sandbox(state, arguments.words[i])));
  std::map<std::string, UniqueFd> ends;
  for (const auto& [name, record] : doomed) {
    UniqueFd process = open_process(process_in(record));
    if (process) ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    ends.emplace(name, std::move(process));
  }
  for (const auto& [name, process] : ends) {
    constexpr int kPatience = 10'000;  // milliseconds
    pollfd end{process.get(), POLLIN, 0};
    if (process && ::poll(&end, 1, kPatience) == 0) {
      return Error(ErrorKind::unavailable, formatted("stop {}: it does not end", in_quotes(name)))
          .hint("scontainer sandbox stop again");
    }
    ::unlink((state + "/sandboxes/" + name).c_str());
  }
  return 0;
}

}  // namespace

Result<int> run_sandbox(const Arguments& arguments) {
  using Verb = Result<int> (*)(const Arguments&, const std::string&);
  constexpr std::pair<std::string_view, Verb> kVerbs[] = {
      {"create", create},      {"exec", exec}, {"cp", copy},
      {"snapshot", snapshot},  {"list", list}, {"stop", stop},
      {"rm", remove_snapshots}};
  if (::geteuid() == 0)
    return Error(ErrorKind::refused, "sandboxes are for unprivileged users")
        .hint("run it as a non-root user");
  const std::string word = arguments.words.empty() ? "list" : arguments.words[0];
  for (const auto& [name, verb] : kVerbs) {
    if (word == name) return verb(arguments, SPC_TRY(state_directory()));
  }
  return Error(ErrorKind::invalid, formatted("unknown word {}", in_quotes(word)))
      .hint("create, exec, cp, snapshot, list, stop or rm");
}

}  // namespace spc::tool
