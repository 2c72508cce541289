#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/layer_pull.hpp"

namespace spc {

struct PullContext {
  HttpClient& http;
  ImageSource& source;
  ImageStore& store;
  AgentLink& agent;
  std::string image;       ///< as messages call it
  std::size_t layers = 0;  ///< of the image, with those that are there
  std::size_t max_parallel = 2;
  bool meter = false;  ///< progress as numbers instead of lines
};

/// Brings every missing layer into the store, the largest first, several at a time. A layer that another process on
/// this node is converting is waited for; if that process dies, we convert it. Tells the user about progress: at once,
/// then at most once a second. On an error everything underway is dropped.
Result<void> pull_layers(PullContext context, std::vector<MissingLayer> missing);

}  // namespace spc
