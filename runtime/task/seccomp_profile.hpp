#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc {

/// What decides which entries of a profile count.
struct SeccompSubject {
  bool has_capabilities = false;  ///< of the container's own user namespace: all; otherwise none
};

/// A profile of system calls in JSON, as podman and docker read it (containers-common, pkg/seccomp:
/// `defaultAction`, `archMap`, `syscalls` with `names`, `action`, `args`, `includes` and
/// `excludes`) or as it stands in a config.json of the OCI runtime specification ("linux.seccomp",
/// with `architectures`). Gives the kernel's filter program for this machine and the other ABIs
/// that the profile names: bytes for load_seccomp_program(). System calls that libseccomp does not
/// know are left out, as runc does. A profile that needs a second process to decide
/// (SCMP_ACT_NOTIFY, SCMP_ACT_TRACE) is ErrorKind::invalid.
Result<std::string> compile_seccomp_profile(std::string_view profile,
                                            const SeccompSubject& subject);

/// From here on this thread, and what it starts, can make only the calls that `program` allows.
/// no_new_privs must be set.
Result<void> load_seccomp_program(std::string_view program);

}  // namespace spc
