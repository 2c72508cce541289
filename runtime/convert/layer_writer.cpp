// `layer-writer "MAX_TAR_BYTES MAX_IMAGE_BYTES MAX_ENTRIES WORKERS COMPRESSION FORMAT MERGES
// PROCESSORS PLAIN_FIRST"`: converts or merges layers in a sandbox. The agent, `save` or
// `scontainer` starts it with the descriptors of protocol/layer.hpp. `layer-writer copy` copies a
// converted layer, and `layer-writer facts` writes an image's fact sheet, in the same sandbox.

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/kernel.hpp"
#include "convert/converter.hpp"
#include "convert/layers_below.hpp"

namespace spc {

namespace {

constexpr unsigned kMostWorkers = 16;  // no more blocks are in flight
/// Bytes: Budget's 1.25 GiB, and tables derived from it.
constexpr std::uint64_t kMemory = std::uint64_t{3} << 30;
constexpr std::uint64_t kFactsMemory = std::uint64_t{1} << 30, kFactsSeconds = 60;

/// Returns the limit of CPU time. A slow processor takes a second for 64 MiB, all threads together.
std::uint64_t cpu_seconds(const LayerLimits& limits) { return 600 + (limits.tar_bytes >> 26U); }

/// One inflating thread supplies two to three compressing ones. More threads cost no CPU time, only
/// a few hundred KiB each.
unsigned worker_count(unsigned wanted) {
  return wanted != 0 ? std::min(wanted, kMostWorkers) : std::clamp(usable_processors(), 2U, 4U);
}

Result<ConvertedLayer> convert(const LayerLimits& limits) {
  struct stat status {};
  const bool has_below = ::fstat(kLayerBelow, &status) == 0 && S_ISSOCK(status.st_mode);
  auto converter =
      SPC_TRY(LayerConverter::create(kLayerInput, kLayerOutput, worker_count(limits.workers),
                                     limits, has_below ? kLayerBelow : -1));
  SPC_TRY_DURING("entering the sandbox",
                 enter_layer_sandbox(limits.image_bytes, kMemory, cpu_seconds(limits)));
  // From here on, untrusted bytes of the layer are read.
  return converter.run();
}

Result<ConvertedLayer> copy() {
  SPC_TRY_DURING("entering the sandbox",
                 enter_layer_sandbox(LayerLimits{}.image_bytes, kFactsMemory, cpu_seconds({})));
  std::array<char, 64 << 10> some;
  for (ssize_t got; (got = ::read(kLayerInput, some.data(), some.size())) != 0;) {
    if (got < 0) return Error::from_errno(errno, "read the layer");
    SPC_TRY(write_all(kLayerOutput, std::string_view(some.data(), static_cast<std::size_t>(got))));
  }
  return ConvertedLayer{};
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

/// Returns whether the order is for this work. Limits the processors to the number in the order.
bool is_for(const char* work, const char* order) {
  const std::size_t length = std::strlen(work);
  if (std::strncmp(order, work, length) != 0) return false;
  use_processors(static_cast<unsigned>(std::strtoul(order + length, nullptr, 10)));
  return true;
}

Result<ConvertedLayer> guarded(const char* order) {
  try {
    if (is_for(kLayerCopy, order)) return copy();
    std::array<std::uint64_t, 9> numbers{};
    for (char* next = const_cast<char*>(order); std::uint64_t & number : numbers)
      number = std::strtoull(next, &next, 10);
    use_processors(static_cast<unsigned>(numbers[7]));
    return convert({.tar_bytes = numbers[0],
                    .image_bytes = numbers[1],
                    .entries = numbers[2],
                    .workers = static_cast<std::uint32_t>(numbers[3]),
                    .compression = static_cast<LayerCompression>(numbers[4]),
                    .format = static_cast<LayerFormat>(numbers[5]),
                    .merges = static_cast<std::uint32_t>(numbers[6]),
                    .plain_first = static_cast<std::uint32_t>(numbers[8])});
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::no_space,
                 formatted("out of memory, or it needs more than {} MiB", kMemory >> 20U))
        .hint("increase --mem, or split the layer");
  } catch (const std::exception& e) {
    return Error(ErrorKind::internal, e.what());
  }
}

/// Receives the layers over kLayerBelow and sends the records to kLayerReport. Sends none on
/// failure.
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
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // first: other processes of this user may be hostile
  ::mallopt(M_ARENA_MAX, 1);             // one arena: arenas per thread would retain freed memory
  if (argc == 2 && spc::is_for(spc::kLayerFacts, argv[1])) ::_exit(spc::write_facts());
  struct stat output {};
  if (argc != 2 || ::fstat(spc::kLayerOutput, &output) != 0 || !S_ISREG(output.st_mode)) {
    constexpr char kUsage[] = "layer-writer is started by the agent, not manually\n";
    (void)spc::write_all(STDERR_FILENO, std::string_view(kUsage));
    return 2;
  }
  const spc::LayerReport report = spc::report_of(spc::guarded(argv[1]));
  const auto sent = spc::write_all(spc::kLayerReport, std::as_bytes(std::span(&report, 1)));
  // skip exit handlers, which need calls that the sandbox forbids
  ::_exit(sent && !report.error.is_set() ? 0 : 1);
}
