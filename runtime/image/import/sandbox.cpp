#include "image/import/import.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/process/sandbox.hpp"

namespace spc {
namespace {

// from <linux/landlock.h>, which the oldest supported distributions lack
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr std::uint32_t kVersion = 1U << 0, kPathBeneath = 1;
constexpr std::uint64_t kExecute = 1ULL << 0, kWriteFile = 1ULL << 1;
constexpr std::uint64_t kChangeDirectories = 0x1FF0;  // REMOVE_DIR to MAKE_SYM
constexpr std::uint64_t kRefer = 1ULL << 13, kTruncate = 1ULL << 14, kDeviceIoctl = 1ULL << 15;
struct [[gnu::packed]] PathBeneath {
  std::uint64_t access;
  std::int32_t directory;
};

Result<void> refuse_calls() {
  SeccompFilter filter(SCMP_ACT_ALLOW);
  filter.for_all_threads();
  const auto refuse = SCMP_ACT_ERRNO(EPERM);

  for (const int call : {SCMP_SYS(unshare),
                         SCMP_SYS(setns),
                         SCMP_SYS(mount),
                         SCMP_SYS(umount2),
                         SCMP_SYS(pivot_root),
                         SCMP_SYS(chroot),
                         SCMP_SYS(fsopen),
                         SCMP_SYS(fsconfig),
                         SCMP_SYS(fsmount),
                         SCMP_SYS(fspick),
                         SCMP_SYS(open_tree),
                         SCMP_SYS(move_mount),
                         SCMP_SYS(mount_setattr),
                         SCMP_SYS(process_vm_readv),
                         SCMP_SYS(process_vm_writev),
                         SCMP_SYS(pidfd_getfd),
                         SCMP_SYS(process_madvise),
                         SCMP_SYS(kcmp),
                         SCMP_SYS(io_uring_setup),
                         SCMP_SYS(io_uring_enter),
                         SCMP_SYS(io_uring_register),
                         SCMP_SYS(userfaultfd),
                         SCMP_SYS(bpf),
                         SCMP_SYS(perf_event_open),
                         SCMP_SYS(add_key),
                         SCMP_SYS(request_key),
                         SCMP_SYS(keyctl),
                         SCMP_SYS(vmsplice),
                         SCMP_SYS(open_by_handle_at),
                         SCMP_SYS(mknod),
                         SCMP_SYS(mknodat),
                         SCMP_SYS(personality)})
    filter.add(refuse, call);

  // The filter cannot read the flags of clone3. Libraries fall back to clone.
  filter.add(SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3));
  for (const int space : {CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER,
                          CLONE_NEWPID, CLONE_NEWNET}) {
    const auto bits = static_cast<scmp_datum_t>(space);
    filter.add(refuse, SCMP_SYS(clone), {SCMP_A0(SCMP_CMP_MASKED_EQ, bits, bits)});
  }

#ifndef SPC_SANITIZE  // its leak check traces the process from a copy of it
  filter.add(refuse, SCMP_SYS(ptrace));
  for (const int call : {SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork), SCMP_SYS(vfork)})
    filter.add(refuse, call);
  filter.add(refuse, SCMP_SYS(clone), {SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0)});
#endif
  return filter.load("seccomp filter");
}

/// Restricts writing to files. Does nothing without Landlock or with its first version, which
/// forbids rename between directories, as the shared store needs.
Result<void> refuse_files(const ImportSandbox& sandbox) {
  const long version = ::syscall(kCreateRuleset, nullptr, 0, kVersion);
  if (version < 2) return {};
  const std::uint64_t writes =
      kWriteFile | kChangeDirectories | kRefer | (version >= 3 ? kTruncate : 0);
  const std::uint64_t handled = writes | kExecute | (version >= 5 ? kDeviceIoctl : 0);
  const UniqueFd rules(static_cast<int>(::syscall(kCreateRuleset, &handled, sizeof handled, 0)));
  if (!rules) return Error::from_errno(errno, "Landlock");
  const auto allow = [&](int directory, std::uint64_t access) {
    const PathBeneath rule{.access = access, .directory = directory};
    return directory < 0 || ::syscall(kAddRule, rules.get(), kPathBeneath, &rule, 0) == 0;
  };
  bool allowed = allow(sandbox.store, writes);
  for (const std::string& path : sandbox.paths) {
    const UniqueFd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    allowed = allowed && allow(directory.get(), writes);
  }
  const UniqueFd null(::open("/dev/null", O_PATH | O_CLOEXEC));
  allowed = allowed && allow(null.get(), kWriteFile | (version >= 3 ? kTruncate : 0));
  if (!allowed || ::syscall(kRestrictSelf, rules.get(), 0) != 0)
    return Error::from_errno(errno, "Landlock");
  return {};
}

}  // namespace

Result<void> enter_import_sandbox(const ImportSandbox& sandbox) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error::from_errno(errno, "no_new_privs");
  SPC_TRY(refuse_files(sandbox));
  return refuse_calls();
}

}  // namespace spc
