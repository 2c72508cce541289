#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/layer/worker/image_facts.hpp"
#include "image/peers/peers.hpp"
#include "image/pull/import_timing.hpp"
#include "image/pull/layer_pull.hpp"
#include "image/pull/layer_rights.hpp"

namespace spc {

struct PullContext {
  HttpClient& http;
  ImageSource& source;
  const ImageStore& store;
  AgentLink& agent;
  LayerRights& rights;
  std::string image;       ///< for messages
  std::size_t layers = 0;  ///< of the image, including those in the store
  std::size_t max_parallel = 2;
  LayerLimits limits;
  bool meter = false;      ///< progress as numbers instead of lines
  Peers* peers = nullptr;  ///< hear of progress; null: there are none
  ImageFacts& facts;       ///< is given the layers as soon as all are written
  ImportTiming& timing;
};

/// A layer that is in the store and may be taken; it cannot be evicted while it is held.
struct HeldLayer {
  Digest name;
  UniqueFd file;  ///< empty: it is just being evicted
};

/// The name under which the store has the layer, alone or fitted.
std::optional<Digest> name_in_store(const ImageLayer& layer, const ImageStore& store);

/// The layers of one image, by their places.
struct PulledLayers {
  std::vector<std::optional<HeldLayer>> held;
  std::vector<ImageLayer> missing;  ///< for the other places
};

/// Whether the places of two layers, one above the other, have one merged file.
inline bool is_same_file(const HeldLayer& layer, const HeldLayer& above) {
  return layer.name == above.name;
}

/// Pulls every missing layer into the store, the largest first, several in parallel. For a layer
/// that is in the store from elsewhere, the bytes are fetched nevertheless, and only checked. A
/// layer that another process on this node is pulling is awaited; if that process dies or takes too
/// long, it is pulled here. A layer that must be fitted to those below it waits until these are
/// complete, which takes nobody's turn. Reports progress at once, then at most once a second. An
/// error aborts everything. Returns all layers, by their places.
Result<std::vector<HeldLayer>> pull_layers(const PullContext& context, PulledLayers layers);

/// Makes one file of each run of several layers and publishes it. Returns the files of the image,
/// one for each run. What the merged layers were stays in the store until its room is needed, or
/// for a day.
Result<std::vector<HeldLayer>> merge_layers(const PullContext& context,
                                            std::span<const LayerRun> runs,
                                            std::span<const ImageLayer> layers,
                                            std::vector<HeldLayer> held);

}  // namespace spc
