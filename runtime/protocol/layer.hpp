#pragma once

#include <cstdint>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// What became of a layer.
struct ConvertedLayer {
  Digest diff_id;                     ///< of the uncompressed tar, as the image's configuration names it
  std::uint64_t tar_bytes = 0;        ///< all bytes behind the decompressor, padding included
  std::uint64_t entries = 0;          ///< entries of the archive
  std::uint64_t dropped_devices = 0;  ///< device nodes are never stored
  std::uint64_t dropped_xattrs = 0;   ///< security.*, trusted.*, system.*, user.overlay.*
};

struct LayerLimits {
  /// Refuses a layer that unpacks to more; a file's holes count too.
  std::uint64_t tar_bytes = std::uint64_t{1} << 40;
  /// The image file grows no further (RLIMIT_FSIZE).
  std::uint64_t image_bytes = std::uint64_t{1} << 40;
  std::uint64_t entries = 4'000'000;
  /// Threads that compress; 0: as many as one thread can feed that inflates.
  std::uint32_t workers = 0;
};

/// `layer-writer` is started with these descriptors; 1 and 2 are /dev/null or a log.
inline constexpr int kLayerInput = 0;   ///< the blob's bytes, to the end of file
inline constexpr int kLayerOutput = 3;  ///< an empty regular file, open for reading and writing
inline constexpr int kLayerReport = 4;  ///< takes one LayerReport

/// The only thing that leaves the sandbox apart from the image file. Fixed size: nothing to parse.
struct LayerReport {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'L', 'A', 'Y', '2', '\0'};
  char magic[8] = {};
  WireError error;  ///< not set: here is the layer
  ConvertedLayer layer;
};

}  // namespace spc
