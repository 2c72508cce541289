#pragma once

#include <fcntl.h>
#include <sys/mount.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/task.hpp"

namespace spc {

/// A detached mount (or tree of mounts); dropping it unmounts it.
using DetachedMount = UniqueFd;

/// Values that all mounts of one container share.
struct MountDefaults {
  uid_t uid = 0;  ///< owner of a tmpfs, as the caller's user namespace numbers it
  gid_t gid = 0;
  /// Of a tmpfs without a size of its own, in tmpfs syntax: bytes or N%. The default is the
  /// kernel's.
  std::string tmpfs_size = "50%";
  int keeper = -1;  ///< a socket that receives each tmpfs; -1: none
  /// Device numbers of the file systems of /dev and /dev/pts; set by find_devices().
  dev_t dev = ~dev_t{}, pts = ~dev_t{};

  /// Looks /dev and /dev/pts up in the caller's mount namespace.
  void find_devices();
};

// --- any mount ---

/// Copies the tree at `path` in `source` (an O_PATH descriptor of this mount namespace, itself if
/// `path` is empty) with all mounts in it, and adds these MOUNT_ATTR_* to its own. The copy
/// propagates no mount to the host. With MS_SLAVE it receives the host's later mounts, with
/// MS_PRIVATE it does not. With MS_UNBINDABLE it cannot be bound elsewhere either. Without
/// AT_RECURSIVE it shows the files that its mounts cover: root does that with a container's own
/// root alone, and the kernel refuses it in a user namespace.
Result<DetachedMount> clone_tree(int source, const char* path, std::uint64_t attributes,
                                 std::uint64_t propagation = MS_SLAVE,
                                 unsigned scope = AT_EMPTY_PATH | AT_RECURSIVE);

/// Options of a file system. One without a value is a flag, one without a name is ignored.
using FileSystemOptions = std::initializer_list<std::pair<const char*, std::string>>;

/// Mounts a new file system with these MOUNT_ATTR_*. proc, sysfs and mqueue show the caller's
/// namespaces, devpts its own terminals.
Result<DetachedMount> new_mount(const std::string& type, FileSystemOptions options,
                                unsigned attributes);

/// Mounts a tmpfs, nosuid and nodev. Its root directory has this mode (octal) and the owner in
/// `defaults`. Size, number of files, use of huge pages and further flags are those of `source`.
Result<DetachedMount> new_tmpfs(const MountDefaults& defaults, const char* mode,
                                const TaskMessage& source = {});

/// Mounts the file system of the server at the other end of `device` (/dev/fuse), accessible by
/// owner and mode, read-only, nosuid, nodev and with these MOUNT_ATTR_*.
Result<DetachedMount> new_fuse(int device, uid_t uid, gid_t gid, unsigned attributes);

/// Attaches `tree` at the directory or file `target` (O_PATH).
Result<void> attach(DetachedMount tree, int target);

// --- a container's root ---

/// Mounts a source that is not served: a devpts, a tmpfs, or a copy of the tree at `path` (O_PATH).
/// Copies from the file systems of /dev and /dev/pts keep their devices: the container has them
/// anyway.
Result<DetachedMount> mount_source(const TaskMessage& source, int path,
                                   const MountDefaults& defaults);

/// Appends the HostTrees proc, sys and dev. /proc is a copy of the host's, not a new one: that
/// keeps the site's hidepid. File systems that show a namespace are new where the container has its
/// own (NamespaceBits), which the caller has entered.
Result<void> add_host_trees(std::vector<DetachedMount>& trees, std::uint32_t namespaces);

/// Makes the mount of the caller's root read-only.
Result<void> make_root_read_only();

/// Changes the root of the calling process and its namespace to the container's.
Result<void> pivot_into(int root);

}  // namespace spc
