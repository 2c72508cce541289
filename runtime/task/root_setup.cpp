#include "task/root_setup.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/file.hpp"
#include "base/socket.hpp"

namespace spc {
namespace {

constexpr char kWhatFits[] = "source and target must both be directories or both be files";

std::string parent_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

Result<void> make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0755) != 0 && errno != EEXIST && errno != EROFS) {
      return Error::from_errno(errno, "make directory " + in_quotes(part) + " in the container").hint("choose another target");
    }
    if (slash == std::string::npos) return {};
  }
}

Result<UniqueFd> open_target_through(const std::string& path, bool directory, int links_left) {
  const int flags = O_PATH | (directory ? O_DIRECTORY : 0);
  UniqueFd target = open_inside(path.c_str(), flags);
  if (target) return target;
  if (errno != ENOENT) return Error::from_errno(errno, "open mount target " + in_quotes(path)).hint(kWhatFits);

  char link[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), link, sizeof link);
  if (size > 0 && links_left > 0) {
    const std::string next(link, static_cast<std::size_t>(size));
    return open_target_through(next[0] == '/' ? next : parent_of(path) + "/" + next, directory, links_left - 1);
  }
  if (directory) {
    SPC_TRY(make_directories(path));
  } else {
    SPC_TRY(make_directories(parent_of(path)));
    const UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!made) return Error::from_errno(errno, "make file " + in_quotes(path) + " in the container");
  }
  target = open_inside(path.c_str(), flags);
  if (!target) return Error::from_errno(errno, "open mount target " + in_quotes(path));
  return target;
}

Result<void> hand_over(int builder, std::uint32_t index, const UniqueFd& target, const std::string& shown_as) {
  TaskMessage message;
  message.kind = TaskMessageKind::target;
  message.index = index;
  const int passed[] = {target.get()};
  SPC_TRY(send_struct(builder, message, passed));
  SPC_TRY(receive_struct(builder, message));
  if (message.error != 0) {
    return Error::from_errno(message.error, "mount " + in_quotes(shown_as)).hint(kWhatFits);
  }
  return {};
}

/// Replaces a small text file of the image by what `edit` makes of it. Anything but a regular file of sane size counts as
/// empty and makes way: an image may bring a FIFO or a device of terabytes under this name.
template <typename Edit>
Result<void> rewrite(const std::string& path, const Edit& edit, mode_t mode = 0644) {
  std::string text;
  const UniqueFd old = open_inside(path.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (old && ::fstat(old.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    constexpr std::size_t kSane = 1 << 20;
    if (auto read = read_file(old.get(), kSane)) text = *std::move(read);
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  SPC_TRY(make_directories(parent_of(path)));
  ::unlink(path.c_str());
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) return Error::from_errno(errno, "write " + in_quotes(path) + " in the container");
  SPC_TRY_DURING("write " + in_quotes(path) + " in the container", write_all(file.get(), edit(text)));
  return {};
}

Result<void> make_link(const Link& link) {
  SPC_TRY(make_directories(parent_of(link.path)));
  struct stat status {};
  if (::lstat(link.path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return {};
  ::unlink(link.path.c_str());
  if (::symlink(link.target.c_str(), link.path.c_str()) != 0)
    return Error::from_errno(errno, "make link " + in_quotes(link.path));
  return {};
}

/// What root expects.
Result<void> add_root_entries() {
  SPC_TRY(rewrite("/etc/passwd",
                  [](std::string text) { return with_missing_entry(std::move(text), "root:x:0:0:root:/root:/bin/sh"); }));
  return rewrite("/etc/group", [](std::string text) { return with_missing_entry(std::move(text), "root:x:0:"); });
}

constexpr std::array<const char*, static_cast<std::size_t>(HostTree::count)> kHostTargets = {"/proc", "/sys",     "/dev",
                                                                                             "/tmp",  "/dev/shm", "/dev/mqueue"};

/// Not every container has all of them, nor every node message queues.
bool has_tree(const RootSetup& root, HostTree which) {
  if (which != HostTree::shm && which != HostTree::mqueue) return true;
  return (root.namespaces & own_ipc) != 0 && (which == HostTree::shm || ::access("/dev/mqueue", F_OK) == 0);
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
  if (!root || ::fchmod(root.get(), mode) != 0) return Error::from_errno(errno, "set the mode of " + in_quotes(target));
  return {};
}

/// Field `index` of a colon-separated line.
std::string_view field(std::string_view line, int index) {
  for (; index > 0; --index) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return {};
    line.remove_prefix(colon + 1);
  }
  return line.substr(0, line.find(':'));
}

}  // namespace

UniqueFd open_inside(const char* path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_NO_MAGICLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how)));
}

Result<UniqueFd> open_target(const std::string& path, bool directory) { return open_target_through(path, directory, 40); }

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

Result<void> attach_host_trees(const RootSetup& root, const OpenDirectory& open_directory, const AttachSource& attach) {
  const auto sources = static_cast<std::uint32_t>(root.targets.size());
  const auto made = SPC_TRY(mounts_to_make(root));
  for (std::uint32_t i = 0; i < kHostTargets.size(); ++i) {
    if (!made[i] || !has_tree(root, static_cast<HostTree>(i))) continue;
    const auto target = SPC_TRY(open_directory(kHostTargets[i]));
    SPC_TRY(attach(sources + i, target, kHostTargets[i]));
  }
  return {};
}

Result<void> set_up_root(const RootSetup& root, const AttachSource& attach) {
  const auto sources = static_cast<std::uint32_t>(root.targets.size());
  const auto made = SPC_TRY(mounts_to_make(root));
  if (!root.container_runs && !root.has_host_trees) {
    SPC_TRY(attach_host_trees(
        root, [](const std::string& path) { return open_target(path, true); }, attach));
  }
  for (const std::string& directory : root.directories) SPC_TRY(open_target(directory, true));
  if (!root.passwd_entry.empty()) {
    SPC_TRY(rewrite("/etc/passwd", [&](std::string_view text) { return with_entry(text, root.passwd_entry); }));
  }
  if (!root.system_users.empty()) {
    SPC_TRY(rewrite("/etc/passwd", [&](std::string text) {
      for (const std::string& entry : root.system_users) text = with_missing_entry(std::move(text), entry);
      return text;
    }));
  }
  for (const TextFile& file : root.files) {
    SPC_TRY(rewrite(
        file.path, [&](std::string_view) { return file.text; }, file.mode));
  }
  for (const Link& link : root.links) SPC_TRY(make_link(link));
  if (!root.group_entries.empty()) {
    SPC_TRY(rewrite("/etc/group", [&](std::string text) {
      for (const std::string& entry : root.group_entries) text = with_entry(text, entry);
      return text;
    }));
  }
  if ((root.namespaces & own_user) != 0) SPC_TRY(add_root_entries());
  for (std::uint32_t i = 0; i < sources; ++i) {
    const MountTarget& mount_target = root.targets[i];
    if (!made[kHostTargets.size() + i] || !mount_target.wanted) continue;
    const auto target = SPC_TRY_DURING("--container-mounts", open_target(mount_target.target, mount_target.directory));
    SPC_TRY_DURING("--container-mounts", attach(i, target, mount_target.shown_as));
    if (mount_target.mode) SPC_TRY_DURING("--container-mounts", set_mode(mount_target.target, *mount_target.mode));
  }
  return {};
}

AttachSource attach_by(int builder) {
  return [builder](std::uint32_t index, const UniqueFd& target, const std::string& shown_as) {
    return hand_over(builder, index, target, shown_as);
  };
}

Result<void> set_up_root(const RootSetup& root, int builder) {
  SPC_TRY(set_up_root(root, attach_by(builder)));
  if (root.before_others) SPC_TRY(root.before_others());
  TaskMessage message;
  message.kind = TaskMessageKind::set_up_done;
  message.text.set(root.for_other_tasks);
  message.asks_host = root.asks_host;
  return send_struct(builder, message, std::span(&root.notes, root.notes >= 0 ? 1 : 0));
}

}  // namespace spc
