#pragma once

#include <vector>

#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// What comes over kLayerBelow: the bottom layer first.
inline Result<std::vector<UniqueFd>> receive_layers(int socket) {
  std::vector<UniqueFd> layers;
  LayersBelowAnswer answer{.more = 1};
  while (answer.more != 0) {
    auto some = SPC_TRY(receive_struct(socket, answer, kMaxDescriptorsPerMessage));
    for (UniqueFd& layer : some) layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace spc
