#include "base/process/kernel.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>

#include "base/file.hpp"

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

bool reads_lz4(const std::string& root) {
  utsname system{};
  ::uname(&system);
  const std::string release = system.release;
  for (const std::string& path : {root + "/boot/config-" + release, root + "/lib/modules/" + release + "/config"}) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    constexpr std::size_t kMost = std::size_t{4} << 20;
    if (!file) continue;
    const auto text = read_file(file.get(), kMost);
    if (text) return text->find("\nCONFIG_SQUASHFS_LZ4=y\n") != std::string::npos;
  }
  return false;
}

Result<void> check_kernel() {
  // It refuses these arguments, if it is there.
  if (::syscall(SYS_mount_setattr, -1, nullptr, 0U, nullptr, std::size_t{0}) == 0 || errno != ENOSYS) return {};
  utsname system{};
  ::uname(&system);
  return Error(ErrorKind::unavailable, "start a container: Linux " + std::string(system.release) + " has no mount_setattr")
      .hint("this node needs Linux 5.12 or newer");
}

}  // namespace spc
