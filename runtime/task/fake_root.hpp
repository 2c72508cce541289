#pragma once

#include "base/result.hpp"

namespace spc {

/// For a process that is root in a user namespace in which nobody else exists: from now on, for it and all it starts, what
/// dpkg, rpm and their scripts do as root and the kernel cannot do there (giving files to others, becoming another user,
/// making devices) says that it is done, and does nothing. The process must have no_new_privs. No privilege comes of it.
Result<void> fake_root_calls();

}  // namespace spc
