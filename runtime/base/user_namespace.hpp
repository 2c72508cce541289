#pragma once

#include <sys/types.h>

#include "base/result.hpp"

namespace spc {

/// Who the user is inside: himself, or root as far as his own files go.
enum class RootMap { self, root };

/// Takes the calling process, which must be single-threaded, into a user namespace in which it has every capability and
/// only its own user and group exist, and into a mount namespace of its own: what it mounts from now on nobody else sees,
/// and all of it goes with its last process. No privilege is needed, and no newuidmap.
Result<void> enter_user_namespace(RootMap map);

}  // namespace spc
