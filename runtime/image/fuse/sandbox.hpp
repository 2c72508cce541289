#pragma once

#include "base/result.hpp"

namespace spc::fuse {

/// From here on, all threads of this process can only compute, use their open descriptors and exit. A file that takes over
/// the process cannot open, connect, start or signal anything; any other system call kills it. Create threads before.
Result<void> enter_fuse_sandbox();

}  // namespace spc::fuse
