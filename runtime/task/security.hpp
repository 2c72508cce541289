#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

// --- ambient ---

/// Keeps the capabilities of the calling process across execve(2), which otherwise drops them for
/// non-root users. For a process in a user namespace of its own.
void keep_capabilities_when_executing();

// --- exec label ---

/// Security modules of the kernel that confine a program by a label, which is set before the
/// program begins.
enum class SecurityModule { apparmor, selinux };

/// Returns whether the running kernel has the module, and it is enabled. `root`: prefix of its
/// files, for tests.
bool has_security_module(SecurityModule module, const std::string& root = "");

/// Sets the profile (AppArmor) or context (SELinux) of the next program that this thread executes,
/// and of its children. Children made before that execution inherit the setting. An error if the
/// module does not have the label, or does not allow the change.
Result<void> set_exec_label(SecurityModule module, const std::string& label);
/// Does the same in a directory laid out like /proc/self, for tests.
Result<void> write_exec_label(int self, SecurityModule module, const std::string& label);

// --- fake root ---

/// For a process that is root in a user namespace without other users: makes operations of dpkg,
/// rpm and their scripts that need real root (changing owners, switching to another user, creating
/// devices) report success without effect, for it and its children. The process must have
/// no_new_privs. Grants no privilege.
Result<void> fake_root_calls();

// --- seccomp profile ---

/// The conditions that decide which entries of a profile apply.
struct SeccompSubject {
  bool has_capabilities = false;  ///< all capabilities of the container's own user namespace;
                                  ///< otherwise none
};

/// Compiles a profile of system calls in JSON, as podman and docker read it (containers-common,
/// pkg/seccomp: `defaultAction`, `archMap`, `syscalls` with `names`, `action`, `args`, `includes`
/// and `excludes`) or as in a config.json of the OCI runtime specification ("linux.seccomp", with
/// `architectures`). Returns the kernel's filter program for this machine and the other ABIs of the
/// profile: bytes for load_seccomp_program(). System calls that libseccomp does not know are left
/// out, as in runc. A profile that needs a second process to decide (SCMP_ACT_NOTIFY,
/// SCMP_ACT_TRACE) is ErrorKind::invalid.
Result<std::string> compile_seccomp_profile(std::string_view profile,
                                            const SeccompSubject& subject);

/// Restricts this thread and its children to the system calls that `program` allows. no_new_privs
/// must be set.
Result<void> load_seccomp_program(std::string_view program);

}  // namespace spc
