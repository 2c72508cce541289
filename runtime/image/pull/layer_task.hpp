#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/registry/manifest.hpp"

namespace spc {

/// A layer that has to be brought.
struct MissingLayer {
  Descriptor blob;
  Digest diff_id;  ///< of the tar archive in the blob, by the image's configuration
};

/// As messages call it.
inline std::string name_of(const MissingLayer& layer) { return "layer " + in_quotes(layer.blob.digest.str()); }

/// What a layer waits for.
enum class LayerPhase { fetching, converting, publishing };

/// One layer on its way. Dropping it ends the way.
class LayerTask {
 public:
  virtual ~LayerTask() = default;
  /// Descriptors whose readiness lets it go on.
  virtual void watch(std::vector<pollfd>& descriptors) const = 0;
  /// Does what can be done now. True: it has arrived.
  virtual Result<bool> advance() = 0;
  [[nodiscard]] virtual LayerPhase phase() const = 0;
  /// Bytes of the blob that have come.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
};

}  // namespace spc
