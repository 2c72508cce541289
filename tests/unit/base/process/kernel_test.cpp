#include "base/process/kernel.hpp"

#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/process/seccomp_filter.hpp"
#include "unit/catch.hpp"

using namespace spc;

TEST_CASE("the version of a kernel is what its release begins with") {
  CHECK((kernel_version("6.1.0-28-amd64") == KernelVersion{6, 1}));
  CHECK((kernel_version("6.12.9+bpo-amd64") > kMapsSquashfs));
  CHECK((kernel_version("5.14.0-503.el9.x86_64") < kMapsSquashfs));
  CHECK((kernel_version("6.2-rc1") == kMapsSquashfs));
  for (const char* none : {"", "6", "6.", "x.1", "6-1", "99999999999.1"}) CHECK((kernel_version(none) == KernelVersion()));
  CHECK((running_kernel() > KernelVersion{3, 0}));
}

TEST_CASE("a kernel is known to read lz4 if its configuration says so") {
  std::string root = "/tmp/spc-kernel-XXXXXX";
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  utsname system{};
  ::uname(&system);
  const std::string release = system.release;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
    return reads_lz4(root);
  };
  CHECK_FALSE(reads_lz4(root));
  CHECK_FALSE(write("/boot/config-1.2.3", "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_LZ4=y\n"));
  const std::string of_module = "/lib/modules/" + release + "/config";
  CHECK_FALSE(write(of_module, "CONFIG_SQUASHFS=m\n# CONFIG_SQUASHFS_LZ4 is not set\nCONFIG_SQUASHFS_ZSTD=y\n"));
  CHECK(write(of_module, "CONFIG_SQUASHFS=m\nCONFIG_SQUASHFS_LZ4=y\nCONFIG_SQUASHFS_ZSTD=y\n"));
  CHECK_FALSE(write("/boot/config-" + release, "CONFIG_SQUASHFS=m\n"));  // the first counts
  std::filesystem::remove_all(root);
}

TEST_CASE("a kernel without mount_setattr is named, and what is needed") {
  CHECK(check_kernel());
  const pid_t child = ::fork();
  if (child == 0) {
    SeccompFilter filter(SCMP_ACT_ALLOW);
    filter.add(SCMP_ACT_ERRNO(ENOSYS), SYS_mount_setattr);
    if (!filter.load("fake an old kernel")) ::_exit(2);
    const auto checked = check_kernel();
    const std::string what = checked ? "" : checked.error().message();
    const bool said = what.find(" has no mount_setattr (hint: this node needs Linux 5.12") != std::string::npos;
    ::_exit(said ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
