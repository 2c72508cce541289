// Sandbox of `layer-verifier`, and the choice of the check by the image's format.

#include "verify/verify.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

#include "base/process/sandbox.hpp"
#include "verify/blocks.hpp"
#include "verify/erofs.hpp"
#include "verify/squashfs.hpp"

namespace spc::verify {

// --- sandbox ---

namespace {

constexpr std::uint64_t kMemory = std::uint64_t{1} << 30;  ///< 4 million inodes need 200 MiB
/// limit of the reason's size, if descriptor 2 is a file
constexpr std::uint64_t kReason = 64 << 10;

}  // namespace

Result<void> confine(int layer, std::uint64_t size) {
  const auto number = static_cast<scmp_datum_t>(layer);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  return enter_sandbox({{SCMP_SYS(pread64), {SCMP_A0(SCMP_CMP_EQ, number)}},
                        {SCMP_SYS(write), {SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO)}},
                        // Only anonymous memory may be mapped.
                        {SCMP_SYS(mmap),
                         {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                          SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS)}}},
                       // A valid layer takes a hundredth of this time.
                       {.descriptors = number + 1,
                        .file_size = kReason,
                        .memory = kMemory,
                        .cpu_seconds = 60 + (size >> 20U)});
}

}  // namespace spc::verify

namespace spc {

// --- verification ---

namespace {

Result<void> verify_erofs(verify::LayerBytes& layer) {
  verify::erofs::Window image(layer);
  const auto super = SPC_TRY(verify::erofs::SuperBlock::read(image));
  return verify::erofs::Tree(image, super).check();
}

}  // namespace

Result<void> verify_layer(verify::LayerBytes& layer) {
  if (SPC_TRY(verify::erofs::SuperBlock::is_there(layer))) return verify_erofs(layer);
  const auto layout = SPC_TRY(verify::Layout::read(layer));
  auto attributes = SPC_TRY(verify::Attributes::read(layer, layout));
  verify::DataArea data(layer, layout);
  SPC_TRY(data.check_fragments());
  SPC_TRY(verify::InodeTree(layer, layout, data, attributes).check());
  return data.check_apart();
}

Result<void> verify_layer(std::span<const std::byte> layer) {
  verify::SpanBytes bytes(layer);
  return verify_layer(bytes);
}

}  // namespace spc
