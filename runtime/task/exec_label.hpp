#pragma once

#include <string>

#include "base/result.hpp"

namespace spc {

/// The security modules of the kernel that confine a program by a label which is set before it
/// begins.
enum class SecurityModule { apparmor, selinux };

/// Whether the running kernel has it, and it is enabled. `root`: prefix of its files, for tests.
bool has_security_module(SecurityModule module, const std::string& root = "");

/// The next program that this thread executes, and what that starts, runs under this profile
/// (AppArmor) or context (SELinux). Children made before that inherit the order. An error if the
/// module does not have it, or does not allow the change.
Result<void> set_exec_label(SecurityModule module, const std::string& label);
/// The same, in a directory as /proc/self is one: for tests.
Result<void> write_exec_label(int self, SecurityModule module, const std::string& label);

}  // namespace spc
