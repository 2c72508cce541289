#pragma once

#include <linux/bpf_common.h>
#include <linux/filter.h>
#include <seccomp.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A filter of system calls. The first failure stays until load() reports it.
class SeccompFilter {
 public:
  /// `otherwise`: what happens at a call for which there is no rule (SCMP_ACT_*).
  explicit SeccompFilter(std::uint32_t otherwise)
      : filter_(seccomp_init(otherwise)), failed_(filter_ ? 0 : -ENOMEM) {}

  /// For calls by the numbers of another ABI, too (SCMP_ARCH_*).
  void also_for(std::uint32_t abi) {
    if (failed_ == 0) failed_ = seccomp_arch_add(filter_.get(), abi);
  }
  /// For all threads of the process, not only the calling one.
  void for_all_threads() {
    if (failed_ == 0) failed_ = seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  }
  /// What happens at this call, if its arguments meet all conditions (SCMP_A0 …).
  void add(std::uint32_t action, int call, const std::vector<scmp_arg_cmp>& conditions = {}) {
    const auto count = static_cast<unsigned>(conditions.size());
    if (failed_ == 0)
      failed_ = seccomp_rule_add_array(filter_.get(), action, call, count, conditions.data());
  }
  /// What load() would hand to the kernel: instructions of struct sock_filter.
  Result<std::string> program() {
    const UniqueFd file(::memfd_create("seccomp program", MFD_CLOEXEC));
    if (!file) return Error::from_errno(errno, "create a memory file");
    ::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_OPTIMIZE,
                       2);  // a binary tree, if libseccomp can: it only saves time
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
