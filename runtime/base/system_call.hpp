#pragma once

#include <cerrno>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Checks a system call that returns -1 on failure; `what` names action and object. `fine`: the
/// errno of a failure to ignore.
inline Result<void> check(long answer, std::string_view what, int fine = 0) {
  if (answer == -1 && errno != fine) return Error::from_errno(errno, what);
  return {};
}

/// Takes the descriptor that a system call returns.
inline Result<UniqueFd> own(int descriptor, std::string_view what, std::string_view hint = {}) {
  if (descriptor == -1) return Error::from_errno(errno, what).hint(hint);
  return UniqueFd(descriptor);
}

}  // namespace spc
