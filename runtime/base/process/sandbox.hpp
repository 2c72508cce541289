#pragma once

#include <linux/bpf_common.h>
#include <linux/filter.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- sandbox ---

/// A system call that a sandbox allows, with arguments that meet all conditions (SCMP_A0 …), or
/// with any arguments.
struct AllowedCall {
  AllowedCall(int with_number)
      : number(with_number) {
  }  // NOLINT(google-explicit-constructor): a list of calls is written as numbers
  AllowedCall(int with_number, std::vector<scmp_arg_cmp> if_they_are)
      : number(with_number), conditions(std::move(if_they_are)) {}
  int number;
  std::vector<scmp_arg_cmp> conditions;
};

/// Resource limits. Limits that are already lower stay. RLIM_INFINITY keeps the current limit.
struct SandboxLimits {
  rlim_t descriptors;             ///< exclusive upper bound of descriptor numbers
  rlim_t file_size = 0;           ///< bytes of any written file
  rlim_t memory = RLIM_INFINITY;  ///< beyond the memory mapped when the sandbox is entered
  rlim_t cpu_seconds = RLIM_INFINITY;
};

/// Restricts all threads of this process to the `allowed` calls, to freeing and protecting memory
/// (it is never executable), and to abort and exit. An attacker who takes over the process cannot
/// open, connect, start or signal anything, unless an allowed call can. Queries of libraries about
/// the machine and the process fail. Any other call kills the process. Create all threads before.
Result<void> enter_sandbox(std::initializer_list<AllowedCall> allowed, const SandboxLimits& limits);

// --- seccomp filter ---

/// A filter of system calls. The first failure is kept until load() reports it.
class SeccompFilter {
 public:
  /// `otherwise`: action for calls without a rule (SCMP_ACT_*).
  explicit SeccompFilter(std::uint32_t otherwise)
      : filter_(seccomp_init(otherwise)), failed_(filter_ ? 0 : -ENOMEM) {}

  /// Adds the calls of another ABI (SCMP_ARCH_*).
  void also_for(std::uint32_t abi) {
    if (failed_ == 0) failed_ = seccomp_arch_add(filter_.get(), abi);
  }
  /// Applies the filter to all threads of the process, not only to the calling one.
  void for_all_threads() {
    if (failed_ == 0) failed_ = seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  }
  /// Sets the action for this call, if its arguments meet all conditions (SCMP_A0 …).
  void add(std::uint32_t action, int call, const std::vector<scmp_arg_cmp>& conditions = {}) {
    const auto count = static_cast<unsigned>(conditions.size());
    if (failed_ == 0)
      failed_ = seccomp_rule_add_array(filter_.get(), action, call, count, conditions.data());
  }
  /// Returns the program that load() would pass to the kernel: instructions of struct sock_filter.
  Result<std::string> program() {
    const UniqueFd file(::memfd_create("seccomp program", MFD_CLOEXEC));
    if (!file) return Error::from_errno(errno, "create a memory file");
    // Make a binary tree, which is faster. Versions of libseccomp without it return an error.
    ::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (failed_ == 0) failed_ = ::seccomp_export_bpf(filter_.get(), file.get());
    if (failed_ != 0) return Error::from_errno(-failed_, "make the filter of system calls");
    return read_file(file.get(), BPF_MAXINSNS * sizeof(sock_filter));
  }
  Result<void> load(std::string_view what) {
    if (failed_ == 0) failed_ = seccomp_load(filter_.get());
    if (failed_ != 0) return Error::from_errno(-failed_, what);
    return {};
  }

 private:
  struct Release {
    void operator()(void* filter) const { seccomp_release(filter); }
  };
  std::unique_ptr<void, Release> filter_;
  int failed_;
};

}  // namespace spc
