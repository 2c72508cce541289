#include "tool/images/image_mount.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "base/format.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "protocol/fuse.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {
namespace {

static_assert(kFuseDevice == 3 && kFuseImage == 4 && kFuseStatus == 5,
              "descriptors are passed in this order");

Result<UniqueFd> open_directory(int parent, const char* name) {
  UniqueFd directory(::openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open directory " + in_quotes(name));
  return directory;
}

Result<void> make_directory(int parent, const char* name, mode_t mode) {
  if (::mkdirat(parent, name, mode) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, std::string("make directory ") + name);
  }
  return {};
}

/// From here on the directory is a tmpfs that only we see.
Result<UniqueFd> make_workspace(const std::string& place, const WritableLayer& writable) {
  const std::string options = "mode=0755,size=" + writable.size;
  if (::mount("spank-container", place.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) !=
      0) {
    return Error::from_errno(errno, "mount a tmpfs");
  }
  auto workspace = SPC_TRY(open_directory(AT_FDCWD, place.c_str()));
  for (const char* name : {"root", "up", "work", "empty", "kept"})
    SPC_TRY(make_directory(workspace.get(), name, 0755));
  SPC_TRY(make_directory(workspace.get(), "tmp", 01777));
  if (::fchmodat(workspace.get(), "tmp", 01777, 0) != 0)
    return Error::from_errno(errno, "prepare /tmp");
  return workspace;
}

/// Mounts a layer at `name` in the current directory.
Result<HelperProgram> mount_layer(const SquashfsFile& layer, const std::string& name) {
  // The device belongs to the user namespace in which it is opened, and so must the mount.
  const UniqueFd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device)
    return Error::from_errno(errno, "open \"/dev/fuse\"").hint("run scontainer doctor for the fix");
  auto [ours, theirs] = SPC_TRY(socket_pair());
  auto server = SPC_TRY(HelperProgram::start(own_program("fuse"), {std::to_string(layer.offset)},
                                             {device.get(), layer.file.get(), theirs.get()},
                                             HelperProgram::Environment::empty));
  theirs.reset();
  FuseStatus status;
  SPC_TRY_DURING("serve a layer", receive_struct(ours.get(), status));
  if (status.error.is_set()) return status.error.error();

  SPC_TRY(make_directory(AT_FDCWD, name.c_str(), 0700));
  const std::string options = "fd=" + std::to_string(device.get()) +
                              ",rootmode=40000,user_id=" + std::to_string(::geteuid()) +
                              ",group_id=" + std::to_string(::getegid()) +
                              ",allow_other,default_permissions";
  if (::mount("spank-container", name.c_str(), "fuse", MS_RDONLY | MS_NOSUID | MS_NODEV,
              options.c_str()) != 0) {
    return Error::from_errno(errno, "mount a layer through FUSE");
  }
  SPC_TRY_DURING("serve a layer", send_struct(ours.get(), FuseOrder::begin));
  return server;
}

/// Mounts a directory of the user's at `name` in the current directory.
Result<void> mount_directory(int directory, const std::string& name) {
  SPC_TRY(make_directory(AT_FDCWD, name.c_str(), 0700));
  // It was opened in the mount namespace that we have left; in ours it has the same path.
  std::array<char, PATH_MAX> path{};
  struct stat wanted {};
  struct stat found {};
  const std::string link = "/proc/self/fd/" + std::to_string(directory);
  if (::readlink(link.c_str(), path.data(), path.size() - 1) < 0 ||
      ::fstat(directory, &wanted) != 0 || ::stat(path.data(), &found) != 0) {
    return Error::from_errno(errno, "stat the image directory");
  }
  if (found.st_dev != wanted.st_dev || found.st_ino != wanted.st_ino) {
    return Error(ErrorKind::unavailable, "the image directory was moved");
  }
  const UniqueFd tree(::open_tree(AT_FDCWD, path.data(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree || ::move_mount(tree.get(), "", AT_FDCWD, name.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return Error::from_errno(errno, "mount the image directory");
  }
  return {};
}

bool keeps(const WritableLayer& writable) {
  return writable.wanted && writable.keep && !writable.directory.empty();
}

/// Two file systems that write into one directory would each not see what the other does.
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

/// The directory that keeps what is written, as `kept` in the current directory.
Result<void> mount_kept(const std::string& path) {
  const UniqueFd tree(::open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree || ::move_mount(tree.get(), "", AT_FDCWD, "kept", MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return Error::from_errno(errno, formatted("use directory {} for changes", in_quotes(path)));
  }
  SPC_TRY(make_directory(AT_FDCWD, "kept/up", 0755));
  return make_directory(AT_FDCWD, "kept/work", 0755);
}

/// With `userxattr`, as everything here is without privilege. Renaming a directory of the image is
/// EXDEV then, which mv, dpkg and pip answer by copying it.
Result<bool> mount_overlay(std::size_t layers, const WritableLayer& writable) {
  const bool shows_kept = !writable.directory.empty() && !keeps(writable);
  std::string lower = "lowerdir=";
  if (shows_kept) lower += "kept/up:";
  for (std::size_t i = layers; i-- > 0;) lower += std::to_string(i) + ":";
  const std::string upper =
      keeps(writable) ? ",upperdir=kept/up,workdir=kept/work" : ",upperdir=up,workdir=work";
  // Overlayfs wants a lower layer even for an image that has none, two when there is no upper one,
  // and never more than 500.
  std::size_t count = layers + (shows_kept ? 1 : 0);
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

}  // namespace

Result<void> add_data(MountedImage& image, UniqueFd file) {
  const SquashfsFile data{.file = std::move(file)};
  const std::string place = image.place + "/data" + std::to_string(image.data);
  image.servers.push_back(SPC_TRY(mount_layer(data, place)));
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
    writable.directory.clear();  // nothing has been kept yet
  }
  image.place = place;
  const auto workspace = SPC_TRY(make_workspace(place, writable));
  // Names relative to it: no path of the user in the options of a mount.
  if (::fchdir(workspace.get()) != 0) return Error::from_errno(errno, "enter the workspace");
  for (std::size_t i = 0; i < files.layers.size(); ++i) {
    image.servers.push_back(SPC_TRY(mount_layer(files.layers[i], std::to_string(i))));
    files.layers[i].file.reset();
  }
  if (files.directory) SPC_TRY(mount_directory(files.directory.get(), "0"));
  if (!writable.directory.empty()) SPC_TRY(mount_kept(writable.directory));
  image.writable = SPC_TRY(mount_overlay(files.directory ? 1 : files.layers.size(), writable));
  image.root = SPC_TRY(open_directory(workspace.get(), "root"));
  if (before && ::fchdir(before.get()) != 0)
    return Error::from_errno(errno, "return to the work directory");
  return image;
}

}  // namespace spc::tool
