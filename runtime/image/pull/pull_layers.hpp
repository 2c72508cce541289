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
  std::string image;       ///< as messages call it
  std::size_t layers = 0;  ///< of the image, with those that are there
  std::size_t max_parallel = 2;
  bool meter = false;  ///< progress as numbers instead of lines
  ImportTiming& timing;
};

/// Brings every missing layer into the store, the largest first, several at a time; of a layer that came from elsewhere
/// into the store the bytes are asked for all the same and only checked. A layer that another process on this node is
/// bringing is waited for; if that process dies, or takes longer than any honest one, we bring it. Tells the user about
/// progress: at once, then at most once a second. On an error everything underway is dropped. Gives back the layers: as long
/// as they are held nobody takes them out of the store.
Result<std::vector<UniqueFd>> pull_layers(PullContext context, std::vector<MissingLayer> missing);

}  // namespace spc
