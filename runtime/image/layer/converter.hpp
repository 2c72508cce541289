#pragma once

#include <memory>

#include "base/result.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// Turns one layer blob into one squashfs file as it streams: a thread inflates, one hashes what comes out, the caller's
/// parses the archive, and `workers` compress blocks. Nothing is unpacked and memory is bounded, but for the tree
/// (about 300 bytes an entry).
class LayerConverter {
 public:
  /// Makes everything that needs a system call that the sandbox forbids, above all the threads. Reads nothing yet.
  /// `output` is empty and open for reading and writing; both descriptors stay the caller's.
  static Result<LayerConverter> create(int input, int output, unsigned workers, const LayerLimits& limits);
  LayerConverter(LayerConverter&&) noexcept;
  ~LayerConverter();

  /// Converts. Errors name the entry they are about. Call it once.
  Result<ConvertedLayer> run();

 private:
  class Work;
  explicit LayerConverter(std::unique_ptr<Work> work);
  std::unique_ptr<Work> work_;
};

}  // namespace spc
