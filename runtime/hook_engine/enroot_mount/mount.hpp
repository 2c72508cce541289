#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "hook_engine/enroot_fstab.hpp"

namespace spc {

/// What a line means with its source and target opened. `source` is empty where there is none in the tree.
struct OpenedMount {
  const EnrootFstabLine& line;
  UniqueFd source;
  UniqueFd target;
};

/// Has it mounted by the start of the step, at the other end of `socket`: binds and tmpfs, whose flags can be added to and not
/// taken away. `remount` mounts the target on itself; what is mounted cannot be taken away or moved: EPERM.
Result<void> mount_by_step(const OpenedMount& mount, int socket);

/// Mounts as the calling process, which needs CAP_SYS_ADMIN in its user namespace.
Result<void> mount_alone(const OpenedMount& mount);

}  // namespace spc
