// Set-up of a container's root file system by the leader, as the user.

#include "task/root_setup.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <memory>
#include <string_view>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "protocol/task.hpp"

namespace spc {

// --- mount target ---

namespace {

constexpr char kWhatFits[] = "source and target must both be directories or both be files";
constexpr char kChooseAnother[] = "choose another target";

const char* hint_for_target(int err) {
  return err == EACCES ? "the directory above it belongs to another user in the image: choose a "
                         "target that exists there"
                       : kChooseAnother;
}

std::string parent_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

/// Calls statx without asking the server of a file system, which may never answer.
struct statx place_of(int at, const char* path, int flags) {
  struct statx place {};
  ::statx(at, path, flags | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &place);
  return place;
}

bool is_directory(const struct statx& place) { return S_ISDIR(place.stx_mode); }

/// Returns where the path leads: follows links component by component, also to files that are
/// missing. As for the kernel, `..` at the root is the root.
Result<std::string> through_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // the kernel's own limit
  std::string real;
  std::string rest = path;
  for (int links = 0; !rest.empty();) {
    rest.erase(0, rest.find_first_not_of('/'));
    const std::string name = rest.substr(0, rest.find('/'));
    rest.erase(0, name.size());
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      real.resize(real.empty() ? 0 : real.rfind('/'));
      continue;
    }
    const std::string here = real + "/" + name;
    char link[PATH_MAX];
    const ssize_t size = ::readlink(here.c_str(), link, sizeof link);
    if (size <= 0) {
      real = here;
      continue;
    }
    const std::string next(link, static_cast<std::size_t>(size));
    if (++links > kMostLinks)
      return Error::from_errno(ELOOP, formatted("link {} to {}", in_quotes(here), in_quotes(next)));
    if (next[0] == '/') real.clear();
    rest.insert(0, next);
  }
  return real.empty() ? "/" : real;
}

/// Returns the error of a target that exists in part, or is no file to open.
Error unusable_target(const std::string& path, int err) {
  const std::string step = "open mount target " + in_quotes(path);
  auto real = through_links(path);
  if (!real) return std::move(real).error().during(step).hint(kChooseAnother);
  for (std::size_t slash = real->find('/', 1); slash != std::string::npos;
       slash = real->find('/', slash + 1)) {
    const std::string above = real->substr(0, slash);
    const auto place = place_of(AT_FDCWD, above.c_str(), AT_SYMLINK_NOFOLLOW);
    if (err == ENOTDIR && place.stx_mode != 0 && !is_directory(place))
      return Error::from_errno(err, step + ": " + in_quotes(above)).hint(kChooseAnother);
  }
  return Error::from_errno(err, step).hint(err == ENOTDIR ? kWhatFits : kChooseAnother);
}

/// Makes a directory and those above it, or a file. `path` has no links; it is `asked`, or where
/// its links lead.
Result<void> make_target(const std::string& path, const std::string& asked, bool directory) {
  const auto failed = [&](int err, const char* what, const std::string& part) {
    const std::string of = path == asked ? "" : " (links lead there from " + in_quotes(asked) + ")";
    return Error::from_errno(err,
                             formatted("make {} {} in the container{}", what, in_quotes(part), of))
        .hint(hint_for_target(err));
  };
  const std::string whole = directory ? path : parent_of(path);
  for (std::size_t slash = whole.find('/', 1);; slash = whole.find('/', slash + 1)) {
    const std::string part = whole.substr(0, slash);
    if (::access(part.c_str(), F_OK) != 0 && ::mkdir(part.c_str(), 0755) != 0 && errno != EEXIST)
      return failed(errno, "directory", part);
    if (slash == std::string::npos) break;
  }
  if (directory) return {};
  const UniqueFd made(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  return made || errno == EEXIST ? Result<void>() : failed(errno, "file", path);
}

/// Opens the directory of a path, through links. It is made if it is missing.
Result<UniqueFd> open_directory_of(const std::string& path) {
  return open_target(parent_of(path), true);
}

const char* name_in(const std::string& path) { return path.c_str() + path.find_last_of('/') + 1; }

/// The builder's connection with its outstanding mounts. The builder confirms mounts in order.
class MountsOfBuilder {
 public:
  explicit MountsOfBuilder(int builder) : builder_(builder) {}

  Result<void> begin(std::uint32_t index, const UniqueFd& target, const std::string& step) {
    constexpr std::size_t kMost = 16;  // surely fits into the socket's buffers, both directions
    while (waiting_.size() >= kMost) SPC_TRY(await());
    TaskMessage message;
    message.kind = TaskMessageKind::target;
    message.index = index;
    const int passed[] = {target.get()};
    SPC_TRY(send_struct(builder_, message, passed));
    waiting_.push_back(step);
    return {};
  }

  Result<void> settle() {
    while (!waiting_.empty()) SPC_TRY(await());
    return {};
  }

 private:
  Result<void> await() {
    TaskMessage message;
    SPC_TRY(receive_struct(builder_, message));
    const std::string step = std::move(waiting_.front());
    waiting_.pop_front();
    if (message.error == 0) return {};
    return Error::from_errno(message.error, step).hint(kWhatFits);
  }

  int builder_;
  std::deque<std::string> waiting_;
};

/// Returns whether the path is absolute and normal: no link was followed.
bool says_where(const std::string& path) { return path[0] == '/' && normal_path(path) == path; }

/// Refuses the container's root as a target: a mount there would hide the whole image.
Result<UniqueFd> refuse_root(UniqueFd target, const std::string& path) {
  struct stat there {};
  struct stat root {};
  const bool known = ::fstat(target.get(), &there) == 0 && ::stat("/", &root) == 0;
  if (known && (there.st_dev != root.st_dev || there.st_ino != root.st_ino)) return target;
  return Error(ErrorKind::invalid, "mount target " + in_quotes(path) + " is the container's root")
      .hint("if it is a link of the image, choose another target");
}

bool lies_in(const std::string& path, const std::string& directory) {
  return path == directory || (path.starts_with(directory) && path[directory.size()] == '/');
}

}  // namespace

UniqueFd open_inside(const char* path, int flags) {
  return open_resolved(AT_FDCWD, path, flags, RESOLVE_NO_MAGICLINKS);
}

Result<UniqueFd> open_target(const std::string& path, bool directory) {
  const int flags = O_PATH | (directory ? O_DIRECTORY : 0);
  UniqueFd target = open_inside(path.c_str(), flags);
  if (target) return target;
  if (errno != ENOENT) return unusable_target(path, errno);
  auto real = through_links(path);
  if (!real) return unusable_target(path, ELOOP);
  SPC_TRY(make_target(*real, path, directory));
  target = open_inside(real->c_str(), flags);
  if (!target) return unusable_target(path, errno);
  return target;
}

AttachSource attach_by(int builder) {
  const auto mounts = std::make_shared<MountsOfBuilder>(builder);
  return {.begin = [mounts](std::uint32_t index, const UniqueFd& target,
                            const std::string& step) { return mounts->begin(index, target, step); },
          .settle = [mounts] { return mounts->settle(); }};
}

Result<UniqueFd> MountTargets::open(const std::string& path, bool directory) {
  const bool apart =
      std::ranges::none_of(begun_, [&](const std::string& other) { return lies_in(path, other); });
  if (apart && says_where(path) && path != "/") {
    UniqueFd target = open_resolved(AT_FDCWD, path.c_str(), O_PATH | (directory ? O_DIRECTORY : 0),
                                    RESOLVE_NO_SYMLINKS);
    if (target) {
      begun_.push_back(path);
      return target;
    }
  }
  SPC_TRY(settle());
  begun_.emplace_back();  // wherever it is mounted: every path is below it
  return refuse_root(SPC_TRY(open_target(path, directory)), path);
}

Result<void> MountTargets::settle() {
  begun_.clear();
  return attach_.settle ? attach_.settle() : Result<void>();
}

// --- removal ---

namespace {

bool is_below(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() && path.starts_with(directory) &&
         path[directory.size()] == '/';
}

}  // namespace

Result<std::vector<bool>> mounts_to_make(
    const std::vector<std::string>& targets, const std::vector<Removal>& removals,
    const std::function<std::string(const std::string&)>& resolve) {
  std::vector<bool> made(targets.size(), true);
  if (removals.empty()) return made;
  std::vector<std::string> places;
  for (const std::string& target : targets) places.push_back(resolve(target));
  for (const Removal& removal : removals) {
    const std::string place = resolve(removal.target);
    std::size_t found = removal.after;
    while (found > 0 && !(made[found - 1] && places[found - 1] == place)) --found;
    if (found == 0 && removal.optional) continue;
    if (found == 0) {
      return Error(ErrorKind::invalid, "unmount " + in_quotes(removal.shown_as) + ": not a mount")
          .hint(
              "name the exact path of a mount of --container-mounts or of the container; nofail "
              "ignores this error");
    }
    made[found - 1] = false;
    for (std::size_t i = found; i < removal.after; ++i)
      made[i] = made[i] && !is_below(places[i], place);
  }
  return made;
}

std::string without_links(const std::string& path) {
  auto real = through_links(path);
  return real ? *std::move(real) : normal_path(path);
}

// --- root setup ---

namespace {

enum class Missing { make, leave };

/// Replaces a small text file of the image by the result of `edit`. Anything but a regular file of
/// sane size counts as empty and is replaced: an image may have a FIFO or a device of terabytes
/// under this name. EACCES if the user lacks permission.
template <typename Edit>
Result<void> rewrite(const std::string& path, const Edit& edit, mode_t mode = 0644,
                     Missing missing = Missing::make) {
  std::string text;
  const UniqueFd old = open_inside(path.c_str(), O_RDONLY | O_NONBLOCK);
  if (!old && missing == Missing::leave) return {};
  struct stat status {};
  if (old && ::fstat(old.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    constexpr std::size_t kSane = 1 << 20;
    if (auto read = read_file(old.get(), kSane)) text = *std::move(read);
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  const std::string edited = edit(text);
  if (!text.empty() && edited == text) return {};
  const UniqueFd directory = SPC_TRY(open_directory_of(path));
  const int kept = ::unlinkat(directory.get(), name_in(path), 0) != 0 ? errno : 0;
  const UniqueFd file(::openat(directory.get(), name_in(path),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) {
    const int err = errno == EEXIST && kept != 0 ? kept : errno;
    return Error::from_errno(err, "write " + in_quotes(path) + " in the container");
  }
  SPC_TRY_DURING("write " + in_quotes(path) + " in the container", write_all(file.get(), edited));
  return {};
}

Result<void> make_link(const Link& link) {
  const UniqueFd directory = SPC_TRY(open_directory_of(link.path));
  const char* const name = name_in(link.path);
  if (is_directory(place_of(directory.get(), name, AT_SYMLINK_NOFOLLOW))) return {};
  const int kept = ::unlinkat(directory.get(), name, 0) != 0 ? errno : 0;
  if (::symlinkat(link.target.c_str(), directory.get(), name) != 0) {
    const int err = errno == EEXIST && kept != 0 ? kept : errno;
    return Error::from_errno(err, "make link " + in_quotes(link.path));
  }
  return {};
}

/// Returns whether the error is the image's: of its owners, links and kinds of files. Others, such
/// as a full file system, are not.
bool is_of_image(int err) {
  constexpr int kOfImage[] = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR,      ELOOP,    EEXIST,
                              EISDIR, EXDEV, ENXIO, EINVAL, ENAMETOOLONG, EOVERFLOW};
  return std::ranges::find(kOfImage, err) != std::end(kOfImage);
}

/// Files and mounts that the user has not requested. Those that the image does not allow are left
/// out.
class Conveniences {
 public:
  /// Returns false if the file is left out.
  Result<bool> made(Result<void> done, const std::string& path) {
    if (done) return true;
    const int err = done.error().sys_errno();
    if (!is_of_image(err)) return std::move(done).error();
    left_out("not written: ", Error::from_errno(err, in_quotes(path)), path);
    return false;
  }
  /// Adds a warning. Those of directories of other users are one.
  void left_out(const char* what, const Error& error, const std::string& path) {
    if (error.sys_errno() == EACCES || error.sys_errno() == EOVERFLOW) {
      if (of_others_.find(path) == std::string::npos)
        of_others_ += (of_others_.empty() ? "" : ", ") + path;
      return;
    }
    std::string line = what + error.what();
    if (std::ranges::find(warnings_, line) == warnings_.end()) warnings_.push_back(std::move(line));
  }
  /// Returns the warnings.
  [[nodiscard]] std::vector<std::string> warnings() && {
    if (!of_others_.empty()) {
      warnings_.push_back(
          "the image belongs to another user or group: left as they are in the image: " +
          printable(of_others_));
    }
    return std::move(warnings_);
  }

 private:
  std::string of_others_;
  std::vector<std::string> warnings_;
};

/// The kernel's ID for IDs that a user namespace does not map.
constexpr std::string_view kOverflowId = "65534";

/// Returns field `index` of a colon-separated line.
std::string_view field(std::string_view line, int index) {
  for (; index > 0; --index) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return {};
    line.remove_prefix(colon + 1);
  }
  return line.substr(0, line.find(':'));
}

/// Returns whether a passwd or group file has the ID.
bool has_id(std::string_view text, std::string_view id) {
  const auto lines = split(text, '\n');
  return std::ranges::any_of(lines, [&](std::string_view line) { return field(line, 2) == id; });
}

/// Adds entries to passwd and group: the user, system users, and those that root expects.
Result<void> add_users(const RootSetup& root, Conveniences& conveniences) {
  const bool has_root = (root.namespaces & own_user) != 0;
  const auto change = [&](const std::string& path, const auto& edit) -> Result<void> {
    SPC_TRY(conveniences.made(rewrite(path, edit), path));
    return {};
  };
  if (std::string entry = root.passwd_entry; !entry.empty()) {
    // Without the user's shell in the image, sshd would refuse the user.
    const std::size_t shell = entry.rfind(':') + 1;
    constexpr char kShell[] = "/bin/sh";
    if (::access(entry.c_str() + shell, X_OK) != 0 && ::access(kShell, X_OK) == 0)
      entry.replace(shell, entry.npos, kShell);
    SPC_TRY(change("/etc/passwd", [&](std::string_view text) { return with_entry(text, entry); }));
  }
  // Without a line there, PAM refuses the user. The file is not created: it would affect users that
  // are in passwd alone.
  constexpr char kShadow[] = "/etc/shadow";
  if (!root.shadow_entry.empty()) {
    const auto edit = [&](std::string text) {
      return with_missing_entry(std::move(text), root.shadow_entry);
    };
    SPC_TRY(conveniences.made(rewrite(kShadow, edit, 0640, Missing::leave), kShadow));
  }
  if (!root.system_users.empty() || has_root) {
    SPC_TRY(change("/etc/passwd", [&](std::string text) {
      for (const std::string& entry : root.system_users)
        text = with_missing_entry(std::move(text), entry);
      return has_root ? with_missing_entry(std::move(text), "root:x:0:0:root:/root:/bin/sh") : text;
    }));
  }
  if (root.group_entries.empty() && !has_root && !root.has_strange_groups) return {};
  return change("/etc/group", [&](std::string text) {
    for (const std::string& entry : root.group_entries) text = with_entry(text, entry);
    if (has_root) text = with_missing_entry(std::move(text), "root:x:0:");
    return root.has_strange_groups && !has_id(text, kOverflowId) ? text + "nogroup:x:65534:\n"
                                                                 : text;
  });
}

constexpr std::array<const char*, static_cast<std::size_t>(HostTree::count)> kHostTargets = {
    "/proc", "/sys", "/dev", "/tmp", "/dev/shm", "/dev/mqueue"};

/// Returns whether the container has its own tree. Not every container has all of them, and not
/// every node has message queues.
bool has_own_tree(const RootSetup& root, HostTree which) {
  if (which != HostTree::shm && which != HostTree::mqueue) return true;
  return (root.namespaces & own_ipc) != 0 &&
         (which == HostTree::shm || ::access("/dev/mqueue", F_OK) == 0);
}

/// Returns whether the host's tree is mounted. A /dev of the container's own is attached later.
bool has_tree(const RootSetup& root, HostTree which) {
  const bool is_in_dev =
      which == HostTree::dev || which == HostTree::shm || which == HostTree::mqueue;
  return has_own_tree(root, which) && !(is_in_dev && root.dev_targets > 0);
}

/// Returns which mounts are made: the host trees first, then the targets.
Result<std::vector<bool>> mounts_to_make(const RootSetup& root) {
  std::vector<std::string> targets(kHostTargets.begin(), kHostTargets.end());
  for (const Mount& mount_target : root.mounts) targets.push_back(mount_target.target);
  std::vector<Removal> removals = root.removals;
  for (Removal& removal : removals) removal.after += kHostTargets.size();
  return SPC_TRY_DURING("--container-mounts", mounts_to_make(targets, removals, without_links));
}

Result<void> set_mode(const std::string& target, unsigned mode) {
  const UniqueFd root = open_inside(target.c_str(), O_RDONLY | O_DIRECTORY);
  if (!root || ::fchmod(root.get(), mode) != 0)
    return Error::from_errno(errno, "set the mode of " + in_quotes(target));
  return {};
}

/// Refuses a target inside a hidden tree. The target's path has been checked already, but a link of
/// the image may have led elsewhere.
Result<void> refuse_hidden_way(int target, const Mount& asked) {
  const auto there = place_of(target, "", AT_EMPTY_PATH);
  const auto is_on = [&](const struct statx& other) {
    return there.stx_dev_major == other.stx_dev_major && there.stx_dev_minor == other.stx_dev_minor;
  };
  const std::string path = normal_path(asked.target);
  for (const char* view : {"/proc", "/sys", "/dev"}) {
    const auto whole = place_of(AT_FDCWD, view, 0);
    const bool is_mount = (whole.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    const bool covers =
        is_on(whole) && (whole.stx_ino == there.stx_ino || view == std::string_view("/proc"));
    if (!is_mount || !covers || path == view || path.starts_with(std::string(view) + "/")) continue;
    return Error(ErrorKind::invalid,
                 formatted("mount {}: the target leads to {}, which cannot be covered",
                           in_quotes(asked.shown_as), view));
  }
  return {};
}

/// Opens the target of a mount, which suits its source.
Result<UniqueFd> open_target_of(const Mount& mount, MountTargets& targets) {
  UniqueFd target = SPC_TRY(targets.open(mount.target, mount.directory));
  const auto place = place_of(target.get(), "", AT_EMPTY_PATH);
  if (!mount.directory && is_directory(place))
    return Error::from_errno(EISDIR, "open mount target " + in_quotes(mount.target))
        .hint(kWhatFits);
  if (mount.optional && S_ISCHR(place.stx_mode) && !mount.target.starts_with("/dev/")) {
    return Error(ErrorKind::invalid,
                 formatted("open mount target {}: it is a device", in_quotes(mount.target)));
  }
  if (mount.by_user || mount.optional) SPC_TRY(refuse_hidden_way(target.get(), mount));
  return target;
}

/// Removes the link at the path. Returns false if it is not a link, or cannot be removed.
bool remove_link(const std::string& path) {
  const auto directory = open_directory_of(path);
  char link[1];
  return directory && ::readlinkat(directory->get(), name_in(path), link, sizeof link) > 0 &&
         ::unlinkat(directory->get(), name_in(path), 0) == 0;
}

/// Attaches root.mounts from `first` until before `end`, as far as they are `made`.
Result<void> attach_targets(const RootSetup& root, const std::vector<bool>& made, std::size_t first,
                            std::size_t end, const AttachSource& attach,
                            Conveniences& conveniences) {
  MountTargets targets(attach);
  for (std::size_t i = first; i < end; ++i) {
    const Mount& mount = root.mounts[i];
    if (!made[kHostTargets.size() + i] || !mount.wanted) continue;
    auto target = open_target_of(mount, targets);
    if (!target && mount.optional && remove_link(mount.target))
      target = open_target_of(mount, targets);
    if (!target && mount.optional) {
      // An image of another user may lack the targets of all libraries of a GPU driver.
      const bool is_usual =
          target.error().sys_errno() == EACCES && mount.asked_by.starts_with("hook ");
      if (!is_usual) conveniences.left_out("not mounted: ", target.error(), mount.target);
      continue;
    }
    if (!target) return std::move(target).error().during(mount.asked_by);
    SPC_TRY(attach.begin(static_cast<std::uint32_t>(i), *target,
                         formatted("{}: mount {}", mount.asked_by, in_quotes(mount.shown_as))));
    if (!mount.mode) continue;
    SPC_TRY(targets.settle());
    SPC_TRY_DURING(mount.asked_by, set_mode(mount.target, *mount.mode));
  }
  return targets.settle();
}

/// Links that programs expect in /dev.
const Link kLinksOfDev[] = {{"/dev/fd", "/proc/self/fd"},
                            {"/dev/stdin", "/proc/self/fd/0"},
                            {"/dev/stdout", "/proc/self/fd/1"},
                            {"/dev/stderr", "/proc/self/fd/2"},
                            {"/dev/ptmx", "pts/ptmx"}};

/// Attaches the container's own /dev in place of the host's, which would hide it.
Result<void> attach_own_dev(const RootSetup& root, const std::vector<bool>& made,
                            const AttachSource& attach, Conveniences& conveniences) {
  if (!made[kHostTargets.size()]) return {};  // the user has dropped it
  SPC_TRY(attach_targets(root, made, 0, root.dev_targets, attach, conveniences));
  for (const Link& link : kLinksOfDev) SPC_TRY(make_link(link));
  constexpr auto kQueues = static_cast<std::uint32_t>(HostTree::mqueue);
  if (!made[kQueues] || !has_own_tree(root, HostTree::mqueue)) return {};
  const auto target = SPC_TRY(open_target(kHostTargets[kQueues], true));
  SPC_TRY(attach.begin(static_cast<std::uint32_t>(root.mounts.size()) + kQueues, target,
                       formatted("mount {}", kHostTargets[kQueues])));
  return attach.settle ? attach.settle() : Result<void>();
}

}  // namespace

std::string with_entry(std::string_view text, const std::string& entry) {
  std::string kept;
  while (!text.empty()) {
    const std::string_view line = next_part(text, '\n');
    // Field 0 is the name and field 2 the ID, in passwd and group.
    if (field(line, 0) == field(entry, 0) || field(line, 2) == field(entry, 2)) continue;
    kept.append(line).append("\n");
  }
  return kept + entry + "\n";
}

std::string with_missing_entry(std::string text, const std::string& entry) {
  for (std::string_view rest = text; !rest.empty();) {
    if (field(next_part(rest, '\n'), 0) == field(entry, 0)) return text;
  }
  return text + entry + "\n";
}

Result<void> attach_host_trees(const RootSetup& root, const OpenDirectory& open_directory,
                               const AttachSource& attach) {
  const auto sources = static_cast<std::uint32_t>(root.mounts.size());
  const auto made = SPC_TRY(mounts_to_make(root));
  for (std::uint32_t i = 0; i < kHostTargets.size(); ++i) {
    if (!made[i] || !has_tree(root, static_cast<HostTree>(i))) continue;
    // These are inside the mount of /dev, which may still be in progress.
    if (attach.settle && static_cast<HostTree>(i) >= HostTree::shm) SPC_TRY(attach.settle());
    const auto target = SPC_TRY(open_directory(kHostTargets[i]));
    SPC_TRY(attach.begin(sources + i, target, formatted("mount {}", kHostTargets[i])));
  }
  return attach.settle ? attach.settle() : Result<void>();
}

Result<std::vector<std::string>> set_up_root(const RootSetup& root, const AttachSource& attach) {
  const auto made = SPC_TRY(mounts_to_make(root));
  if (!root.container_runs && !root.has_host_trees) {
    MountTargets targets(attach);
    SPC_TRY(attach_host_trees(
        root, [&](const std::string& path) { return targets.open(path, true); }, attach));
  }
  Conveniences conveniences;
  if (root.dev_targets > 0) SPC_TRY(attach_own_dev(root, made, attach, conveniences));
  for (const std::string& directory : root.directories) {
    const auto there = open_target(directory, true);
    // Ignore names that cannot be directories: the task reports an unusable work directory.
    if (there || (is_of_image(there.error().sys_errno()) && there.error().sys_errno() != EACCES))
      continue;
    SPC_TRY(conveniences.made(there.error(), directory));
  }
  SPC_TRY(add_users(root, conveniences));
  for (const TextFile& file : root.files) {
    const auto text = [&](std::string_view) { return file.text; };
    SPC_TRY(conveniences.made(rewrite(file.path, text, file.mode), file.path));
  }
  for (const Link& link : root.links) SPC_TRY(conveniences.made(make_link(link), link.path));
  SPC_TRY(attach_targets(root, made, root.dev_targets, root.mounts.size(), attach, conveniences));
  return std::move(conveniences).warnings();
}

}  // namespace spc
