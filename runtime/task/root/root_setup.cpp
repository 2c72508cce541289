#include "task/root/root_setup.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"

namespace spc {
namespace {

enum class Missing { make, leave };

/// Replaces a small text file of the image by what `edit` makes of it. Anything but a regular file
/// of sane size counts as empty and makes way: an image may bring a FIFO or a device of terabytes
/// under this name. EACCES: the user may not.
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
  SPC_TRY(make_directories_above(path));
  const int kept = ::unlink(path.c_str()) != 0 ? errno : 0;
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) {
    const int err = errno == EEXIST && kept != 0 ? kept : errno;
    return Error::from_errno(err, "write " + in_quotes(path) + " in the container");
  }
  SPC_TRY_DURING("write " + in_quotes(path) + " in the container",
                 write_all(file.get(), edit(text)));
  return {};
}

Result<void> make_link(const Link& link) {
  SPC_TRY(make_directories_above(link.path));
  struct stat status {};
  if (::lstat(link.path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return {};
  const int kept = ::unlink(link.path.c_str()) != 0 ? errno : 0;
  if (::symlink(link.target.c_str(), link.path.c_str()) != 0) {
    const int err = errno == EEXIST && kept != 0 ? kept : errno;
    return Error::from_errno(err, "make link " + in_quotes(link.path));
  }
  return {};
}

/// What is convenient, but cannot be had in a directory of another user.
class Conveniences {
 public:
  explicit Conveniences(const RootSetup& root) : root_(root) {}

  /// False: it is left out.
  Result<bool> made(Result<void> done, const std::string& path) {
    if (done) return true;
    if (done.error().sys_errno() != EACCES) return std::move(done).error();
    if (left_out_.find(path) == std::string::npos)
      left_out_ += (left_out_.empty() ? "" : ", ") + path;
    return false;
  }
  void tell() const {
    if (!left_out_.empty() && root_.not_ours) root_.not_ours(left_out_);
  }

 private:
  const RootSetup& root_;
  std::string left_out_;
};

bool is_strange(int err) {
  return err == ENOENT || err == ENOTDIR || err == ELOOP || err == EEXIST || err == ENAMETOOLONG;
}

/// What the kernel shows of IDs that a user namespace does not have.
constexpr std::string_view kOverflowId = "65534";

/// Field `index` of a colon-separated line.
std::string_view field(std::string_view line, int index) {
  for (; index > 0; --index) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return {};
    line.remove_prefix(colon + 1);
  }
  return line.substr(0, line.find(':'));
}

/// Of a passwd or group file.
bool has_id(std::string_view text, std::string_view id) {
  const auto lines = split(text, '\n');
  return std::ranges::any_of(lines, [&](std::string_view line) { return field(line, 2) == id; });
}

/// passwd and group: of the user, of system users, and of what root expects.
Result<void> add_users(const RootSetup& root, Conveniences& conveniences) {
  const bool has_root = (root.namespaces & own_user) != 0;
  const auto change = [&](const std::string& path, const auto& edit) -> Result<void> {
    SPC_TRY(conveniences.made(rewrite(path, edit), path));
    return {};
  };
  if (!root.passwd_entry.empty()) {
    SPC_TRY(change("/etc/passwd",
                   [&](std::string_view text) { return with_entry(text, root.passwd_entry); }));
  }
  // Without a line there, PAM lets nobody in. The file is not made: it would matter to who is in
  // passwd alone.
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

/// Not every container has all of them, nor every node message queues.
bool has_own_tree(const RootSetup& root, HostTree which) {
  if (which != HostTree::shm && which != HostTree::mqueue) return true;
  return (root.namespaces & own_ipc) != 0 &&
         (which == HostTree::shm || ::access("/dev/mqueue", F_OK) == 0);
}

/// A /dev of its own comes later.
bool has_tree(const RootSetup& root, HostTree which) {
  const bool is_in_dev =
      which == HostTree::dev || which == HostTree::shm || which == HostTree::mqueue;
  return has_own_tree(root, which) && !(is_in_dev && root.dev_targets > 0);
}

/// Of the host trees, which come first, and of the targets.
Result<std::vector<bool>> mounts_to_make(const RootSetup& root) {
  std::vector<std::string> targets(kHostTargets.begin(), kHostTargets.end());
  for (const MountTarget& mount_target : root.targets) targets.push_back(mount_target.target);
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

/// Without a question to the server of a file system, which may never answer.
struct statx place_of(int at, const char* path, int flags) {
  struct statx place {};
  ::statx(at, path, flags | AT_STATX_DONT_SYNC, STATX_INO, &place);
  return place;
}

/// What the paths of targets say has been checked already; a link of the image may have led
/// elsewhere.
Result<void> refuse_hidden_way(int target, const MountTarget& asked) {
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

/// Those of root.targets from `first` until before `end`, as far as they are `made`.
Result<void> attach_targets(const RootSetup& root, const std::vector<bool>& made, std::size_t first,
                            std::size_t end, const AttachSource& attach) {
  MountTargets targets(attach);
  for (std::size_t i = first; i < end; ++i) {
    const MountTarget& mount_target = root.targets[i];
    if (!made[kHostTargets.size() + i] || !mount_target.wanted) continue;
    const auto target = targets.open(mount_target.target, mount_target.directory);
    const bool refused = !target && (target.error().sys_errno() == EACCES ||
                                     target.error().kind() == ErrorKind::invalid);
    if (refused && mount_target.optional) continue;
    if (!target) return target.error();
    if (mount_target.by_user) SPC_TRY(refuse_hidden_way(target->get(), mount_target));
    SPC_TRY(attach.begin(static_cast<std::uint32_t>(i), *target, mount_target.shown_as));
    if (!mount_target.mode) continue;
    SPC_TRY(targets.settle());
    SPC_TRY(set_mode(mount_target.target, *mount_target.mode));
  }
  return targets.settle();
}

/// What programs expect in /dev besides devices.
const Link kLinksOfDev[] = {{"/dev/fd", "/proc/self/fd"},
                            {"/dev/stdin", "/proc/self/fd/0"},
                            {"/dev/stdout", "/proc/self/fd/1"},
                            {"/dev/stderr", "/proc/self/fd/2"},
                            {"/dev/ptmx", "pts/ptmx"}};

/// In place of the host's, which would hide it.
Result<void> attach_own_dev(const RootSetup& root, const std::vector<bool>& made,
                            const AttachSource& attach) {
  if (!made[kHostTargets.size()]) return {};  // the user has dropped it
  SPC_TRY(attach_targets(root, made, 0, root.dev_targets, attach));
  for (const Link& link : kLinksOfDev) SPC_TRY(make_link(link));
  constexpr auto kQueues = static_cast<std::uint32_t>(HostTree::mqueue);
  if (!made[kQueues] || !has_own_tree(root, HostTree::mqueue)) return {};
  const auto target = SPC_TRY(open_target(kHostTargets[kQueues], true));
  SPC_TRY(attach.begin(static_cast<std::uint32_t>(root.targets.size()) + kQueues, target,
                       kHostTargets[kQueues]));
  return attach.settle ? attach.settle() : Result<void>();
}

}  // namespace

std::string with_entry(std::string_view text, const std::string& entry) {
  std::string kept;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    // Field 0 is the name and field 2 the id, in passwd as in group.
    if (field(line, 0) == field(entry, 0) || field(line, 2) == field(entry, 2)) continue;
    kept.append(line).append("\n");
  }
  return kept + entry + "\n";
}

std::string with_missing_entry(std::string text, const std::string& entry) {
  for (std::string_view rest = text; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size());
    if (field(rest.substr(0, end), 0) == field(entry, 0)) return text;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return text + entry + "\n";
}

Result<void> attach_host_trees(const RootSetup& root, const OpenDirectory& open_directory,
                               const AttachSource& attach) {
  const auto sources = static_cast<std::uint32_t>(root.targets.size());
  const auto made = SPC_TRY(mounts_to_make(root));
  for (std::uint32_t i = 0; i < kHostTargets.size(); ++i) {
    if (!made[i] || !has_tree(root, static_cast<HostTree>(i))) continue;
    // These lie in the mount of /dev, which may be on its way.
    if (attach.settle && static_cast<HostTree>(i) >= HostTree::shm) SPC_TRY(attach.settle());
    const auto target = SPC_TRY(open_directory(kHostTargets[i]));
    SPC_TRY(attach.begin(sources + i, target, kHostTargets[i]));
  }
  return attach.settle ? attach.settle() : Result<void>();
}

Result<void> set_up_root(const RootSetup& root, const AttachSource& attach) {
  const auto made = SPC_TRY(mounts_to_make(root));
  if (!root.container_runs && !root.has_host_trees) {
    MountTargets targets(attach);
    SPC_TRY(attach_host_trees(
        root, [&](const std::string& path) { return targets.open(path, true); }, attach));
  }
  if (root.dev_targets > 0)
    SPC_TRY_DURING("--container-contain", attach_own_dev(root, made, attach));
  Conveniences conveniences(root);
  for (const std::string& directory : root.directories) {
    const auto there = open_target(directory, true);
    // A name that cannot be a directory is the business of whoever wants it: the task says that it
    // is the work directory.
    if (there || is_strange(there.error().sys_errno())) continue;
    SPC_TRY(conveniences.made(there.error(), directory));
  }
  SPC_TRY(add_users(root, conveniences));
  for (const TextFile& file : root.files) {
    const auto text = [&](std::string_view) { return file.text; };
    SPC_TRY(conveniences.made(rewrite(file.path, text, file.mode), file.path));
  }
  for (const Link& link : root.links) SPC_TRY(conveniences.made(make_link(link), link.path));
  SPC_TRY_DURING("--container-mounts",
                 attach_targets(root, made, root.dev_targets, root.targets.size(), attach));
  conveniences.tell();
  return {};
}

std::string not_ours(const std::string& paths) {
  return "the image belongs to another user: left as they are in the image: " + printable(paths);
}

Result<void> set_up_root(const RootSetup& root, int builder) {
  SPC_TRY(set_up_root(root, attach_by(builder)));
  if (root.before_others) SPC_TRY(root.before_others());
  TaskMessage message;
  message.kind = TaskMessageKind::set_up_done;
  message.text.set(root.for_other_tasks);
  message.asks_host = root.asks_host;
  return send_struct(builder, message);
}

}  // namespace spc
