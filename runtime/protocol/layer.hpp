#pragma once

#include <cstdint>
#include <string>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// Result of converting a layer.
struct ConvertedLayer {
  Digest diff_id;                     ///< of the uncompressed tar, as in the image configuration
  std::uint64_t tar_bytes = 0;        ///< all decompressed bytes, including padding
  std::uint64_t entries = 0;          ///< entries of the archive
  std::uint64_t dropped_devices = 0;  ///< device nodes are never stored
  std::uint64_t dropped_xattrs = 0;   ///< security.*, trusted.*, system.*, user.overlay.*
  std::uint64_t fitted =
      0;  ///< not 0: it was fitted to the layers below, and is of use above those only
};

enum class LayerCompression : std::uint32_t { zstd, lz4, none };
/// erofs: with lz4 or none. owned_squashfs: its list of owners has two entries, for user and group.
/// Where the kernel cannot map owners, a copy that shares the layer's blocks gets a list of its own
/// (agent/builder/loop_device.hpp).
enum class LayerFormat : std::uint32_t { squashfs, erofs, owned_squashfs };

struct LayerLimits {
  /// Refuses a layer that decompresses to more, including holes of files.
  std::uint64_t tar_bytes = std::uint64_t{1} << 40;
  /// Size limit of the image file (RLIMIT_FSIZE).
  std::uint64_t image_bytes = std::uint64_t{1} << 40;
  std::uint64_t entries = 4'000'000;
  /// Compressing threads; 0: as many as one inflating thread can feed.
  std::uint32_t workers = 0;
  LayerCompression compression = LayerCompression::zstd;
  LayerFormat format = LayerFormat::squashfs;
  /// Not 0: no archive comes, the topmost so many of the layers that come over kLayerBelow are made
  /// one; those under them stay.
  std::uint32_t merges = 0;
  std::uint32_t processors = 0;  ///< that the process may use; 0: all
};

/// `layer-writer` is started with these descriptors; 0 is /dev/null, 1 and 2 are that or a log.
inline constexpr int kLayerOutput = 3;  ///< an empty regular file, open for reading and writing
inline constexpr int kLayerReport = 4;  ///< a pipe or SEQPACKET socket, takes one LayerReport
/// A socket, for a layer that will lie in an image: when the archive has been read and means
/// another thing above other layers, it gets one LayersBelowQuestion, and its answers are the
/// layers below, the bottom layer first: LayersBelowAnswer with descriptors, open for reading, as
/// many messages as it takes. Without it the layer is converted as if it were alone.
inline constexpr int kLayerBelow = 5;
inline constexpr int kLayerPipe = 1 << 20;  ///< bytes that the pipe holds, if the system allows it
inline constexpr int kLayerInput = 6;       ///< a pipe with the blob's bytes, to the end of file

/// The program's one argument for a conversion: the members in this order, as decimal numbers.
inline std::string order_of(const LayerLimits& limits) {
  std::string order;
  for (const std::uint64_t number :
       {limits.tar_bytes, limits.image_bytes, limits.entries, std::uint64_t{limits.workers},
        static_cast<std::uint64_t>(limits.compression), static_cast<std::uint64_t>(limits.format),
        std::uint64_t{limits.merges}, std::uint64_t{limits.processors}})
    order += std::to_string(number) + " ";
  return order;
}

struct LayersBelowQuestion {
  std::uint64_t entries = 0;  ///< of the archive
};
struct LayersBelowAnswer {
  std::uint64_t more = 0;  ///< not 0: another answer follows
};
inline constexpr std::size_t kMaxLayersBelow = 500;

/// `layer-writer facts`, and with a space and a number: on so many processors. Gets the layers of a
/// whole image over kLayerBelow, unasked, and writes its fact sheet to kLayerReport, as records of
/// image/facts/facts.hpp.
inline constexpr char kLayerFacts[] = "facts";
/// `layer-writer copy`, likewise: writes its input to the file as it is, for a layer that another
/// node has converted.
inline constexpr char kLayerCopy[] = "copy";

inline std::string order_of(const char* work, std::uint32_t processors) {
  return processors == 0 ? work : std::string(work) + " " + std::to_string(processors);
}

/// The only output of the sandbox apart from the image file. Fixed size: nothing to parse.
struct LayerReport {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'L', 'A', 'Y', '3', '\0'};
  char magic[8] = {};
  WireError error;  ///< not set: success
  ConvertedLayer layer;
};

}  // namespace spc
