#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/enroot_fstab.hpp"

namespace spc {

/// A parsed line with source and target opened. `source` is empty if it is not a path.
struct OpenedMount {
  const EnrootFstabLine& line;
  UniqueFd source;
  UniqueFd target;
};

/// Lets the start of the step mount it, through `socket`: binds and tmpfs, with flags that can be
/// added but not removed. `remount` mounts the target on itself; unmounting and moving is refused:
/// EPERM.
Result<void> mount_by_step(const OpenedMount& mount, int socket);

/// Mounts as the calling process, which needs CAP_SYS_ADMIN in its user namespace.
Result<void> mount_alone(const OpenedMount& mount);

}  // namespace spc
