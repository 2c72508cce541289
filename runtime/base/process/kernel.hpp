#pragma once

#include <compare>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

struct KernelVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const KernelVersion&) const = default;
};

/// 6.1 of "6.1.0-28-amd64"; 0.0 if it does not begin with two numbers.
KernelVersion kernel_version(std::string_view release);
KernelVersion running_kernel();

inline constexpr KernelVersion kMapsSquashfs{6,
                                             2};   ///< the first that maps the owners of a squashfs
inline constexpr KernelVersion kMapsErofs{5, 19};  ///< the same of an erofs

/// An Error that names the kernel if containers cannot be started with it: mount_setattr(2) is
/// missing, as before Linux 5.12.
Result<void> check_kernel();

}  // namespace spc
