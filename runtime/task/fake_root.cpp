#include "task/fake_root.hpp"

#include <sys/stat.h>

#include <array>
#include <cstdint>

#include "base/process/seccomp_filter.hpp"

namespace spc {
namespace {

/// Others than 0 exist nowhere in the namespace, so the kernel refuses with EINVAL what packages'
/// scripts take for granted. capset and setting security.capability need no fake: the kernel does
/// both there. Numbers below 0 stand for calls that this machine's own ABI lacks, such as the
/// 32-bit ones for 16-bit and 32-bit ids.
constexpr std::array kOwners = {
    SCMP_SYS(chown),       SCMP_SYS(fchown),      SCMP_SYS(lchown),     SCMP_SYS(fchownat),
    SCMP_SYS(chown32),     SCMP_SYS(fchown32),    SCMP_SYS(lchown32),   SCMP_SYS(setuid),
    SCMP_SYS(setgid),      SCMP_SYS(setreuid),    SCMP_SYS(setregid),   SCMP_SYS(setresuid),
    SCMP_SYS(setresgid),   SCMP_SYS(setfsuid),    SCMP_SYS(setfsgid),   SCMP_SYS(setgroups),
    SCMP_SYS(setuid32),    SCMP_SYS(setgid32),    SCMP_SYS(setreuid32), SCMP_SYS(setregid32),
    SCMP_SYS(setresuid32), SCMP_SYS(setresgid32), SCMP_SYS(setfsuid32), SCMP_SYS(setfsgid32),
    SCMP_SYS(setgroups32)};

/// The other ABIs that programs can use on this machine: a call through one of them must not act
/// differently.
#if defined(__x86_64__)
constexpr auto kOtherAbis = std::to_array<std::uint32_t>({SCMP_ARCH_X86, SCMP_ARCH_X32});
#elif defined(__aarch64__)
constexpr auto kOtherAbis = std::to_array<std::uint32_t>({SCMP_ARCH_ARM});
#else
constexpr std::array<std::uint32_t, 0> kOtherAbis = {};
#endif

}  // namespace

Result<void> fake_root_calls() {
  SeccompFilter filter(SCMP_ACT_ALLOW);
  constexpr std::uint32_t kSucceeds = SCMP_ACT_ERRNO(0);
  for (const auto abi : kOtherAbis) filter.also_for(abi);
  for (const int call : kOwners) filter.add(kSucceeds, call);
  for (const auto kind : std::to_array<scmp_datum_t>({S_IFCHR, S_IFBLK})) {
    filter.add(kSucceeds, SCMP_SYS(mknod), {SCMP_A1(SCMP_CMP_MASKED_EQ, S_IFMT, kind)});
    filter.add(kSucceeds, SCMP_SYS(mknodat), {SCMP_A2(SCMP_CMP_MASKED_EQ, S_IFMT, kind)});
  }
  return filter.load("seccomp filter of --container-remap-root");
}

}  // namespace spc
