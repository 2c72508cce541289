// `layer-writer MAX_TAR_BYTES MAX_IMAGE_BYTES MAX_ENTRIES WORKERS COMPRESSION FORMAT MERGES`: converts or merges layers in a sandbox; `import` starts it with the
// descriptors of protocol/layer.hpp.
// `layer-writer facts`: writes what the files of an image reveal, in the same sandbox.

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/processors.hpp"
#include "image/layer/below/receive_layers.hpp"
#include "image/layer/converter.hpp"
#include "image/layer/layer_facts.hpp"
#include "image/layer/sandbox.hpp"

namespace spc {
namespace {

constexpr unsigned kMostWorkers = 16;  // more blocks are not on their way at a time
constexpr std::uint64_t kMemory = std::uint64_t{3} << 30;  ///< Budget's 1.25 GiB, and the tables made of them
constexpr std::uint64_t kFactsMemory = std::uint64_t{1} << 30, kFactsSeconds = 60;

/// A slow processor takes a second for 64 MiB, all threads together.
std::uint64_t cpu_seconds(const LayerLimits& limits) { return 600 + (limits.tar_bytes >> 26U); }

/// One thread inflates as fast as two to three compress. More threads cost no more CPU time, only a few hundred KiB each.
unsigned worker_count(unsigned wanted) {
  return wanted != 0 ? std::min(wanted, kMostWorkers) : std::clamp(usable_processors(), 2U, 4U);
}

Result<ConvertedLayer> convert(const LayerLimits& limits) {
  struct stat status {};
  const bool has_below = ::fstat(kLayerBelow, &status) == 0 && S_ISSOCK(status.st_mode);
  auto converter = SPC_TRY(LayerConverter::create(kLayerInput, kLayerOutput, worker_count(limits.workers), limits,
                                                  has_below ? kLayerBelow : -1));
  SPC_TRY_DURING("entering the sandbox", enter_layer_sandbox(limits.image_bytes, kMemory, cpu_seconds(limits)));
  // From here on the bytes of the layer are read.
  return converter.run();
}

LayerReport report_of(const Result<ConvertedLayer>& result) {
  LayerReport report;
  std::memcpy(report.magic, LayerReport::kMagic, sizeof report.magic);
  if (result) {
    report.layer = *result;
    return report;
  }
  report.error = WireError(result.error());
  return report;
}

Result<ConvertedLayer> guarded(const LayerLimits& limits) {
  try {
    return convert(limits);
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::no_space, formatted("out of memory, or it needs more than {} MiB", kMemory >> 20U))
        .hint("increase --mem, or split the layer");
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, e.what());
  }
}

/// The layers come over kLayerBelow, the records go to kLayerReport. None: there is nothing to say.
int write_facts() {
  const auto written = []() -> Result<void> {
    SPC_TRY(enter_layer_sandbox(0, kFactsMemory, kFactsSeconds));
    auto layers = SPC_TRY(receive_layers(kLayerBelow));
    const std::string records = SPC_TRY(facts_of_layers(std::move(layers)));
    return write_all(kLayerReport, records);
  };
  try {
    return written() ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace
}  // namespace spc

int main(int argc, char** argv) {
  ::mallopt(M_ARENA_MAX, 1);  // an arena for each thread would keep what was freed
  if (argc == 2 && std::string_view(argv[1]) == spc::kLayerFacts) ::_exit(spc::write_facts());
  struct stat output {};
  if (argc != 8 || ::fstat(spc::kLayerOutput, &output) != 0 || !S_ISREG(output.st_mode)) {
    constexpr char kUsage[] = "layer-writer is started by import, not manually\n";
    (void)spc::write_all(STDERR_FILENO, std::string_view(kUsage));
    return 2;
  }
  const spc::LayerLimits limits{.tar_bytes = std::strtoull(argv[1], nullptr, 10),
                                .image_bytes = std::strtoull(argv[2], nullptr, 10),
                                .entries = std::strtoull(argv[3], nullptr, 10),
                                .workers = static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10)),
                                .compression = static_cast<spc::LayerCompression>(std::strtoul(argv[5], nullptr, 10)),
                                .format = static_cast<spc::LayerFormat>(std::strtoul(argv[6], nullptr, 10)),
                                .merges = static_cast<std::uint32_t>(std::strtoul(argv[7], nullptr, 10))};
  const spc::LayerReport report = spc::report_of(spc::guarded(limits));
  const auto sent = spc::write_all(spc::kLayerReport, std::as_bytes(std::span(&report, 1)));
  ::_exit(sent && !report.error.is_set() ? 0 : 1);  // nothing is left to run: exit handlers need calls the sandbox forbids
}
