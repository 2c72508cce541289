#include "image/fuse/sandbox.hpp"

#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>

#include "protocol/fuse.hpp"

namespace spc::fuse {
namespace {

struct Release {
  void operator()(void* filter) const { seccomp_release(filter); }
};

constexpr std::array kAllowed{
    // descriptors we have
    SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(pread64), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(close),
    // memory and threads
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(futex), SCMP_SYS(sched_yield),
    SCMP_SYS(clock_gettime), SCMP_SYS(getrandom), SCMP_SYS(restart_syscall),
    // the end, abort() included
    SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigaction),
    SCMP_SYS(sigaltstack), SCMP_SYS(getpid), SCMP_SYS(gettid)};

/// Far more than the caches take: what it stops is an image that makes a decompressor ask for memory without end.
constexpr std::uint64_t kMostMemory = std::uint64_t{4} << 30U;

Result<void> limit(decltype(RLIMIT_CORE) what, std::uint64_t value, const char* name) {
  rlimit current{};
  if (::getrlimit(what, &current) != 0) return Error::from_errno(errno, name);
  const rlim_t wanted = std::min<rlim_t>(current.rlim_max, value);
  const rlimit limits{wanted, wanted};
  if (::setrlimit(what, &limits) != 0) return Error::from_errno(errno, name);
  return {};
}

Result<void> load_filter() {
  const std::unique_ptr<void, Release> filter(seccomp_init(SCMP_ACT_KILL_PROCESS));
  if (!filter) return Error(ErrorKind::system, "seccomp: no filter");
  int rc = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  for (const int call : kAllowed) {
    if (rc == 0) rc = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  }
  // Memory is never executable. Signals go to this process only: abort() sends one.
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mprotect)}) {
    if (rc == 0) {
      rc = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    }
  }
  if (rc == 0) {
    const auto self = static_cast<scmp_datum_t>(::getpid());
    rc = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0(SCMP_CMP_EQ, self));
  }
  if (rc == 0) rc = seccomp_load(filter.get());
  if (rc != 0) return Error::from_errno(-rc, "seccomp filter");
  return {};
}

}  // namespace

Result<void> enter_fuse_sandbox() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Error::from_errno(errno, "no_new_privs");
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return Error::from_errno(errno, "not dumpable");
  SPC_TRY(limit(RLIMIT_CORE, 0, "limit core files"));
  SPC_TRY(limit(RLIMIT_NOFILE, kFuseStatus + 1, "limit descriptors"));
  SPC_TRY(limit(RLIMIT_NPROC, 0, "limit processes"));
  SPC_TRY(limit(RLIMIT_FSIZE, 0, "limit the file size"));
  SPC_TRY(limit(RLIMIT_AS, kMostMemory, "limit memory"));
  return load_filter();
}

}  // namespace spc::fuse
