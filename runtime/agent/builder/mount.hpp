#pragma once

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/builder/loop_device.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// A detached mount (or tree of mounts); dropping it unmounts it.
using DetachedMount = UniqueFd;

/// A copy of the tree at `source` (an O_PATH descriptor of this mount namespace, or AT_FDCWD and a
/// path) with all that is mounted in it, and with these MOUNT_ATTR_* added to its own. It
/// propagates no mount to the host; with MS_SLAVE it receives the host's later ones, with
/// MS_PRIVATE it does not, with MS_UNBINDABLE it cannot be bound elsewhere either. Without
/// AT_RECURSIVE it shows what mounts in it cover, so that is for the container's own root alone.
Result<DetachedMount> clone_tree(int source, const char* path, std::uint64_t attributes,
                                 std::uint64_t propagation = MS_SLAVE,
                                 unsigned scope = AT_EMPTY_PATH | AT_RECURSIVE);

/// Makes the mount of the caller's root read-only.
Result<void> make_root_read_only();

/// Attaches at the directory or file `target` (O_PATH).
Result<void> attach(DetachedMount tree, int target);

/// A new one of the kernel's file systems: proc, sysfs and mqueue show the caller's namespaces, a
/// devpts its own terminals.
Result<DetachedMount> new_kernel_view(const char* type, std::uint64_t attributes,
                                      const char* option = nullptr, const char* value = "");

/// A tmpfs of at most `size` (tmpfs syntax: bytes or N%), nosuid, nodev and with these
/// MOUNT_ATTR_*; its root directory has this owner and mode (octal). `inodes`: how many files,
/// `huge`: as tmpfs(5) names it; 0 and "": as the kernel does.
Result<DetachedMount> new_tmpfs(const std::string& size, uid_t uid, gid_t gid, const char* mode,
                                unsigned attributes = 0, std::uint64_t inodes = 0,
                                const char* huge = "");

/// The squashfs or erofs in a layer's file, by a loop device, read-only, nosuid, nodev. Counts in
/// `shared` a device that there was already. EOPNOTSUPP on a kernel that cannot make the user its
/// owner like this, ENODEV on one that has no such file system.
Result<DetachedMount> new_layer(const LayerFile& layer, const LayerOwner& owner,
                                std::uint32_t& shared);

/// The file system of the server at the other end of `device` (/dev/fuse), accessible by owner and
/// mode, read-only, nosuid, nodev and with these MOUNT_ATTR_*.
Result<DetachedMount> new_fuse(int device, uid_t uid, gid_t gid, unsigned attributes);

}  // namespace spc::agent
