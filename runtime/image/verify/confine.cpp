#include "image/verify/confine.hpp"

#include <fcntl.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>

namespace spc::verify {
namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;  ///< 4 million inodes need 200 MiB
constexpr std::uint64_t kReason = 64 << 10;                ///< if descriptor 2 is a file

struct Release {
  void operator()(void* filter) const { seccomp_release(filter); }
};

constexpr std::array kAllowed{SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(getrandom),
                              // the end, abort() included
                              SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask),
                              SCMP_SYS(rt_sigaction), SCMP_SYS(sigaltstack), SCMP_SYS(getpid), SCMP_SYS(gettid)};

Result<void> limit(decltype(RLIMIT_CORE) what, std::uint64_t value, const char* name) {
  rlimit current{};
  if (::getrlimit(what, &current) != 0) return Error::from_errno(errno, name);
  const rlim_t wanted = current.rlim_max < value ? current.rlim_max : value;  // a lower one stays
  const rlimit limits{wanted, wanted};
  if (::setrlimit(what, &limits) != 0) return Error::from_errno(errno, name);
  return {};
}

Result<void> load_filter(int layer) {
  const std::unique_ptr<void, Release> filter(seccomp_init(SCMP_ACT_KILL_PROCESS));
  if (!filter) return Error(ErrorKind::system, "seccomp: no filter");
  int rc = 0;
  const auto allow = [&](int call, std::initializer_list<scmp_arg_cmp> conditions) {
    if (rc == 0) {
      rc = seccomp_rule_add_array(filter.get(), SCMP_ACT_ALLOW, call, static_cast<unsigned>(conditions.size()),
                                  conditions.begin());
    }
  };
  for (const int call : kAllowed) allow(call, {});
  allow(SCMP_SYS(pread64), {SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(layer))});
  allow(SCMP_SYS(write), {SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO)});
  allow(SCMP_SYS(tgkill), {SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(::getpid()))});
  // Memory has no file behind it and is never executable.
  allow(SCMP_SYS(mmap), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0), SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS)});
  allow(SCMP_SYS(mprotect), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)});
  if (rc == 0) rc = seccomp_load(filter.get());
  if (rc != 0) return Error::from_errno(-rc, "seccomp filter");
  return {};
}

}  // namespace

Result<void> confine(int layer, std::uint64_t size) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Error::from_errno(errno, "no_new_privs");
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return Error::from_errno(errno, "not dumpable");
  SPC_TRY(limit(RLIMIT_CORE, 0, "limit core files"));
  SPC_TRY(limit(RLIMIT_NOFILE, static_cast<std::uint64_t>(layer) + 1, "limit descriptors"));
  SPC_TRY(limit(RLIMIT_NPROC, 0, "limit processes"));
  SPC_TRY(limit(RLIMIT_FSIZE, kReason, "limit the file size"));
  // An honest layer takes a hundredth of this.
  SPC_TRY(limit(RLIMIT_CPU, 60 + (size >> 20U), "limit the CPU time"));
#ifndef __SANITIZE_ADDRESS__  // which maps terabytes
  SPC_TRY(limit(RLIMIT_AS, kMemory, "limit the memory"));
#endif
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  return load_filter(layer);
}

}  // namespace spc::verify
