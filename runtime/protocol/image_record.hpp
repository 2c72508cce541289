#pragma once

#include <cstdint>

#include "base/digest.hpp"

namespace spc {

/// `images/<hex of the manifest digest>` in the store: everything a start needs of an image, in one file that is
/// written once by `import`. It begins with this header and `layer_count` layer names, which is all that the agent
/// reads; behind them lie the sections, at the offsets given here. Tasks are given the whole file, so it says nothing about
/// who else uses the image: that lies in images/origins/ (image/record.hpp).
struct ImageRecordHeader {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'I', 'M', 'G', '2', '\0'};
  static constexpr std::uint32_t kMaxLayers = 500;  ///< overlayfs takes no more (OVL_MAX_STACK)

  struct Section {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };

  char magic[8] = {};
  std::uint32_t layer_count = 0;
  std::uint32_t layer_format = 0;  ///< of the layers it names: image/store.hpp
  /// Until when (seconds since 1970) anybody may use the image without asking the registry; 0: it is private.
  std::int64_t public_until = 0;
  /// Records `key=value\0` for the task: env, workdir, entrypoint, cmd, user (repeated keys keep their order).
  Section settings;
  Section manifest;  ///< the bytes whose digest is the file's name
  Section config;    ///< the image configuration as the registry gave it
};
// Digest layers[layer_count] follows: the names in layers/sha256/, bottom layer first; see layer_name() in image/store.hpp.

}  // namespace spc
