#pragma once

#include <cstdint>

#include "base/digest.hpp"

namespace spc {

/// `records/<hex of the manifest digest>` in the store: all data of an image that a start needs, in
/// one file. `import` writes it, `layer-verifier` compares it with its manifest, the agent
/// publishes it, and it never changes. It starts with this header and `layer_count` layer names,
/// which is all that the agent reads. The sections follow, at the offsets given here. Tasks get the
/// whole file, so it contains no data about other users of the image: images/origins/ has that
/// (image/store/store.hpp).
struct ImageRecordHeader {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'I', 'M', 'G', '2', '\0'};
  static constexpr std::uint32_t kMaxLayers = 500;     ///< overlayfs's limit (OVL_MAX_STACK)
  static constexpr std::int64_t kMaxBytes = 24 << 20;  ///< of the whole file

  struct Section {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };

  char magic[8] = {};
  std::uint32_t layer_count = 0;
  std::uint32_t layer_format = 0;  ///< of its layers: image/store/store.hpp
  std::uint32_t in_place = 0;  ///< 1: the layers are read from the shared store, by `import`
  std::uint32_t unused = 0;
  /// Records `key=value\0` for the task: env, workdir, entrypoint, cmd, user (repeated keys keep
  /// their order), and the facts that `import` found in its files: fact and labels
  /// (convert/facts.hpp), absent in older records.
  Section settings;
  Section manifest;  ///< the bytes whose digest is the file's name
  Section config;    ///< the image configuration as served by the registry
};
// Digest layers[layer_count] follows: the names in layers/sha256/, bottom layer first; see
// layer_name() in image/store/store.hpp.

}  // namespace spc
