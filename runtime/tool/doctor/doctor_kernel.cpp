#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "base/process/child.hpp"
#include "base/process/kernel.hpp"
#include "base/process/user_namespace.hpp"
#include "base/unique_fd.hpp"
#include "image/layer/worker/mountable.hpp"
#include "tool/doctor/doctor.hpp"

namespace spc::tool {
namespace {

/// errno of `probe` in a child of its own, 0 if it works.
int tried(const std::function<int()>& probe) {
  auto child = Child::run([&] { return probe() & 0xff; }, "probe the kernel", 0);
  if (!child) return child.error().sys_errno();
  const ExitStatus status = child->wait();
  return status.signalled() ? EIO : status.code();
}

int own_namespaces() {
  const auto entered = enter_user_namespace(RootMap::self);
  return entered ? 0 : entered.error().sys_errno() == 0 ? EIO : entered.error().sys_errno();
}

int fuse_mount() {
  if (const int failed = own_namespaces(); failed != 0) return failed;
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return errno;
  const std::string options = "fd=" + std::to_string(device) +
                              ",rootmode=40000,user_id=" + std::to_string(::geteuid()) +
                              ",group_id=" + std::to_string(::getegid());
  return ::mount("probe", "/tmp", "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0 ? 0 : errno;
}

int writable_overlay() {
  if (const int failed = own_namespaces(); failed != 0) return failed;
  if (::mount("probe", "/tmp", "tmpfs", 0, nullptr) != 0 || ::chdir("/tmp") != 0) return errno;
  for (const char* name : {"low", "up", "work", "root"}) {
    if (::mkdir(name, 0755) != 0) return errno;
  }
  const char* options = "lowerdir=low,upperdir=up,workdir=work,userxattr";
  if (::mount("overlay", "root", "overlay", 0, options) != 0) return errno;
  return ::mkdir("root/made", 0755) == 0 ? 0 : errno;
}

Finding finding(const char* what, int failed, Finding::Verdict otherwise, const char* cure) {
  if (failed == 0) return {what, Finding::Verdict::ok, "works", ""};
  return {what, otherwise, std::strerror(failed), cure};
}

std::string release() {
  utsname system{};
  ::uname(&system);
  return std::string("Linux ") + system.release;
}

Finding kernel_is_new() {
  if (running_kernel() >= kMapsSquashfs) return {"kernel", Finding::Verdict::ok, release(), ""};
  if (check_kernel()) {
    return {"kernel", Finding::Verdict::warning, release(),
            "the kernel mounts layers from 6.2 on, before where it has erofs (5.19) or the store "
            "is on XFS or Btrfs; FUSE serves others"};
  }
  return {"kernel", Finding::Verdict::failed, release(), "use Linux 5.12 or newer; 6.2 is fastest"};
}

/// With 1 a user can trace our helpers, which others than root can execute and not read.
std::vector<Finding> suid_dumpable() {
  const UniqueFd file(::open("/proc/sys/fs/suid_dumpable", O_RDONLY | O_CLOEXEC));
  char value = 0;
  if (!file || ::read(file.get(), &value, 1) != 1 || value != '1') return {};
  return {{"core dumps", Finding::Verdict::warning,
           "fs.suid_dumpable is 1: users can trace programs of the node's service user",
           "sysctl fs.suid_dumpable=0, or 2 for core dumps that only root can read"}};
}

}  // namespace

std::vector<Finding> examine_kernel() {
  const bool root = ::geteuid() == 0;
  const auto bad = root ? Finding::Verdict::warning : Finding::Verdict::failed;
  std::vector<Finding> findings{kernel_is_new()};
  const int namespaces = tried(own_namespaces);
  findings.push_back(finding(
      "user namespaces", namespaces, Finding::Verdict::failed,
      "sysctl user.max_user_namespaces must be above 0, and on Debian and Ubuntu "
      "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0"));
  if (namespaces != 0) return findings;
  findings.push_back(
      finding("FUSE", tried(fuse_mount), bad, "modprobe fuse; /dev/fuse must have mode 0666"));
  findings.push_back(finding(
      "unprivileged overlay", tried(writable_overlay), Finding::Verdict::warning,
      "containers of scontainer run are read-only; use Linux 6.12 or newer for writable ones"));
  return findings;
}

std::vector<Finding> examine_kernel_of_node() {
  constexpr auto kBad = Finding::Verdict::failed;
  // Where the kernel maps the layers' owners, only users' image files need it.
  const bool maps = running_kernel() >= kMapsSquashfs || maps_only_erofs() ||
                    (check_kernel() && files_share_blocks(SPC_STORE_DIR));
  const auto without_fuse = maps ? Finding::Verdict::warning : kBad;
  auto findings = suid_dumpable();
  findings.insert(findings.begin(),
                  {maps ? Finding{"kernel", Finding::Verdict::ok, release(), ""} : kernel_is_new(),
                   finding("user namespaces", tried(own_namespaces), kBad,
                           "sysctl user.max_user_namespaces must be above 0"),
                   finding("FUSE", tried(fuse_mount), without_fuse,
                           "modprobe fuse; /dev/fuse must have mode 0666")});
  return findings;
}

}  // namespace spc::tool
