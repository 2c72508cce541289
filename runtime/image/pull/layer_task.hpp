#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/registry/manifest.hpp"

namespace spc {

/// A layer to pull.
struct MissingLayer {
  Descriptor blob;
  Digest diff_id;  ///< of the uncompressed archive, from the image configuration
};

/// Name for messages.
inline std::string name_of(const MissingLayer& layer) { return "layer " + in_quotes(layer.blob.digest.str()); }

/// What a layer waits for.
enum class LayerPhase { fetching, converting, publishing };

/// One layer being pulled. Destruction aborts it.
class LayerTask {
 public:
  virtual ~LayerTask() = default;
  /// Descriptors to poll.
  virtual void watch(std::vector<pollfd>& descriptors) const = 0;
  /// Does what can be done now. True: the layer is complete.
  virtual Result<bool> advance() = 0;
  [[nodiscard]] virtual LayerPhase phase() const = 0;
  /// Received bytes of the blob.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
};

}  // namespace spc
