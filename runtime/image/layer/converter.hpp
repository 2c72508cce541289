#pragma once

#include <memory>

#include "base/result.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// Converts one layer blob into one squashfs or erofs image while streaming: one thread inflates,
/// one hashes the output, the caller's thread parses the archive, and `workers` compress blocks.
/// Nothing is unpacked and memory is bounded, but for the tree (about 300 bytes per entry), which
/// Budget bounds.
class LayerConverter {
 public:
  /// Prepares everything that needs a system call forbidden by the sandbox, above all threads.
  /// Reads nothing yet. `output` is empty and open for reading and writing; the caller owns both
  /// descriptors. `below`: the socket kLayerBelow, or -1.
  static Result<LayerConverter> create(int input, int output, unsigned workers,
                                       const LayerLimits& limits, int below = -1);
  LayerConverter(LayerConverter&&) noexcept;
  ~LayerConverter();

  /// Converts. Errors name the entry. Call it once.
  Result<ConvertedLayer> run();

 private:
  class Work;
  explicit LayerConverter(std::unique_ptr<Work> work);
  std::unique_ptr<Work> work_;
};

}  // namespace spc
