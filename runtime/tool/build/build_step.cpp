#include "tool/build/build_step.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <net/if.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
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
  auto [reading, writing] = SPC_TRY(make_pipe());
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
  remove_left_steps(cache.root_ + "/steps");
  return cache;
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

/// In the child: enters the container and becomes the command.
int become_command(const MountedImage& image, const BuildCommand& command,
                   const LaunchRequest& request) {
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
  return execute({command.words}, environment, "of the build");
}

}  // namespace

Result<void> run_in(const MountedImage& image, const BuildCommand& command) {
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
  const auto status =
      supervise([&] { return become_command(image, command, request); }, [](pid_t) {});
  end_descendants(0);
  remove_made(image.root.get(), made);
  if (!status) return status.error();
  if (*status == 0) return {};
  return Error(ErrorKind::system, *status > 128 ? formatted("killed by signal {}", *status - 128)
                                                : formatted("exit status {}", *status));
}

// --- copy ---

namespace {

/// Applies one clause of chmod, as u=rwX; empty: it is none.
std::optional<mode_t> changed_mode(std::string_view clause, mode_t mode) {
  const auto end = std::min(clause.find_first_of("+-="), clause.size());
  mode_t who = 0;
  for (const char c : clause.substr(0, end)) {
    if (c != 'u' && c != 'g' && c != 'o' && c != 'a') return std::nullopt;
    who |= c == 'u' ? 04700 : c == 'g' ? 02070 : c == 'o' ? 01007 : 07777;
  }
  if (end == clause.size()) return std::nullopt;
  if (who == 0) who = 07777;
  mode_t bits = 0;
  for (const char c : clause.substr(end + 1)) {
    constexpr mode_t kExecute = 0111;
    switch (c) {
      case 'r': bits |= 0444; break;
      case 'w': bits |= 0222; break;
      case 'x': bits |= kExecute; break;
      case 'X': bits |= S_ISDIR(mode) || (mode & kExecute) != 0 ? kExecute : 0; break;
      case 's': bits |= 06000; break;
      case 't': bits |= 01000; break;
      default: return std::nullopt;
    }
  }
  bits &= who;
  if (clause[end] == '-') return mode & ~bits;
  return clause[end] == '+' ? mode | bits : (mode & ~(who & 0777)) | bits;
}

}  // namespace

Result<void> BuildCopy::set_mode(const std::string& text) {
  mode_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (end.ec == std::errc() && end.ptr == text.data() + text.size() && value <= 07777) {
    mode = value;
    return {};
  }
  for (const std::string_view clause : split(text, ',')) {
    if (!changed_mode(clause, 0))
      return Error(ErrorKind::invalid, formatted("--chmod={}: is not a mode", text))
          .hint("--chmod=755 or --chmod=u=rwX,go=rX");
  }
  mode_changes = text;
  return {};
}

mode_t BuildCopy::mode_for(mode_t own) const {
  if (mode) return *mode;
  if (!mode_changes.empty()) {
    for (const std::string_view clause : split(mode_changes, ','))
      own = changed_mode(clause, own).value_or(own);
  }
  return own & 07777;
}

namespace {

UniqueFd open_in(int root, const std::string& path, int flags) {
  return open_resolved(root, path.empty() ? "." : path.c_str(), flags,
                       RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

/// Returns the path without `.`, empty parts and the slash at its begin. `..` stays: openat2 keeps
/// it in the root.
std::string plain_path(std::string_view path) {
  std::string result;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == ".") continue;
    if (part == ".." && !result.empty()) {
      const auto slash = result.rfind('/');
      result.resize(slash == std::string::npos ? 0 : slash);
    } else if (part != "..") {
      result.append(result.empty() ? "" : "/").append(part);
    }
  }
  return result;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_pattern(std::string_view path) { return path.find_first_of("*?[") != path.npos; }

/// Adds the files below `directory` (relative, or empty) that match the remaining parts of the
/// pattern.
Result<void> find_below(int root, const std::string& directory, std::string_view pattern,
                        FoundFiles& found) {
  const auto part = next_part(pattern, '/');
  const std::string before = directory.empty() ? "" : directory + "/";
  if (!is_pattern(part)) {
    const std::string path = before + std::string(part);
    if (!pattern.empty()) return find_below(root, path, pattern, found);
    if (open_in(root, path, O_PATH)) found.push_back(path);
    return {};
  }
  UniqueFd opened = open_in(root, directory, O_RDONLY | O_DIRECTORY);
  if (!opened) return {};
  DirectoryReader entries(std::move(opened));
  std::vector<std::string> names;
  while (entries.next()) {
    if (matches_glob(part, entries.name())) names.emplace_back(entries.name());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (pattern.empty())
      found.push_back(before + name);
    else
      SPC_TRY(find_below(root, before + name, pattern, found));
  }
  return {};
}

/// `below`: the path below the source, or the name of a source that is a file.
bool is_left_out(const std::string& path, const std::string& below, const BuildCopy& copy,
                 const IgnoreFile* ignored) {
  if (ignored != nullptr && ignored->matches(path)) return true;
  return std::any_of(copy.excludes.begin(), copy.excludes.end(), [&](const std::string& pattern) {
    return matches_path(pattern, path) || matches_path(pattern, below);
  });
}

struct Visited {
  const std::string& path;  ///< below the root
  std::string below;        ///< below the source: empty for the source itself
  int parent;
  const char* name;
  struct stat status;
};
using Visit = std::function<Result<void>(const Visited&)>;

/// Visits a file and all below it. A directory that is left out is entered only if a pattern may
/// bring back files in it.
Result<void> visit_tree(int parent, const char* name, const std::string& path,
                        const std::string& below, const BuildCopy& copy, const IgnoreFile* ignored,
                        const Visit& visit) {
  Visited one{.path = path, .below = below, .parent = parent, .name = name, .status = {}};
  if (::fstatat(parent, name, &one.status, AT_SYMLINK_NOFOLLOW) != 0)
    return Error::from_errno(errno, "read " + in_quotes(path));
  const bool left_out = !path.empty() && is_left_out(path, below, copy, ignored);
  if (left_out &&
      (ignored == nullptr || !ignored->has_exceptions() || !S_ISDIR(one.status.st_mode)))
    return {};
  if (!left_out) SPC_TRY(visit(one));
  if (!S_ISDIR(one.status.st_mode)) return {};
  UniqueFd opened(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) return Error::from_errno(errno, "open directory " + in_quotes(path));
  DirectoryReader entries(std::move(opened));
  std::vector<std::string> names;
  while (entries.next()) names.emplace_back(entries.name());
  if (entries.error() != 0)
    return Error::from_errno(entries.error(), "read directory " + in_quotes(path));
  std::sort(names.begin(), names.end());
  const auto in = [](const std::string& directory, const std::string& entry) {
    return directory.empty() ? entry : directory + "/" + entry;
  };
  for (const std::string& entry : names) {
    SPC_TRY(visit_tree(entries.descriptor(), entry.c_str(), in(path, entry), in(below, entry), copy,
                       ignored, visit));
  }
  return {};
}

/// Visits a source, following a link at its end, as BuildKit does.
Result<void> visit_source(int root, const std::string& found, const BuildCopy& copy,
                          const IgnoreFile* ignored, const Visit& visit) {
  const std::string path = plain_path(found);
  const UniqueFd file = open_in(root, path, O_PATH);
  if (!file) return Error::from_errno(errno, "open " + in_quotes(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, "read " + in_quotes(path));
  if (S_ISDIR(status.st_mode)) return visit_tree(file.get(), ".", path, "", copy, ignored, visit);
  if (is_left_out(path, last_part(path), copy, ignored)) return {};
  // Reopened by its descriptor: `name` below is a link in /proc to the file itself.
  const std::string itself = "/proc/self/fd/" + std::to_string(file.get());
  return visit(
      {.path = path, .below = "", .parent = AT_FDCWD, .name = itself.c_str(), .status = status});
}

Result<UniqueFd> open_content(const Visited& file) {
  UniqueFd content(::openat(file.parent, file.name, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!content) return Error::from_errno(errno, "open " + in_quotes(file.path));
  return content;
}

Result<std::string> link_target(const Visited& link) {
  std::string target(static_cast<std::size_t>(link.status.st_size) + 4096, '\0');
  const ssize_t size = ::readlinkat(link.parent, link.name, target.data(), target.size());
  if (size < 0) return Error::from_errno(errno, "read link " + in_quotes(link.path));
  target.resize(static_cast<std::size_t>(size));
  return target;
}

/// Returns the path with /./ where `source` has it: --parents keeps the directories after it.
std::string with_pivot(std::string path, const std::string& source) {
  const auto pivot = source.find("/./");
  if (pivot == std::string::npos) return path;
  const std::string before = plain_path(source.substr(0, pivot));
  if (before.empty()) return path;
  std::size_t at = 0;
  for (auto left = std::ranges::count(before, '/') + 1; left > 0; --left)
    at = path.find('/', at == 0 ? 0 : at + 1);
  return at == std::string::npos ? path : path.insert(at, "/.");
}

}  // namespace

Result<FoundFiles> find_sources(int root, const BuildCopy& copy, const IgnoreFile* ignored) {
  FoundFiles found;
  for (const std::string& source : copy.sources) {
    const std::string path = plain_path(source);
    const std::size_t before = found.size();
    if (path.empty())
      found.emplace_back();
    else
      SPC_TRY(find_below(root, "", path, found));
    if (found.size() == before && !is_pattern(path))
      return Error(ErrorKind::not_found, formatted("no file {}", in_quotes(source)))
          .hint("paths begin at the context, or at the root of the --from image");
    if (copy.keeps_parents) {
      for (std::size_t i = before; i < found.size(); ++i)
        found[i] = with_pivot(std::move(found[i]), source);
    }
    if (!is_pattern(path) && ignored != nullptr && ignored->matches(path) &&
        !ignored->has_exceptions()) {
      return Error(ErrorKind::not_found,
                   formatted("file {} is left out by .dockerignore", in_quotes(source)));
    }
  }
  return found;
}

Result<Digest> digest_of_files(int root, const FoundFiles& files, const BuildCopy& copy,
                               const IgnoreFile* ignored) {
  Sha256 all;
  const auto add = [&](std::string_view text) {
    all.update(std::as_bytes(std::span(text)));
    all.update(std::as_bytes(std::span("\0", 1)));
  };
  const auto hash = [&](const Visited& file) -> Result<void> {
    add(file.path);
    add(formatted("{}", static_cast<unsigned>(file.status.st_mode)));
    if (S_ISLNK(file.status.st_mode)) add(SPC_TRY(link_target(file)));
    if (!S_ISREG(file.status.st_mode)) return {};
    const auto content = SPC_TRY(open_content(file));
    static thread_local std::array<std::byte, 1 << 18> buffer;
    add(formatted("{}", static_cast<std::uint64_t>(file.status.st_size)));
    for (;;) {
      const ssize_t got = ::read(content.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "read " + in_quotes(file.path));
      if (got == 0) return {};
      all.update(std::span(buffer).first(static_cast<std::size_t>(got)));
    }
  };
  for (const std::string& path : files) SPC_TRY(visit_source(root, path, copy, ignored, hash));
  return all.finish();
}

Result<void> make_directory_in(int image, const std::string& path) {
  const std::string plain = plain_path(path);
  std::string so_far;
  for (const std::string_view part : split(plain, '/')) {
    const UniqueFd parent = open_in(image, so_far, O_PATH | O_DIRECTORY);
    if (!parent) return Error::from_errno(errno, "open directory " + in_quotes("/" + so_far));
    so_far.append(so_far.empty() ? "" : "/").append(part);
    if (part.empty() || open_in(image, so_far, O_PATH | O_DIRECTORY)) continue;
    if (::mkdirat(parent.get(), std::string(part).c_str(), 0755) != 0)
      return Error::from_errno(errno, "make directory " + in_quotes("/" + so_far));
  }
  return {};
}

namespace {

/// Writes copies into directories of the image.
class Copier {
 public:
  Copier(int image, const BuildCopy& copy) : image_(image), copy_(copy) {}

  Result<void> put(const Visited& file, const std::string& target) {
    const std::string name = last_part(target);
    const auto slash = target.rfind('/');
    const UniqueFd parent = open_in(
        image_, slash == std::string::npos ? "" : target.substr(0, slash), O_PATH | O_DIRECTORY);
    if (!parent)
      return Error::from_errno(errno, "open the directory of " + in_quotes("/" + target));
    if (S_ISDIR(file.status.st_mode)) return put_directory(file, target);
    struct stat there {};
    if (::fstatat(parent.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
      if (S_ISDIR(there.st_mode))
        return Error(ErrorKind::invalid,
                     formatted("{} is a directory in the image", in_quotes("/" + target)));
      if (::unlinkat(parent.get(), name.c_str(), 0) != 0)
        return Error::from_errno(errno, "replace " + in_quotes("/" + target));
    }
    if (S_ISREG(file.status.st_mode)) return put_regular(file, parent.get(), name, target);
    if (S_ISLNK(file.status.st_mode)) {
      const std::string to = SPC_TRY(link_target(file));
      return check(::symlinkat(to.c_str(), parent.get(), name.c_str()),
                   "make link " + in_quotes("/" + target));
    }
    if (S_ISFIFO(file.status.st_mode)) {
      return check(::mkfifoat(parent.get(), name.c_str(), file.status.st_mode & 07777),
                   "make FIFO " + in_quotes("/" + target));
    }
    return Error(ErrorKind::invalid,
                 formatted("{} is a device or a socket, which is not copied", in_quotes(file.path)))
        .hint("name it in .dockerignore");
  }

 private:
  Result<void> put_directory(const Visited& file, const std::string& target) {
    SPC_TRY(make_directory_in(image_, target));
    const auto made = open_in(image_, target, O_RDONLY | O_DIRECTORY);
    if (!made) return Error::from_errno(errno, "open directory " + in_quotes("/" + target));
    return check(::fchmod(made.get(), copy_.mode_for(file.status.st_mode)),
                 "set the mode of " + in_quotes("/" + target));
  }

  Result<void> put_regular(const Visited& file, int parent, const std::string& name,
                           const std::string& target) {
    const auto content = SPC_TRY(open_content(file));
    const UniqueFd made(
        ::openat(parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made) return Error::from_errno(errno, "create " + in_quotes("/" + target));
    for (bool copies = true;;) {
      constexpr std::size_t kMost = 1 << 30;
      ssize_t got =
          copies ? ::copy_file_range(content.get(), nullptr, made.get(), nullptr, kMost, 0) : -1;
      if (copies && got < 0 && errno != EINTR) copies = false;
      if (!copies) {
        got = ::read(content.get(), buffer_.data(), buffer_.size());
        if (got > 0)
          SPC_TRY_DURING(
              "write " + in_quotes("/" + target),
              write_all(made.get(), std::span(buffer_).first(static_cast<std::size_t>(got))));
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "copy " + in_quotes(file.path));
      if (got == 0) break;
    }
    SPC_TRY(check(::fchmod(made.get(), copy_.mode_for(file.status.st_mode)),
                  "set the mode of " + in_quotes("/" + target)));
    const timespec times[2] = {file.status.st_mtim, file.status.st_mtim};
    return check(::futimens(made.get(), times), "set the time of " + in_quotes("/" + target));
  }

  int image_;
  const BuildCopy& copy_;
  std::array<std::byte, 1 << 18> buffer_{};
};

}  // namespace

namespace {

/// Unpacks an archive in a child whose root is the image, so that no link leads out of it.
Result<void> unpack_into(int archive, int image, const std::string& target) {
  SPC_TRY(make_directory_in(image, target));
  return run_apart(
      [&]() -> Result<void> {
        SPC_TRY(check(::fchdir(image), "enter the image"));
        SPC_TRY(check(::chroot("."), "enter the image"));
        SPC_TRY(check(::chdir(("/" + target).c_str()), "enter " + in_quotes("/" + target)));
        return unpack_archive(archive);
      },
      "unpack an archive");
}

}  // namespace

Result<void> copy_files(int from, const FoundFiles& files, const BuildCopy& copy,
                        const IgnoreFile* ignored, int image) {
  Copier copier(image, copy);
  const std::string target = plain_path(copy.target);
  const UniqueFd there = open_in(image, target, O_PATH | O_DIRECTORY);
  const bool into = copy.target.ends_with('/') || there || files.size() > 1;
  if (into) SPC_TRY(make_directory_in(image, target));
  const auto in = [](const std::string& directory, const std::string& entry) {
    return directory.empty() || entry.empty() ? directory + entry : directory + "/" + entry;
  };
  for (const std::string& path : files) {
    const std::string base = copy.as_cp && into ? in(target, last_part(path)) : target;
    const auto put = [&](const Visited& file) -> Result<void> {
      if (copy.keeps_parents) {
        const auto pivot = path.find("/./");
        const std::string kept = pivot == std::string::npos ? path : path.substr(pivot + 3);
        const std::string place = in(target, in(kept, file.below));
        const auto slash = place.rfind('/');
        if (slash != std::string::npos) SPC_TRY(make_directory_in(image, place.substr(0, slash)));
        return copier.put(file, place);
      }
      // The content of a directory is copied, not the directory.
      const bool is_tree = std::string_view(file.name) == "." || !file.below.empty();
      if (is_tree && file.below.empty()) return make_directory_in(image, base);
      if (is_tree) return copier.put(file, in(base, file.below));
      if (copy.unpacks && S_ISREG(file.status.st_mode)) {
        const auto content = SPC_TRY(open_content(file));
        if (is_archive(content.get())) return unpack_into(content.get(), image, target);
      }
      if (into) return copier.put(file, in(target, last_part(path)));
      const auto slash = target.rfind('/');
      if (slash != std::string::npos) SPC_TRY(make_directory_in(image, target.substr(0, slash)));
      return copier.put(file, target);
    };
    SPC_TRY(visit_source(from, path, copy, ignored, put));
  }
  return {};
}

Result<void> write_file_in(int image, const std::string& path, const std::string& text,
                           std::optional<mode_t> mode) {
  const auto content = SPC_TRY(sealed_memory_file("here-document", text));
  const std::string itself = "/proc/self/fd/" + std::to_string(content.get());
  BuildCopy copy;
  copy.mode = mode.value_or(0644);
  Visited file{.path = path, .below = "", .parent = AT_FDCWD, .name = itself.c_str(), .status = {}};
  if (::fstat(content.get(), &file.status) != 0)
    return Error::from_errno(errno, "read a here-document");
  file.status.st_mode = S_IFREG | 0644;
  if (const auto now = latest_time()) file.status.st_mtim = {*now, 0};
  const std::string target = plain_path(path);
  const auto slash = target.rfind('/');
  if (slash != std::string::npos) SPC_TRY(make_directory_in(image, target.substr(0, slash)));
  return Copier(image, copy).put(file, target);
}

}  // namespace spc::tool
