#pragma once

#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// New namespaces of these kinds (`flags`: CLONE_NEW*; `names`: those below /proc/PID/ns), made by a child that enters the
/// user namespace `owner` first (-1: none), so that they belong to it. A new mount namespace is a copy of the caller's, in
/// which nothing that was there can be unmounted or lose a flag. `proc` is the node's /proc.
Result<std::vector<UniqueFd>> new_namespaces(int proc, int owner, int flags, const std::vector<const char*>& names);

}  // namespace spc
