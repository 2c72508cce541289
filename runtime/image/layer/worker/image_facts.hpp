#pragma once

#include <optional>
#include <span>
#include <string>

#include "image/layer/worker/layer_process.hpp"

namespace spc {

/// The fact sheet of an image that is being pulled. It is found while the last layers are written
/// back and verified; a start waits a second more for it at most. No start needs it: an image
/// without is as good, and whatever fails here is no error.
class ImageFacts {
 public:
  /// `start`: has layer-writer started with kLayerFacts.
  explicit ImageFacts(std::function<Result<LayerProcess::Ends>()> start)
      : start_(std::move(start)) {}
  /// The last layer has been begun: the process is ready when its layers are.
  void prepare();
  /// Whether read() has been called.
  [[nodiscard]] bool is_read() const { return read_; }
  /// All layers of the image as they will be in the store, the bottom layer first; the caller keeps
  /// its descriptors.
  void read(std::span<const int> layers);
  /// As records of image/facts/facts.hpp; empty if the process has failed or takes longer than all
  /// else.
  std::string records();

 private:
  std::function<Result<LayerProcess::Ends>()> start_;
  bool prepared_ = false, read_ = false;
  std::optional<FactsProcess> process_;
};

}  // namespace spc
