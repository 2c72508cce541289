#include "image/verify/confine.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

#include "base/process/sandbox.hpp"

namespace spc::verify {
namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;  ///< 4 million inodes need 200 MiB
constexpr std::uint64_t kReason = 64 << 10;                ///< if descriptor 2 is a file

}  // namespace

Result<void> confine(int layer, std::uint64_t size) {
  const auto number = static_cast<scmp_datum_t>(layer);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  return enter_sandbox({{SCMP_SYS(pread64), {SCMP_A0(SCMP_CMP_EQ, number)}},
                        {SCMP_SYS(write), {SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO)}},
                        // Memory has no file behind it.
                        {SCMP_SYS(mmap),
                         {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                          SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS)}}},
                       // An honest layer takes a hundredth of this time.
                       {.descriptors = number + 1,
                        .file_size = kReason,
                        .memory = kMemory,
                        .cpu_seconds = 60 + (size >> 20U)});
}

}  // namespace spc::verify
