#pragma once

#include "base/result.hpp"

namespace spc::fuse {

/// From here on, all threads of this process can only compute, use their open descriptors and exit
/// (base/process/sandbox.hpp).
Result<void> enter_fuse_sandbox();

}  // namespace spc::fuse
