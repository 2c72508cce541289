#pragma once

#include <sys/mount.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// A mount (or tree of mounts) that is not attached anywhere yet; dropping it unmounts it.
using DetachedMount = UniqueFd;

/// A copy of the tree at `source` (an O_PATH descriptor of this mount namespace, or AT_FDCWD and a path), with these
/// MOUNT_ATTR_* besides its own. It hands no mount back to the host; MS_SLAVE: it receives the host's later ones, MS_PRIVATE:
/// it does not.
Result<DetachedMount> clone_tree(int source, const char* path, bool recursive, std::uint64_t attributes,
                                 std::uint64_t propagation = MS_SLAVE);

/// From now on nothing can be written through the mount of the caller's root.
Result<void> make_root_read_only();

/// Attaches at the directory or file that `target` (O_PATH) stands for.
Result<void> attach(DetachedMount tree, int target);

/// A file system of the kernel's that shows the namespaces of the caller: proc, sysfs, mqueue; nosuid, nodev, noexec and more.
Result<DetachedMount> new_kernel_view(const char* type, unsigned more_attributes = 0);

/// A tmpfs of at most `size` (tmpfs syntax: bytes or N%), nosuid, nodev and with these MOUNT_ATTR_*; its root directory has
/// this owner and mode (octal).
Result<DetachedMount> new_tmpfs(const std::string& size, uid_t uid, gid_t gid, const char* mode, unsigned attributes = 0);

/// The squashfs on block device `source`, read-only, nosuid, nodev; `id_map` (a user namespace) maps the owners, -1: none.
/// A kernel that cannot map the owners of a squashfs makes it EOPNOTSUPP.
Result<DetachedMount> new_squashfs(const std::string& source, int id_map);

/// What the server at the other end of `device` (/dev/fuse) shows, to everybody whom owners and modes admit, read-only,
/// nosuid, nodev and with these MOUNT_ATTR_*.
Result<DetachedMount> new_fuse(int device, uid_t uid, gid_t gid, unsigned attributes);

}  // namespace spc::agent
