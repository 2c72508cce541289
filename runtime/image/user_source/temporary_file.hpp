#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A file without a name for about `size` bytes, in the first of $TMPDIR, /tmp and /var/tmp that has the room: it vanishes
/// with the last descriptor of it.
Result<UniqueFd> temporary_file(std::uint64_t size);

}  // namespace spc
