#pragma once

#include <cstdint>
#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A mount (or tree of mounts) that is not attached anywhere yet; dropping it unmounts it.
using DetachedMount = UniqueFd;

/// A copy of the tree at `source` (an O_PATH descriptor of this mount namespace, or AT_FDCWD and a path), which receives
/// later mounts of the host but hands none back.
Result<DetachedMount> clone_tree(int source, const char* path, bool recursive);

/// Sets mount attributes (MOUNT_ATTR_*) on the tree.
Result<void> set_attributes(const DetachedMount& tree, std::uint64_t attributes, bool recursive);

/// Attaches at the directory or file that `target` (O_PATH) stands for.
Result<void> attach(DetachedMount tree, int target);

/// A tmpfs of at most `size` (tmpfs syntax: bytes or N%), mode 0700, nosuid, nodev.
Result<DetachedMount> new_tmpfs(const std::string& size);

/// The squashfs on block device `source`, read-only, nosuid, nodev; `id_map` (a user namespace) maps the owners, -1: none.
Result<DetachedMount> new_squashfs(const char* source, int id_map);

}  // namespace spc
