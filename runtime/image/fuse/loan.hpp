#pragma once

#include <cstddef>
#include <vector>

#include "base/result.hpp"
#include "protocol/fuse.hpp"

namespace spc::fuse {

/// Waits for the file. From another server of the mount comes its device, too: then makes its own
/// device one of the mount, and returns true. `served`: is told what is served.
Result<bool> borrow(FuseLoan& served);

/// The answer to a joining server at the other end of `socket`. One that is gone, or does not read,
/// gets none.
void lend(int socket, const FuseLoan& what);

/// What the kernel has said to the mount's first server, and says only once: for libfuse, which
/// answers nothing before it. The kernel has never asked it under this number, and ignores the
/// answer.
std::vector<std::byte> first_request();

}  // namespace spc::fuse
