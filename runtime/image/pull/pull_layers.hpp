#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.hpp"
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
  bool meter = false;  ///< progress as numbers instead of lines
  ImportTiming& timing;
};

/// Pulls every missing layer into the store, the largest first, several in parallel. For a layer that is in the store from
/// elsewhere, the bytes are fetched nevertheless, and only checked. A layer that another process on this node is
/// pulling is awaited; if that process dies or takes too long, it is pulled here. Reports
/// progress at once, then at most once a second. An error aborts everything. Returns the layers, which cannot be evicted
/// while they are held.
Result<std::vector<UniqueFd>> pull_layers(PullContext context, std::vector<MissingLayer> missing);

}  // namespace spc
