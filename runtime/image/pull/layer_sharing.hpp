#pragma once

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "image/pull/pull_layers.hpp"
#include "image/shared/shared_store.hpp"

namespace spc {

/// `[shared] keep = "layers"`: one node converts an image's layers, the others copy the files.
/// Nodes believe each other about what is in them; the kernel does not: the agent's verifier reads
/// each before it gets its name.
class LayerSharing {
 public:
  /// `place`: registry and repository. `image`: its manifest. Both stores, `agent` and `rights` are
  /// borrowed.
  LayerSharing(const SharedStore& shared, std::string place, const Digest& image,
               const LayerLimits& form, const ImageStore& store, AgentLink& agent,
               LayerRights& rights);
  /// Others may convert from now on.
  ~LayerSharing() { stop_beating(); }
  LayerSharing(const LayerSharing&) = delete;
  LayerSharing& operator=(const LayerSharing&) = delete;

  /// Takes what is there out of the missing ones. While another node converts the rest, it is
  /// waited for.
  Result<void> take(PulledLayers& layers);
  /// Gives others what was missing, and was converted here. What cannot be given costs a line.
  void give(const std::vector<ImageLayer>& missing, const std::vector<HeldLayer>& held);

 private:
  Result<void> take_all(PulledLayers& layers);
  Result<std::optional<Digest>> take_one(const ImageLayer& layer);
  Result<bool> copy_as(const ImageLayer& layer, const Digest& name);
  [[nodiscard]] bool is_wanted(const ImageLayer& layer) const {
    return !name_in_store(layer, store_);
  }
  [[nodiscard]] SharedStore::Layer shared_layer(const ImageLayer& layer, const Digest& name) const;
  void keep_beating();
  void stop_beating();

  const SharedStore& shared_;
  std::string place_;
  Digest image_;
  std::string form_;
  std::uint32_t processors_;
  const ImageStore& store_;
  AgentLink& agent_;
  LayerRights& rights_;
  std::optional<Lease> lease_;  // the thread's while there is one
  std::jthread beating_;
};

}  // namespace spc
