#pragma once

#include <cstddef>
#include <vector>

#include "base/result.hpp"
#include "protocol/fuse.hpp"

namespace spc::fuse {

/// A joining server: waits for what another server of the mount says, takes its file, and makes its own device one of the mount.
Result<FuseLoan> borrow();

/// The answer to a joining server at the other end of `socket`. One that is gone, or does not read, gets none.
void lend(int socket, const FuseLoan& what);

/// What the kernel has said to the mount's first server, and says only once: for libfuse, which answers nothing before it. The
/// kernel has never asked it under this number, and ignores the answer.
std::vector<std::byte> first_request();

}  // namespace spc::fuse
