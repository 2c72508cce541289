#include "tool/images/image_mount.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <functional>
#include <span>
#include <utility>

#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "base/system_call.hpp"
#include "mount/mount.hpp"
#include "protocol/fuse.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

namespace {

Result<UniqueFd> open_directory(int parent, const char* name) {
  return own(::openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC),
             "open directory " + in_quotes(name));
}

Result<void> make_directory(int parent, const char* name, mode_t mode) {
  return check(::mkdirat(parent, name, mode), "make directory " + in_quotes(name), EEXIST);
}

/// Attaches `tree` at the directory `name` of the current one, which is created if missing.
Result<void> attach_at(const std::string& name, DetachedMount tree) {
  SPC_TRY(make_directory(AT_FDCWD, name.c_str(), 0700));
  const auto target = SPC_TRY(open_directory(AT_FDCWD, name.c_str()));
  return attach(std::move(tree), target.get());
}

/// Shows a directory, without the mounts in it, at `name` in the current one.
Result<void> bind_directory(int directory, const std::string& name) {
  auto tree = SPC_TRY(
      clone_tree(directory, "", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, MS_SLAVE, AT_EMPTY_PATH));
  return attach_at(name, std::move(tree));
}

/// Mounts a tmpfs on the directory, visible only in this mount namespace.
Result<UniqueFd> make_workspace(const std::string& place, const WritableLayer& writable) {
  const MountDefaults own_files{
      .uid = ::geteuid(), .gid = ::getegid(), .tmpfs_size = writable.size};
  auto tmpfs = SPC_TRY(new_tmpfs(own_files, "0755"));
  const auto below = SPC_TRY(open_directory(AT_FDCWD, place.c_str()));
  SPC_TRY(attach(std::move(tmpfs), below.get()));
  auto workspace = SPC_TRY(open_directory(AT_FDCWD, place.c_str()));
  for (const char* name : {"root", "up", "work", "empty", "kept"})
    SPC_TRY(make_directory(workspace.get(), name, 0755));
  SPC_TRY(make_directory(workspace.get(), "tmp", 01777));
  SPC_TRY(check(::fchmodat(workspace.get(), "tmp", 01777, 0), "prepare /tmp"));
  return workspace;
}

/// In a server that is started in the container's mount namespace: leaves it. A server in it would
/// keep its own mounts, and so itself, alive when the caller is killed.
bool leave_mounts() { return ::unshare(CLONE_NEWNS) == 0; }

/// `for_root`: the files belong to root, as whom the caller runs in its user namespace.
Result<FileServer> start_server(std::span<SquashfsFile> files, bool for_root,
                                std::function<bool()> prepare) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const std::string path = own_program("fuse");
  Program program{.path = path,
                  .arguments = {path, kFuseTogetherWord},
                  .environment = std::vector<std::string>(),
                  .descriptors = {{STDERR_FILENO, STDERR_FILENO}, {theirs.get(), kFuseStatus}},
                  .prepare = std::move(prepare)};
  std::string& offsets = program.arguments.emplace_back();
  for (int number = kFuseImage; const SquashfsFile& file : files) {
    offsets += std::to_string(file.offset) + (for_root ? kFuseForRoot : "") + ",";
    program.descriptors.push_back({file.file.get(), number});
    number += kFusePerFile;
  }
  auto child = Child::start(program);
  if (!child) return std::move(child).error().hint("install spank-container again");
  for (SquashfsFile& file : files) file.file.reset();
  return FileServer{.program = *std::move(child), .socket = std::move(ours), .files = files.size()};
}

/// Opens the devices of a server's mounts and passes them to it. A device belongs to the user
/// namespace in which it is opened, and the mount must belong to the same one.
Result<std::vector<UniqueFd>> pass_devices(const FileServer& server) {
  std::vector<UniqueFd> devices;
  std::vector<int> passed;
  for (std::size_t i = 0; i < server.files; ++i) {
    devices.emplace_back(
        ::open("/dev/fuse", O_RDWR | O_CLOEXEC | (server.files > 1 ? O_NONBLOCK : 0)));
    if (!devices.back())
      return Error::from_errno(errno, "open \"/dev/fuse\"")
          .hint("run scontainer doctor for the fix");
    passed.push_back(devices.back().get());
  }
  // A server that cannot serve its files has reported why and ended.
  [[maybe_unused]] const auto sent = send_struct(server.socket.get(), FuseOrder::devices, passed);
  return devices;
}

/// Mounts the server's files at `names` in the current directory.
Result<void> mount_files(const FileServer& server, std::span<const std::string> names) {
  const auto devices = SPC_TRY(pass_devices(server));
  FuseStatus status;
  SPC_TRY_DURING("serve a layer", receive_struct(server.socket.get(), status));
  if (status.error.is_set()) return status.error.error();
  for (std::size_t i = 0; i < server.files; ++i) {
    auto mount =
        SPC_TRY_DURING("serve a layer", new_fuse(devices[i].get(), ::geteuid(), ::getegid(), 0));
    SPC_TRY(attach_at(names[i], std::move(mount)));
  }
  SPC_TRY_DURING("serve a layer", send_struct(server.socket.get(), FuseOrder::begin));
  return {};
}

/// Mounts a directory of the user's at `name` in the current directory.
Result<void> mount_directory(int directory, const std::string& name) {
  // The directory was opened in the previous mount namespace. It has the same path in this one.
  std::array<char, PATH_MAX> path{};
  struct stat wanted {};
  struct stat found {};
  const std::string link = "/proc/self/fd/" + std::to_string(directory);
  SPC_TRY(
      check(::readlink(link.c_str(), path.data(), path.size() - 1), "find the image directory"));
  const auto here = SPC_TRY(open_directory(AT_FDCWD, path.data()));
  SPC_TRY(check(::fstat(directory, &wanted), "stat the image directory"));
  SPC_TRY(check(::fstat(here.get(), &found), "stat the image directory"));
  if (found.st_dev != wanted.st_dev || found.st_ino != wanted.st_ino) {
    return Error(ErrorKind::unavailable, "the image directory was moved");
  }
  SPC_TRY_DURING("mount the image directory", bind_directory(here.get(), name));
  return {};
}

bool keeps(const WritableLayer& writable) {
  return writable.wanted && writable.keep && !writable.directory.empty();
}

/// Locks the directory: two overlays with one upper directory would not see each other's changes.
Result<UniqueFd> lock_kept(const std::string& path) {
  SPC_TRY(make_directories(path));
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open " + in_quotes(path));
  if (::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Error::from_errno(errno, "lock " + in_quotes(path));
    return Error(ErrorKind::unavailable, "another container is using " + in_quotes(path))
        .hint("wait for it, or start this one with --readonly");
  }
  return directory;
}

/// Mounts the directory that keeps changes as `kept` in the current directory.
Result<void> mount_kept(const std::string& path) {
  const auto directory = SPC_TRY(open_directory(AT_FDCWD, path.c_str()));
  SPC_TRY_DURING(formatted("use directory {} for changes", in_quotes(path)),
                 bind_directory(directory.get(), "kept"));
  SPC_TRY(make_directory(AT_FDCWD, "kept/up", 0755));
  return make_directory(AT_FDCWD, "kept/work", 0755);
}

/// Mounts the overlay with `userxattr`, which unprivileged mounts need. Renaming a directory of the
/// image then fails with EXDEV, on which mv, dpkg and pip copy it.
/// `layers`: their names, bottom one first.
Result<bool> mount_overlay(const std::vector<std::string>& layers, const WritableLayer& writable) {
  const bool shows_kept = !writable.directory.empty() && !keeps(writable);
  std::string lower = "lowerdir=";
  if (shows_kept) lower += "kept/up:";
  for (std::size_t i = layers.size(); i-- > 0;) lower += layers[i] + ":";
  const std::string upper =
      keeps(writable) ? ",upperdir=kept/up,workdir=kept/work" : ",upperdir=up,workdir=work";
  // Overlayfs needs one lower layer even if the image has none, two if there is no upper layer, and
  // accepts at most 500.
  std::size_t count = layers.size() + (shows_kept ? 1 : 0);
  const auto mount_with = [&](std::size_t least, const std::string& more) {
    for (; count < least; ++count) lower += count + 1 < least ? "up:" : "empty:";
    const std::string options = lower.substr(0, lower.size() - 1) + more + ",userxattr";
    return ::mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
  };
  if (writable.wanted && mount_with(1, upper)) return true;
  if (writable.wanted && (errno != EINVAL || keeps(writable))) {
    const int err = errno;
    auto error = Error::from_errno(err, "mount the container's file system");
    return keeps(writable)
               ? std::move(error).hint("changes need a local file system: ext4, xfs, btrfs")
               : std::move(error);
  }
  if (!mount_with(2, "")) return Error::from_errno(errno, "mount the container's file system");
  return false;
}

/// Ends the use of names relative to the workspace.
Result<MountedImage> return_to(int directory, MountedImage image) {
  if (directory >= 0 && ::fchdir(directory) != 0)
    return Error::from_errno(errno, "return to the work directory");
  return image;
}

}  // namespace

Result<void> ImageFiles::start_servers(RootMap map) {
  for (std::size_t at = 0; at < layers.size(); at += kMostTogether) {
    const auto some = std::span(layers).subspan(at, std::min(kMostTogether, layers.size() - at));
    servers.push_back(SPC_TRY(start_server(some, map == RootMap::root, {})));
  }
  return {};
}

Result<void> add_data(MountedImage& image, UniqueFd file) {
  SquashfsFile data[] = {{.file = std::move(file)}};
  const std::string place[] = {image.place + "/data" + std::to_string(image.data)};
  auto server = SPC_TRY(start_server(data, false, leave_mounts));
  SPC_TRY(mount_files(server, place));
  image.servers.push_back(std::move(server.program));
  ++image.data;
  return {};
}

Result<MountedImage> mount_image(ImageFiles files, const std::string& place,
                                 const WritableLayer& wanted) {
  MountedImage image;
  WritableLayer writable = wanted;
  const UniqueFd before(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (keeps(writable)) {
    image.lock = SPC_TRY(lock_kept(writable.directory));
  } else if (::access((writable.directory + "/up").c_str(), F_OK) != 0) {
    writable.directory.clear();  // there are no changes yet
  }
  image.place = place;
  const auto workspace = SPC_TRY(make_workspace(place, writable));
  // Use names relative to the workspace, so that mount options contain no path of the user.
  if (::fchdir(workspace.get()) != 0) return Error::from_errno(errno, "enter the workspace");
  if (files.servers.empty() && !files.layers.empty())
    files.servers.push_back(SPC_TRY(start_server(files.layers, false, leave_mounts)));
  std::vector<std::string> names;
  if (files.directory) names.emplace_back("0");
  const std::size_t first = names.size();
  for (std::size_t i = 0; i < files.layers.size(); ++i)
    names.push_back(std::to_string(names.size()));
  std::size_t mounted = first;
  for (FileServer& server : files.servers) {
    SPC_TRY(mount_files(server, std::span(names).subspan(mounted, server.files)));
    image.servers.push_back(std::move(server.program));
    mounted += server.files;
  }
  for (std::size_t i = 0; i < files.layers.size(); ++i) {
    const std::string upper = names[first + i] + "/upper";
    struct stat status {};
    if (files.layers[i].is_addition && ::lstat(upper.c_str(), &status) == 0 &&
        S_ISDIR(status.st_mode))
      names[first + i] = upper;
  }
  if (files.directory && writable.in_image) {
    SPC_TRY(mount_directory(files.directory.get(), "root"));
    image.root = SPC_TRY(open_directory(workspace.get(), "root"));
    return return_to(before.get(), std::move(image));
  }
  if (files.directory) SPC_TRY(mount_directory(files.directory.get(), "0"));
  for (const UniqueFd& changes : files.changes) {
    names.push_back(std::to_string(names.size()));
    SPC_TRY(mount_directory(changes.get(), names.back()));
  }
  if (!writable.directory.empty()) SPC_TRY(mount_kept(writable.directory));
  image.writable = SPC_TRY(mount_overlay(names, writable));
  image.root = SPC_TRY(open_directory(workspace.get(), "root"));
  return return_to(before.get(), std::move(image));
}

Result<MountedImage> mount_again(const std::string& base, std::size_t layers,
                                 const std::vector<std::string>& changes, const std::string& size) {
  const WritableLayer writable{.size = size};
  MountedImage image;
  image.place = base + "/box";
  const auto shared = SPC_TRY(open_directory(AT_FDCWD, base.c_str()));
  SPC_TRY(make_directory(shared.get(), "box", 0755));
  const auto workspace = SPC_TRY(make_workspace(image.place, writable));
  if (::fchdir(workspace.get()) != 0) return Error::from_errno(errno, "enter the workspace");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < layers; ++i) names.push_back("../" + std::to_string(i));
  for (const std::string& path : changes) {
    const auto directory = SPC_TRY(open_directory(AT_FDCWD, path.c_str()));
    names.push_back(std::to_string(names.size()));
    SPC_TRY_DURING("mount a snapshot", bind_directory(directory.get(), names.back()));
  }
  image.writable = SPC_TRY(mount_overlay(names, writable));
  image.root = SPC_TRY(open_directory(workspace.get(), "root"));
  return image;
}

}  // namespace spc::tool
