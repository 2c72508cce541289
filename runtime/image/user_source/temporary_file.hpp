#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::user_source {

/// An unnamed file for about `size` bytes, in the first of $TMPDIR, /tmp and /var/tmp with enough
/// space: it vanishes with its last descriptor.
Result<UniqueFd> temporary_file(std::uint64_t size);

}  // namespace spc::user_source
