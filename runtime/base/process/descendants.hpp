#pragma once

#include <sys/types.h>

namespace spc {

/// Kills the process group `first` (not above 0: none) and all children of the calling process,
/// which must be a subreaper (PR_SET_CHILD_SUBREAPER), until there are none: orphaned grandchildren
/// become its children. Gives up after 5 seconds.
void end_descendants(pid_t first);

}  // namespace spc
