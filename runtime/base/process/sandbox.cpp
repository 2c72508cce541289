#include "base/process/sandbox.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/file.hpp"
#include "base/unique_fd.hpp"

namespace spc {

namespace {

constexpr int kAlways[] = {
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(getrandom),
    // end of the process, abort() included
    SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigaction), SCMP_SYS(sigaltstack), SCMP_SYS(getpid), SCMP_SYS(gettid),
    // libext2fs 1.47.1 and newer asks for these, and PR_GET_DUMPABLE, before it reads a variable
    SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid),
    // glibc's qsort queries the memory size when it sorts 1 KiB or more, and ignores an error
    SCMP_SYS(sysinfo)};

/// Fail with ENOSYS: libraries use these calls only to work faster, and have a fallback.
constexpr int kMissing[] = {
    SCMP_SYS(sched_getaffinity), SCMP_SYS(getcpu), SCMP_SYS(getrusage),
    SCMP_SYS(prlimit64),         SCMP_SYS(uname),  SCMP_SYS(clock_getres),
    SCMP_SYS(membarrier),        SCMP_SYS(rseq),   SCMP_SYS(set_robust_list)};

/// Sets a limit. `more`: distance from the soft limit to the one at which the kernel kills.
Result<void> set_limit(decltype(RLIMIT_CORE) what, rlim_t value, const char* name,
                       rlim_t more = 0) {
  rlimit current{};
  if (value == RLIM_INFINITY) return {};
  if (::getrlimit(what, &current) != 0) return Error::from_errno(errno, name);
  const rlimit limits{std::min(current.rlim_max, value), std::min(current.rlim_max, value + more)};
  if (::setrlimit(what, &limits) != 0) return Error::from_errno(errno, name);
  return {};
}

/// Returns the mapped memory in bytes. It includes the stacks of threads, each as large as the
/// user's stack limit.
[[maybe_unused]] rlim_t mapped_memory() {
  const UniqueFd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  const auto pages = read_file(file.get(), 256);
  return pages ? std::strtoull(pages->c_str(), nullptr, 10) *
                     static_cast<rlim_t>(::sysconf(_SC_PAGESIZE))
               : 0;
}

Result<void> load_filter(std::initializer_list<AllowedCall> allowed) {
  SeccompFilter filter(SCMP_ACT_KILL_PROCESS);
  filter.for_all_threads();
  for (const int call : kAlways) filter.add(SCMP_ACT_ALLOW, call);
  for (const int call : kMissing) filter.add(SCMP_ACT_ERRNO(ENOSYS), call);
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(mprotect), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)});
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(prctl), {SCMP_A0(SCMP_CMP_EQ, PR_GET_DUMPABLE)});
  // Allow signals to this process only: abort() sends one.
  filter.add(SCMP_ACT_ALLOW, SCMP_SYS(tgkill),
             {SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(::getpid()))});
  for (const AllowedCall& call : allowed) filter.add(SCMP_ACT_ALLOW, call.number, call.conditions);
  return filter.load("seccomp filter");
}

}  // namespace

Result<void> enter_sandbox(std::initializer_list<AllowedCall> allowed,
                           const SandboxLimits& limits) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error::from_errno(errno, "no_new_privs");
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return Error::from_errno(errno, "not dumpable");
  SPC_TRY(set_limit(RLIMIT_CORE, 0, "limit core files"));
  SPC_TRY(set_limit(RLIMIT_NPROC, 0, "limit processes"));
  SPC_TRY(set_limit(RLIMIT_NOFILE, limits.descriptors, "limit descriptors"));
  SPC_TRY(set_limit(RLIMIT_FSIZE, limits.file_size, "limit the file size"));
  // One second before the kernel kills the process, SIGXCPU shows the reason.
  SPC_TRY(set_limit(RLIMIT_CPU, limits.cpu_seconds, "limit the CPU time", 1));
#ifndef SPC_SANITIZE  // a sanitizer maps terabytes
  if (limits.memory != RLIM_INFINITY)
    SPC_TRY(set_limit(RLIMIT_AS, mapped_memory() + limits.memory, "limit the memory"));
#endif
  return load_filter(allowed);
}

}  // namespace spc
