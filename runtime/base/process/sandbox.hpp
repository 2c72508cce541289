#pragma once

#include <seccomp.h>
#include <sys/resource.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A system call that a sandbox allows: if its arguments meet all conditions (SCMP_A0 …), or with
/// any arguments.
struct AllowedCall {
  AllowedCall(int with_number)
      : number(with_number) {
  }  // NOLINT(google-explicit-constructor): a list of them is written as numbers
  AllowedCall(int with_number, std::vector<scmp_arg_cmp> if_they_are)
      : number(with_number), conditions(std::move(if_they_are)) {}
  int number;
  std::vector<scmp_arg_cmp> conditions;
};

/// A limit that is lower already stays. RLIM_INFINITY: no other limit than now.
struct SandboxLimits {
  rlim_t descriptors;             ///< the lowest number that none can have
  rlim_t file_size = 0;           ///< bytes of any file that is written
  rlim_t memory = RLIM_INFINITY;  ///< beyond what is mapped when the sandbox is entered
  rlim_t cpu_seconds = RLIM_INFINITY;
};

/// From here on, all threads of this process can only make the `allowed` calls, give memory back or
/// protect it (it is never executable), abort and exit: what takes over the process cannot open,
/// connect, start or signal anything, if none of `allowed` can. Questions of libraries about the
/// machine and the process fail, any other call kills the process. Create threads before.
Result<void> enter_sandbox(std::initializer_list<AllowedCall> allowed, const SandboxLimits& limits);

}  // namespace spc
