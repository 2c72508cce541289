#include "task/exec_label.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/unique_fd.hpp"

namespace spc {
namespace {

constexpr ino_t kRootOfProc = 1;

const char* name_of(SecurityModule module) {
  return module == SecurityModule::apparmor ? "AppArmor" : "SELinux";
}

/// Nothing that was mounted in /proc counts: an order given to another file would be obeyed by
/// nobody.
UniqueFd open_beneath(int directory, const char* path, int flags) {
  return open_resolved(directory, path, flags,
                       RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS);
}

Result<UniqueFd> open_self() {
  const UniqueFd proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct statfs file_system {};
  struct stat status {};
  const bool is_proc = proc && ::fstatfs(proc.get(), &file_system) == 0 &&
                       file_system.f_type == PROC_SUPER_MAGIC &&
                       ::fstat(proc.get(), &status) == 0 && status.st_ino == kRootOfProc;
  UniqueFd self =
      is_proc ? open_beneath(proc.get(), "thread-self", O_PATH | O_DIRECTORY) : UniqueFd();
  if (self) return self;
  return Error(ErrorKind::unavailable, "the container has no /proc by which to set it")
      .hint("leave umount:/proc out of --container-mounts");
}

}  // namespace

bool has_security_module(SecurityModule module, const std::string& root) {
  if (module == SecurityModule::selinux)
    return ::access((root + "/sys/fs/selinux/enforce").c_str(), F_OK) == 0;
  const UniqueFd file(
      ::open((root + "/sys/module/apparmor/parameters/enabled").c_str(), O_RDONLY | O_CLOEXEC));
  char enabled = 'N';
  return file && ::read(file.get(), &enabled, 1) == 1 && enabled == 'Y';
}

Result<void> write_exec_label(int self, SecurityModule module, const std::string& label) {
  const bool is_apparmor = module == SecurityModule::apparmor;
  UniqueFd file;
  if (is_apparmor) file = open_beneath(self, "attr/apparmor/exec", O_WRONLY);
  if (!file)
    file =
        open_beneath(self, "attr/exec", O_WRONLY);  // of SELinux, and of AppArmor before Linux 5.8
  if (!file)
    return Error::from_errno(errno,
                             formatted("set the {} label {}", name_of(module), in_quotes(label)));
  const std::string text = is_apparmor ? "exec " + label : label;
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  const int failed = errno;
  auto error = Error::from_errno(
      failed, formatted("set the {} label {}", name_of(module), in_quotes(label)));
  if (failed == ENOENT)
    return std::move(error).hint(
        "the profile is not loaded on this node: apparmor_parser --replace FILE");
  if (failed == EINVAL)
    return std::move(error).hint(
        "the node's policy does not have it, or another security module answered");
  return std::move(error).hint("the node's policy must allow the change, also with no_new_privs");
}

Result<void> set_exec_label(SecurityModule module, const std::string& label) {
  const auto self = open_self();
  if (!self)
    return Error(self.error())
        .during(formatted("set the {} label {}", name_of(module), in_quotes(label)));
  return write_exec_label(self->get(), module, label);
}

}  // namespace spc
