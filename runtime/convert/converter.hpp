#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/layer.hpp"

namespace spc {

// --- sandbox ---

/// Confines all threads of this process to computing, using their open descriptors and exiting
/// (base/process/sandbox.hpp). `largest_file`: maximum size of a file. The limits of memory and
/// processor time are a second defence behind Budget.
Result<void> enter_layer_sandbox(std::uint64_t largest_file, std::uint64_t memory,
                                 std::uint64_t cpu_seconds);

// --- layer facts ---

/// Returns the fact sheet of an image of these layers, bottom layer first, as records
/// (convert/facts.hpp).
Result<std::string> facts_of_layers(std::vector<UniqueFd> layers);

// --- converter ---

/// Converts one layer blob into one squashfs or erofs image while streaming: one thread inflates,
/// one hashes the output, the caller's thread parses the archive, and `workers` compress blocks.
/// Memory is bounded and nothing is unpacked. The tree (about 300 bytes per entry) is bounded by
/// Budget.
class LayerConverter {
 public:
  /// Prepares everything that needs a system call forbidden by the sandbox, above all threads.
  /// Reads no input yet. `output` is empty and open for reading and writing; the caller owns both
  /// descriptors. `below`: the socket kLayerBelow, or -1.
  static Result<LayerConverter> create(int input, int output, unsigned workers,
                                       const LayerLimits& limits, int below = -1);
  LayerConverter(LayerConverter&&) noexcept;
  ~LayerConverter();

  /// Converts the layer. Errors name the entry. Call once.
  Result<ConvertedLayer> run();

 private:
  class Work;
  explicit LayerConverter(std::unique_ptr<Work> work);
  std::unique_ptr<Work> work_;
};

}  // namespace spc
