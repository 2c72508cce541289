#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/registry/manifest.hpp"
#include "image/store/store.hpp"
#include "protocol/bytes_from.hpp"

namespace spc {

/// A layer of an image.
struct ImageLayer {
  Descriptor blob;
  Digest diff_id;     ///< of the uncompressed archive, from the image configuration
  LayerNames names;   ///< that it can have in the store
  std::size_t place;  ///< above so many others
};

/// Name for messages.
inline std::string name_of(const ImageLayer& layer) {
  return "layer " + in_quotes(layer.blob.digest.str());
}

/// Held while a layer is brought: nobody else brings it under the same name meanwhile.
struct LayerLocks {
  std::optional<StoreLock> alone, fitted;
};

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
  /// It is made here, and not only checked.
  [[nodiscard]] virtual bool converts() const { return false; }
  /// Its name in the store, when it is complete.
  [[nodiscard]] virtual Digest name() const = 0;
  /// It needs the layers below it, which can be given when all are complete: the bottom layer
  /// first.
  [[nodiscard]] virtual bool wants_below() const { return false; }
  virtual Result<void> give_below(std::span<const int>) { return {}; }
  /// The layer's file, for reading, as it will be published; -1: it is not written yet.
  [[nodiscard]] virtual int written() const { return -1; }
  /// Another node is bringing the blob into the shared store.
  [[nodiscard]] virtual bool waits_for_node() const = 0;
  /// Whether it is worth another try after an error: other nodes had sent some of its bytes, and
  /// are not asked for it again.
  virtual bool blames_nodes() = 0;
  /// Received bytes of the blob.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
  /// The same by where they came from; of those that came from other nodes Peers knows more.
  [[nodiscard]] const BytesFrom& came() const { return came_; }

 protected:
  BytesFrom came_;
};

}  // namespace spc
