#pragma once

#include "base/result.hpp"

namespace spc {

/// From here on all threads of this process can compute, use the descriptors they have and end. A file that takes the
/// process over can open, connect, start and signal nothing; any other system call kills it. Threads must exist before.
Result<void> enter_fuse_sandbox();

}  // namespace spc
