#pragma once

#include <sys/types.h>

#include "base/result.hpp"

namespace spc {

/// The user's identity in the container: the user's own ID, or root, who then owns the user's
/// files.
enum class RootMap { self, root };

/// Moves the calling process, which must be single-threaded, into a user namespace with all
/// capabilities, where only its own user and group exist, and into a mount namespace of its own.
/// Its mounts are invisible outside and end with its last process. Needs neither privilege nor
/// newuidmap.
Result<void> enter_user_namespace(RootMap map);

}  // namespace spc
