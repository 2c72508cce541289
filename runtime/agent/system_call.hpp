#pragma once

#include <cerrno>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A system call that answers -1 when it fails; `what` names action and object.
inline Result<void> check(long answer, std::string_view what) {
  if (answer == -1) return Error::from_errno(errno, what);
  return {};
}

/// The same for one that gives a descriptor.
inline Result<UniqueFd> own(int descriptor, std::string_view what) {
  if (descriptor == -1) return Error::from_errno(errno, what);
  return UniqueFd(descriptor);
}

}  // namespace spc
