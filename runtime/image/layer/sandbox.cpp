#include "image/layer/sandbox.hpp"

#include <sys/mman.h>

#include <csignal>

#include "base/process/sandbox.hpp"
#include "protocol/layer.hpp"

namespace spc {

Result<void> enter_layer_sandbox(std::uint64_t largest_file, std::uint64_t memory,
                                 std::uint64_t cpu_seconds) {
  ::signal(SIGXFSZ, SIG_IGN);  // the write fails instead and says why
  ::signal(SIGPIPE, SIG_IGN);
  return enter_sandbox(
      {// descriptors we have
       SCMP_SYS(read),
       SCMP_SYS(write),
       SCMP_SYS(pread64),
       SCMP_SYS(pwrite64),
       SCMP_SYS(pwritev),
       SCMP_SYS(ftruncate),
       SCMP_SYS(sync_file_range),
       SCMP_SYS(close),
       SCMP_SYS(lseek),
       // The layers below, over the socket we have. Questions are sent by write: sendmsg could pass
       // the file on.
       SCMP_SYS(recvmsg),
       // Memory and threads. A shared mapping of the file would let a read that outlives the
       // mapping change it after it was verified.
       {SCMP_SYS(mmap),
        {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
         SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS)}},
       SCMP_SYS(futex),
       SCMP_SYS(sched_yield),
       SCMP_SYS(clock_gettime),
       SCMP_SYS(restart_syscall)},
      {.descriptors = kLayerInput + 1 + kMaxLayersBelow,
       .file_size = largest_file,
       .memory = memory,
       .cpu_seconds = cpu_seconds});
}

}  // namespace spc
