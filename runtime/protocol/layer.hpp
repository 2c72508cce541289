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
  /// not 0: the layer was fitted to the layers below and is usable only above them
  std::uint64_t fitted = 0;
  // Milliseconds of the decompressing thread: it waited for bytes of the blob, it worked, it waited
  // until its output was hashed and written.
  std::uint64_t link_ms = 0, inflate_ms = 0, write_ms = 0;
};

enum class LayerCompression : std::uint32_t { zstd, lz4, none };
/// Format of a layer's image. erofs: with lz4 or uncompressed. owned_squashfs: its list of owners
/// has two entries, for user and group. Where the kernel cannot map owners, a copy that shares the
/// layer's blocks gets its own list (agent/builder.hpp).
enum class LayerFormat : std::uint32_t { squashfs, erofs, owned_squashfs };

/// Super block of a squashfs 4.0 as on disk, little-endian like this machine.
struct SquashfsSuper {
  static constexpr std::uint32_t kMagic = 0x73717368;        // "hsqs"
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  ///< of a table: there is none
  static constexpr std::uint32_t kTableBlockBytes = 8192;    ///< of a table's block, unpacked
  static constexpr std::uint16_t kTablePlain = 1U << 15U;    ///< in its size: not compressed
  static constexpr std::uint32_t kDataPlain = 1U << 24U;     ///< in the size of a content's block

  std::uint32_t magic = 0, inode_count = 0, date = 0;
  std::uint32_t block_size = 0;  ///< bytes, a power of two
  std::uint32_t fragment_count = 0;
  std::uint16_t compressor = 0, block_bits = 0, flags = 0;
  std::uint16_t owners = 0;  ///< entries of the list of owners
  std::uint16_t major = 0, minor = 0;
  std::uint64_t root = 0;  ///< inode of the root directory: a reference into the inode table
  std::uint64_t bytes_used = 0;
  // Positions in bytes; those of owners and fragments of the list of the table's blocks.
  std::uint64_t owner_table = 0, xattr_table = kNone, inode_table = 0, directory_table = 0;
  std::uint64_t fragment_table = 0, export_table = kNone;
};
static_assert(sizeof(SquashfsSuper) == 96);

struct LayerLimits {
  /// Limit of the decompressed bytes of a layer, including holes of files.
  std::uint64_t tar_bytes = std::uint64_t{1} << 40;
  /// Size limit of the image file (RLIMIT_FSIZE).
  std::uint64_t image_bytes = std::uint64_t{1} << 40;
  std::uint64_t entries = 4'000'000;
  /// Compressing threads; 0: as many as one inflating thread can feed.
  std::uint32_t workers = 0;
  LayerCompression compression = LayerCompression::zstd;
  LayerFormat format = LayerFormat::squashfs;
  /// Not 0: no archive follows. The topmost `merges` of the layers that arrive over kLayerBelow are
  /// merged into one; the layers under them are unchanged.
  std::uint32_t merges = 0;
  std::uint32_t processors = 0;  ///< number of processors that the process may use; 0: all
  /// Not 0: contents are compressed only once the disk is slower than the conversion without that.
  std::uint32_t plain_first = 0;
};

/// `layer-writer` is started with these descriptors; 0 is /dev/null, 1 and 2 are that or a log.
inline constexpr int kLayerOutput = 3;  ///< an empty regular file, open for reading and writing
inline constexpr int kLayerReport = 4;  ///< a pipe or SEQPACKET socket, takes one LayerReport
/// A socket, for a layer of an image. If the archive's meaning depends on the layers below, the
/// program sends one LayersBelowQuestion after reading the archive. The answers are the layers
/// below, the bottom layer first: LayersBelowAnswer with descriptors, open for reading, in as many
/// messages as needed. Without the socket the layer is converted without regard to other layers.
inline constexpr int kLayerBelow = 5;
/// capacity of the pipe in bytes, if the system allows it
inline constexpr int kLayerPipe = 1 << 20;
inline constexpr int kLayerInput = 6;  ///< a pipe with the blob's bytes, to the end of file

/// Returns the program's one argument for a conversion: the members in this order, as decimal
/// numbers.
inline std::string order_of(const LayerLimits& limits) {
  std::string order;
  for (const std::uint64_t number :
       {limits.tar_bytes, limits.image_bytes, limits.entries, std::uint64_t{limits.workers},
        static_cast<std::uint64_t>(limits.compression), static_cast<std::uint64_t>(limits.format),
        std::uint64_t{limits.merges}, std::uint64_t{limits.processors},
        std::uint64_t{limits.plain_first}})
    order += std::to_string(number) + " ";
  return order;
}

struct LayersBelowQuestion {
  std::uint64_t entries = 0;  ///< entries of the archive
};
struct LayersBelowAnswer {
  std::uint64_t more = 0;  ///< not 0: another answer follows
};
inline constexpr std::size_t kMaxLayersBelow = 500;

/// `layer-writer facts [PROCESSORS]` receives the layers of a whole image over kLayerBelow,
/// unasked, and writes its fact sheet to kLayerReport, as records of convert/facts.hpp.
inline constexpr char kLayerFacts[] = "facts";
/// `layer-writer copy [PROCESSORS]` writes its input to the file unchanged, for a layer that
/// another node has converted.
inline constexpr char kLayerCopy[] = "copy";

inline std::string order_of(const char* work, std::uint32_t processors) {
  return processors == 0 ? work : std::string(work) + " " + std::to_string(processors);
}

/// The only output of the sandbox apart from the image file. Its fixed size needs no parsing.
struct LayerReport {
  static constexpr char kMagic[8] = {'S', 'P', 'C', 'L', 'A', 'Y', '4', '\0'};
  char magic[8] = {};
  WireError error;  ///< not set: success
  ConvertedLayer layer;
};

}  // namespace spc
