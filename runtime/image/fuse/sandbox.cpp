#include "image/fuse/sandbox.hpp"

#include <sys/mman.h>

#include <cstdint>

#include "base/process/sandbox.hpp"
#include "protocol/fuse.hpp"

namespace spc::fuse {
namespace {

/// Far more than the caches take: what it stops is an image that makes a decompressor ask for
/// memory without end.
constexpr std::uint64_t kMostMemory = std::uint64_t{4} << 30U;

}  // namespace

Result<void> enter_fuse_sandbox() {
  return enter_sandbox(
      {// descriptors we have
       SCMP_SYS(read),
       SCMP_SYS(write),
       SCMP_SYS(writev),
       SCMP_SYS(pread64),
       SCMP_SYS(fstat),
       SCMP_SYS(newfstatat),
       SCMP_SYS(close),
       SCMP_SYS(recvmsg),
       SCMP_SYS(sendmsg),
       // memory and threads
       {SCMP_SYS(mmap), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}},
       SCMP_SYS(futex),
       SCMP_SYS(sched_yield),
       SCMP_SYS(clock_gettime),
       SCMP_SYS(clock_nanosleep),
       SCMP_SYS(restart_syscall)},
      {.descriptors = kFuseStatus + 2,  // one more: the socket of a server that joins
       .memory = kMostMemory});
}

}  // namespace spc::fuse
