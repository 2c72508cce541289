#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/enroot_fstab.hpp"

namespace spc {

// --- mount ---

/// A parsed line with opened source and target. `source` is empty if it is not a path.
struct OpenedMount {
  const EnrootFstabLine& line;
  UniqueFd source;
  UniqueFd target;
};

/// Lets the start of the step make the mount, through `socket`: binds and tmpfs, with flags that
/// can be added but not removed. `remount` mounts the target on itself. Unmounting and moving is
/// refused: EPERM.
Result<void> mount_by_step(const OpenedMount& mount, int socket);

/// Mounts as the calling process, which needs CAP_SYS_ADMIN in its user namespace.
Result<void> mount_alone(const OpenedMount& mount);

// --- enroot mount ---

/// Runs `enroot-mount [--root DIR] [--pass N] FSTAB...|-`: mounts the entries of the files below
/// DIR, as enroot's tool of that name does for its hooks. In a step the start of the container
/// makes the mounts (protocol/hook_mount.hpp), elsewhere this process does, in its user namespace.
/// Returns the exit status.
int enroot_mount(int argc, char** argv);

}  // namespace spc
