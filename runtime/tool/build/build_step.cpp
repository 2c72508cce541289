#include "tool/build/build_step.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <net/if.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/json.hpp"
#include "base/new_file.hpp"
#include "base/process/child.hpp"
#include "base/process/kernel.hpp"
#include "base/process/supervised.hpp"
#include "base/process/user_namespace.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "export/archive.hpp"
#include "export/write_image.hpp"
#include "hooks/hook.hpp"
#include "local/remote_file.hpp"
#include "reference/location.hpp"
#include "registry/client.hpp"
#include "request/options.hpp"
#include "task/entering/arrival.hpp"
#include "tool/containers/detached.hpp"
#include "tool/containers/user_container.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- tree of a build ---

Result<ImageFiles> BuildTree::open(const Places& places) const {
  ImageFiles files;
  if (image) {
    const auto store = SPC_TRY(open_store(places.store));
    files = SPC_TRY(open_stored_image(store.get(), *image)).files;
    while (layers != 0 && files.layers.size() > layers) files.layers.pop_back();
  }
  for (const std::string& step : changes) {
    files.changes.push_back(SPC_TRY(own(
        ::open((step + "/tree/up").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC), "open " + step)));
  }
  return files;
}

namespace {

constexpr char kLayerNote[] = "/layer";

/// Removes a tree of the user that a container's root has made: directories may lack permissions.
void remove_tree(const std::string& path) {
  std::error_code failed;
  std::filesystem::remove_all(path, failed);
  if (!failed) return;
  static_cast<void>(run_apart(
      [&]() -> Result<void> {
        SPC_TRY(enter_user_namespace(RootMap::root));
        std::filesystem::remove_all(path, failed);
        return {};
      },
      "remove a step of a build"));
}

/// A step's directory until it is complete. It is locked, so that a later build can tell those of
/// killed builds.
class StepDirectory {
 public:
  static Result<StepDirectory> make(const std::string& root) {
    for (;;) {
      std::string path = root + "/steps/new-XXXXXX";
      if (::mkdtemp(path.data()) == nullptr)
        return Error::from_errno(errno, "create a directory in the user's image store");
      UniqueFd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (lock ? ::flock(lock.get(), LOCK_EX) != 0 : errno != ENOENT)
        return Error::from_errno(errno, "lock a directory in the user's image store");
      // Another build may have removed it before it was locked.
      if (lock && ::access(path.c_str(), F_OK) == 0)
        return StepDirectory(std::move(path), std::move(lock));
    }
  }
  StepDirectory(StepDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}
  StepDirectory& operator=(StepDirectory&&) = delete;
  ~StepDirectory() {
    if (!path_.empty()) remove_tree(path_);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// Gives it its final name. A step that another build has finished meanwhile stays.
  Result<void> finish(const std::string& name) {
    if (::rename(path_.c_str(), name.c_str()) == 0) {
      path_.clear();
      return {};
    }
    if (errno == ENOTEMPTY || errno == EEXIST) return {};
    return Error::from_errno(errno, "name a step in the user's image store");
  }

 private:
  StepDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

bool is_unfinished(const std::filesystem::directory_entry& entry) {
  return entry.path().filename().string().starts_with("new-");
}

bool has_left_steps(const std::string& steps) {
  std::error_code failed;
  return std::ranges::any_of(std::filesystem::directory_iterator(steps, failed), is_unfinished);
}

void remove_left_steps(const std::string& steps) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(steps, failed)) {
    const std::string path = entry.path();
    if (!is_unfinished(entry)) continue;
    const UniqueFd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) remove_tree(path);
  }
}

/// Leaves a process that removes this build's unfinished step when this process has ended, by a
/// signal or otherwise.
Result<void> leave_cleaner(const std::string& steps) {
  static bool is_left = false;
  if (std::exchange(is_left, true)) return {};
  auto ends = SPC_TRY(make_pipe());
  UniqueFd& reading = ends.first;
  UniqueFd& writing = ends.second;
  const auto work = [&] {
    constexpr int kTries = 50;  // 0.1 s each: the step's last process may still hold the lock
    writing.reset();
    ::setsid();
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(stream);
    open_closed_streams();
    static_cast<void>(read_pipe(reading.get(), 1));
    for (int tries = 0; tries < kTries && has_left_steps(steps); ++tries) {
      remove_left_steps(steps);
      ::usleep(100'000);
    }
    return 0;
  };
  Child child = SPC_TRY(Child::run(work, "clean up behind the build", 0));
  child.release();
  static_cast<void>(writing.release());  // closed by the end of this process
  return {};
}

/// Writes the changes as a blob, and a note of it beside them.
Result<void> keep_layer(const BuildCache& cache, const std::string& directory) {
  const auto upper =
      SPC_TRY(own(::open((directory + "/tree/up").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                  "open the changes"));
  const auto tree = [&](const ByteSink& sink) { return write_upper(upper.get(), sink); };
  auto file = SPC_TRY(NewFile::create(cache.blob(Digest()), Replace::yes));
  const auto written = write_layer(tree, true, file.file());
  if (!written && written.error().kind() == ErrorKind::no_space) {
    return Error(ErrorKind::no_space, "store the layer: the user's image store is full")
        .hint("scontainer gc removes unused steps and layers; XDG_DATA_HOME moves the store");
  }
  if (!written) return file.about(written.error());
  file.will_be(written->digest.hex());
  SPC_TRY(file.publish());
  const Json note{{"digest", written->digest.str()},
                  {"diff_id", written->diff_id.str()},
                  {"size", written->size}};
  const UniqueFd notes(::open((directory + kLayerNote).c_str(),
                              O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!notes) return Error::from_errno(errno, "write into the user's image store");
  SPC_TRY(write_all(notes.get(), note.str()));
  remove_tree(directory + "/tree/work");
  return {};
}

}  // namespace

Result<BuildCache> BuildCache::open(const Places& places) {
  BuildCache cache(places);
  SPC_TRY(make_own_store(places));
  for (const char* part : {"/steps", "/blobs", "/images"})
    SPC_TRY_DURING("set up the user's image store", make_directories(cache.root_ + part));
  remove_unfinished(places);
  return cache;
}

void BuildCache::remove_unfinished(const Places& places) {
  remove_left_steps(places.store + "/build/steps");
}

Result<std::string> BuildCache::fetch(const std::string& url, const std::string& checksum,
                                      const Config& config) const {
  const std::string path = url.substr(0, url.find_first_of("?#"));
  const std::string name = path.substr(path.rfind('/') + 1);
  if (path.ends_with(".git") || name.empty() || name == "." || name == "..") {
    return Error(ErrorKind::invalid, formatted("{}: is not a file", without_secrets(url)))
        .hint("for a repository: RUN git clone URL");
  }
  std::string wanted = url.substr(0, url.find('#'));
  if (!checksum.empty()) wanted += "#sha256=" + SPC_TRY(Digest::parse(checksum)).hex();
  const auto remote = SPC_TRY(RemoteFile::parse(wanted, config.default_registry));
  const std::string directory = root_ + "/mounts/url-" + Sha256::of(wanted).hex().substr(0, 32);
  SPC_TRY(make_directories(directory));
  const std::string target = directory + "/" + name;
  if (!checksum.empty() && ::access(target.c_str(), F_OK) == 0) return directory;
  auto file = SPC_TRY(NewFile::create(target, Replace::yes));
  PullDisplay display(without_secrets(url), true);
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_user(config)}));
  const RemoteAccess access{.http = *http,
                            .log = display,
                            .config = config,
                            .ask_user = {},
                            .meter = [](std::uint64_t, std::uint64_t) {}};
  SPC_TRY(fetch_remote_file(access, remote, file.file()));
  SPC_TRY(file.publish());
  return directory;
}

std::string BuildCache::directory_of(const Digest& key) const {
  return root_ + "/steps/" + key.hex();
}

std::string BuildCache::blob(const Digest& digest) const {
  return root_ + "/blobs/" + digest.hex();
}

std::optional<BuiltLayer> BuildCache::find(const Digest& key) const {
  const UniqueFd file(
      ::open((directory_of(key) + kLayerNote).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const auto text = file ? read_file(file.get(), 4096) : Error(ErrorKind::not_found, "");
  const auto note = text ? Json::parse(*text) : Result<Json>(text.error());
  if (!note) return std::nullopt;
  const auto member = [&](const char* name) {
    const auto text_of = note->text(name);
    return text_of ? text_of->value_or("") : std::string();
  };
  const auto digest = Digest::parse(member("digest"));
  const auto diff_id = Digest::parse(member("diff_id"));
  const auto size = note->number("size");
  if (!digest || !diff_id || !size || ::access(blob(*digest).c_str(), R_OK) != 0)
    return std::nullopt;
  ::futimens(file.get(), nullptr);
  return BuiltLayer{.digest = *digest, .diff_id = *diff_id, .size = size->value_or(0)};
}

Result<BuiltLayer> BuildCache::make(
    const Digest& key, const BuildTree& tree, const Config& config,
    const std::function<Result<void>(const MountedImage&)>& work) const {
  SPC_TRY(leave_cleaner(root_ + "/steps"));
  auto step = SPC_TRY(StepDirectory::make(root_));
  auto files = SPC_TRY(tree.open(places_));
  const auto run = [&]() -> Result<void> {
    SPC_TRY_DURING("set up the container", enter_user_namespace(RootMap::root));
    const WritableLayer writable{.wanted = true,
                                 .size = config.upper_size,
                                 .directory = step.path() + "/tree",
                                 .keep = true};
    const auto mounted = SPC_TRY_DURING(
        "set up the container", mount_image(std::move(files), places_.workspace(), writable));
    SPC_TRY(work(mounted));
    return keep_layer(*this, step.path());
  };
  SPC_TRY(run_apart(run, "run a step of the build"));
  if (const UniqueFd stale(::open(directory_of(key).c_str(), O_PATH | O_CLOEXEC));
      stale && !find(key)) {
    remove_tree(directory_of(key));  // its blob was removed
  }
  SPC_TRY(step.finish(directory_of(key)));
  const auto layer = find(key);
  if (!layer) return Error(ErrorKind::internal, "the step's layer was removed meanwhile");
  return *layer;
}

std::size_t BuildCache::remove_unused(bool dry) const {
  constexpr std::time_t kUnused = 30 * 24 * 3600;
  std::size_t count = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(root_ + "/steps", failed)) {
    struct stat status {};
    const std::string path = entry.path();
    if (::stat((path + kLayerNote).c_str(), &status) != 0 ||
        status.st_mtim.tv_sec > std::time(nullptr) - kUnused)
      continue;
    ++count;
    const auto key = Digest::parse("sha256:" + entry.path().filename().string());
    if (!dry && key) forget(*key);
  }
  return count;
}

void BuildCache::forget(const Digest& key) const {
  if (const auto layer = find(key)) ::unlink(blob(layer->digest).c_str());
  remove_tree(directory_of(key));
}

Result<std::string> BuildCache::write_layout(const std::string& manifest, const std::string& config,
                                             const std::vector<BuiltLayer>& layers) const {
  const Digest digest = Sha256::of(manifest);
  std::string path = root_ + "/images/" + digest.hex();
  const std::string blobs = path + "/blobs/sha256/";
  SPC_TRY(make_directories(blobs.substr(0, blobs.size() - 1)));
  for (const BuiltLayer& layer : layers) {
    const std::string there = blobs + layer.digest.hex();
    if (::link(blob(layer.digest).c_str(), there.c_str()) != 0 && errno != EEXIST)
      return Error::from_errno(errno, "write into the user's image store");
  }
  const Json entry{{"mediaType", "application/vnd.oci.image.manifest.v1+json"},
                   {"digest", digest.str()},
                   {"size", manifest.size()}};
  const Json index{{"schemaVersion", 2}, {"manifests", Json::array({entry})}};
  const std::pair<std::string, std::string> files[] = {
      {blobs + Sha256::of(config).hex(), config},
      {blobs + digest.hex(), manifest},
      {path + "/oci-layout", R"({"imageLayoutVersion":"1.0.0"})"},
      {path + "/index.json", index.str()}};
  for (const auto& [name, text] : files) {
    auto file = SPC_TRY(NewFile::create(name, Replace::yes));
    SPC_TRY(write_all(file.file(), text));
    SPC_TRY(file.publish());
  }
  return path;
}

// --- run ---

namespace {

/// The only hook of a build: without it apt would change to a user that is not mapped.
constexpr std::string_view kNeededHook = "10-aptfix";

/// Paths that a container's set-up creates in its root where the image lacks them.
constexpr std::array kMadeByUs = {"/etc/resolv.conf", "/etc/hosts", "/etc/hostname",
                                  "/etc/apt/apt.conf.d/90spank-container"};

/// Returns those of the paths, and of the directories above them, that the image lacks; the longest
/// first.
std::vector<std::string> missing_in(int root, const std::vector<std::string>& paths) {
  std::set<std::string, std::greater<>> missing;
  for (const std::string& path : paths) {
    for (auto end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (!open_resolved(root, part.c_str(), O_PATH | O_NOFOLLOW, RESOLVE_IN_ROOT))
        missing.insert(part);
      if (end == std::string::npos) break;
    }
  }
  std::vector<std::string> sorted(missing.begin(), missing.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return sorted;
}

/// Removes what the set-up has created for mounts: empty files and directories, and our own files.
void remove_made(int root, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const auto slash = path.rfind('/');
    const UniqueFd parent = open_resolved(root, slash == 0 ? "/" : path.substr(0, slash).c_str(),
                                          O_PATH | O_DIRECTORY, RESOLVE_IN_ROOT);
    const std::string name = path.substr(slash + 1);
    struct stat status {};
    if (!parent || ::fstatat(parent.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    const bool ours = path.ends_with("spank-container");
    if (S_ISDIR(status.st_mode)) ::unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR);
    if (S_ISREG(status.st_mode) && (status.st_size == 0 || ours))
      ::unlinkat(parent.get(), name.c_str(), 0);
  }
}

/// Moves this process to a network namespace with loopback only.
Result<void> leave_network() {
  SPC_TRY(check(::unshare(CLONE_NEWNET), "make a network namespace"));
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::string_view("lo").copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_flags = IFF_UP;
  return check(::ioctl(socket.get(), SIOCSIFFLAGS, &request), "start the loopback interface");
}

/// Returns the home of a user, as USER names it, in the image's passwd file.
std::string home_of(int root, const std::string& user) {
  constexpr std::size_t kMost = 1 << 20;
  const std::string name = user.substr(0, user.find(':'));
  const UniqueFd file = open_resolved(root, "etc/passwd", O_RDONLY | O_NONBLOCK, RESOLVE_IN_ROOT);
  const auto text = file ? read_file(file.get(), kMost) : Result<std::string>(std::string());
  const std::string lines = text ? *text : std::string();
  for (const std::string_view line : split(lines, '\n')) {
    std::vector<std::string> parts;
    for (const std::string_view part : split(line, ':')) parts.emplace_back(part);
    if (parts.size() > 5 && (parts[0] == name || parts[2] == name)) return parts[5];
  }
  return name.empty() || name == "0" || name == "root" ? "/root" : "/";
}

/// Prints the last lines of a file to standard error.
void show_end_of(int file) {
  constexpr off_t kMost = 8192;
  constexpr int kLines = 20;
  std::string text(kMost, '\0');
  const off_t size = ::lseek(file, 0, SEEK_END);
  const ssize_t got = ::pread(file, text.data(), text.size(), std::max(off_t{0}, size - kMost));
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  std::size_t begin = text.size();
  for (int lines = 0; lines <= kLines && begin != 0 && begin != std::string::npos; ++lines)
    begin = begin == 0 ? 0 : text.rfind('\n', begin - 1);
  const std::size_t first = begin == std::string::npos || begin == 0 ? 0 : begin + 1;
  static_cast<void>(write_all(STDERR_FILENO, std::string_view(text).substr(first)));
}

/// In the child: enters the container and becomes the command.
int become_command(const MountedImage& image, const BuildCommand& command,
                   const LaunchRequest& request, int output, bool is_shell) {
  ::dup2(output, STDERR_FILENO);
  ::dup2(output, STDOUT_FILENO);
  if (!is_shell) {
    const UniqueFd none(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ::dup2(none.get(), STDIN_FILENO);
  }
  std::map<std::string, std::string> environment;
  const std::string home = home_of(image.root.get(), command.user);
  const auto enter = [&]() -> Result<void> {
    if (!command.has_network) SPC_TRY(leave_network());
    StderrLog log;
    SitePolicy site = SitePolicy::read();
    for (const Hook* hook : builtin_hooks()) {
      if (hook->name != kNeededHook) site.hooks_off.emplace_back(hook->name);
    }
    auto user = identity_inside(RootMap::root);
    ImageSettings settings;
    for (const auto& [name, value] : command.environment)
      settings.environment.push_back(name + "=" + value);
    auto made =
        SPC_TRY(make_user_container(image, request, settings, RootMap::root, {}, {}, site, log));
    return begin_task(request, made.settings, made.edits, made.hooks, RootMap::root,
                      std::move(user), environment, ContainerSpec(), log);
  };
  if (const auto entered = enter(); !entered) {
    report_error(entered.error().message());
    return kNoContainer;
  }
  // The recipe's variables win, HOME and PATH included.
  environment["HOME"] = home;
  for (const auto& [name, value] : command.environment) environment[name] = value;
  return execute({is_shell ? command.debug_shell : command.words}, environment, "of the build");
}

}  // namespace

Result<void> run_in(const MountedImage& image, const BuildCommand& command) {
  UniqueFd hidden;
  if (command.is_quiet)
    hidden = SPC_TRY(own(::memfd_create("output", MFD_CLOEXEC), "make a memory file"));
  const int output = command.is_quiet ? hidden.get() : STDERR_FILENO;
  LaunchRequest request;
  request.image = "build";
  request.writable = true;
  request.mount_home = false;
  request.contain = true;
  request.workdir = command.workdir;
  request.mounts = command.mounts;
  request.mounts.push_back(
      {.kind = MountSpec::Kind::removal, .target = "/tmp", .shown_as = "/tmp"});
  std::vector<std::string> made(kMadeByUs.begin(), kMadeByUs.end());
  for (const char* tree : {"/proc", "/sys", "/dev"}) made.emplace_back(tree);
  for (const MountSpec& mount : command.mounts) made.push_back(mount.target);
  made = missing_in(image.root.get(), made);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const auto run = [&](int to, bool is_shell) {
    return supervise([&] { return become_command(image, command, request, to, is_shell); },
                     [](pid_t) {});
  };
  const auto status = run(output, false);
  if (status && *status != 0 && !command.debug_shell.empty()) {
    report_error("the step has failed: this shell is in its state, and its end ends the build");
    SPC_TRY(run(STDERR_FILENO, true));
  }
  end_descendants(0);  // the file systems' servers as well
  remove_made(image.root.get(), made);
  if (!status) return status.error();
  if (*status == 0) return {};
  if (hidden) show_end_of(hidden.get());
  Error failed(ErrorKind::system, *status > 128 ? formatted("killed by signal {}", *status - 128)
                                                : formatted("exit status {}", *status));
  if (!command.debug_shell.empty()) return failed;
  return std::move(failed).hint("with --debug-shell a shell starts in the state of the failure");
}

}  // namespace spc::tool
