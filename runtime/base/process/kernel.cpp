#include "base/process/kernel.hpp"

#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>

namespace spc {

KernelVersion kernel_version(std::string_view release) {
  KernelVersion version;
  const char* const end = release.data() + release.size();
  const auto major = std::from_chars(release.data(), end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return {};
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  return minor.ec == std::errc() ? version : KernelVersion();
}

KernelVersion running_kernel() {
  utsname system{};
  ::uname(&system);
  return kernel_version(system.release);
}

Result<void> check_kernel() {
  // A kernel with the call refuses these arguments.
  if (::syscall(SYS_mount_setattr, -1, nullptr, 0U, nullptr, std::size_t{0}) == 0 ||
      errno != ENOSYS)
    return {};
  utsname system{};
  ::uname(&system);
  return Error(ErrorKind::unavailable,
               "start a container: Linux " + std::string(system.release) + " has no mount_setattr")
      .hint("this node needs Linux 5.12 or newer");
}

}  // namespace spc
