#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/store/store.hpp"

namespace spc {

/// Which layers of the store an image from `origin` may use as they are: those of images that are
/// public now, and those that this origin itself has delivered. Knowing a layer's digest is no
/// right to it.
class LayerRights {
 public:
  /// `store` is borrowed.
  LayerRights(const ImageStore& store, std::string origin)
      : store_(store), origin_(std::move(origin)) {}

  Result<bool> may_take(const Digest& layer);
  /// The origin has delivered it.
  Result<void> delivered(const Digest& layer) { return store_.note_delivery(layer, origin_); }

 private:
  const ImageStore& store_;
  std::string origin_;
  std::optional<std::set<Digest>> public_;  // read once, on demand
};

}  // namespace spc
