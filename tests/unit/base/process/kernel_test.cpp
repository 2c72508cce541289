#include "base/process/kernel.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/process/sandbox.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

TEST_CASE("kernel_version_is_prefix_of_release") {
  CHECK((kernel_version("6.1.0-28-amd64") == KernelVersion{6, 1}));
  CHECK((kernel_version("6.12.9+bpo-amd64") > kMapsSquashfs));
  CHECK((kernel_version("5.14.0-503.el9.x86_64") < kMapsSquashfs));
  CHECK((kernel_version("6.2-rc1") == kMapsSquashfs));
  for (const char* none : {"", "6", "6.", "x.1", "6-1", "99999999999.1"})
    CHECK((kernel_version(none) == KernelVersion()));
  CHECK((running_kernel() > KernelVersion{3, 0}));
}

TEST_CASE("kernel_without_mount_setattr_is_refused_with_hint") {
  CHECK(check_kernel());
  const pid_t child = ::fork();
  if (child == 0) {
    SeccompFilter filter(SCMP_ACT_ALLOW);
    filter.add(SCMP_ACT_ERRNO(ENOSYS), SYS_mount_setattr);
    if (!filter.load("fake an old kernel")) ::_exit(2);
    const auto checked = check_kernel();
    const std::string what = checked ? "" : checked.error().message();
    const bool said =
        what.find(" has no mount_setattr (hint: this node needs Linux 5.12") != std::string::npos;
    ::_exit(said ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
