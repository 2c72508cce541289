#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "filesystem/piece_queue.hpp"
#include "filesystem/tree.hpp"

namespace spc {

// --- decompression ---

/// Reads a blob from `input` to its end and publishes its uncompressed bytes. The content decides
/// between gzip, zstd and plain, not the media type. The blob is decompressed exactly once. Members
/// and frames may be concatenated; after the last one only zeros are accepted.
Result<void> decompress(int input, PieceQueue& queue, std::uint64_t limit);

// --- tar header ---

inline constexpr std::size_t kTarBlock = 512;
using TarBlock = std::span<const std::byte, kTarBlock>;

/// One 512-byte header: V7, ustar or GNU. The constructor checks the checksum and all numbers in
/// use.
struct TarHeader {
  char type = '0';
  std::string name;  ///< including ustar's prefix
  std::string link;
  std::uint64_t size = 0;
  std::uint16_t mode = 0;
  std::uint32_t mtime = 0;

  static Result<TarHeader> parse(TarBlock block);
};

bool is_zero(TarBlock block);

/// The records of a PAX extended header: `LENGTH KEY=VALUE`, each with a line end. Malformed
/// records are refused: a reader that skips unknown data sees a different archive than the next
/// reader.
struct PaxRecords {
  std::string path, link;  ///< empty: not set
  bool has_size = false, has_mtime = false;
  std::uint64_t size = 0;
  std::uint32_t mtime = 0;
  std::vector<Xattr> xattrs;

  /// GNU sparse files 0.0, 0.1 and 1.0; in 1.0 the map precedes the data.
  bool sparse = false, sparse_map_in_data = false, has_sparse_size = false;
  std::uint64_t sparse_size = 0;
  std::vector<Extent> extents;

  static Result<PaxRecords> parse(std::string_view text);
  /// Returns whether the records set an entry's name or the end of its data.
  [[nodiscard]] bool name_or_place() const {
    return !path.empty() || !link.empty() || has_size || sparse;
  }

 private:
  Result<void> apply(std::string_view key, std::string_view value);
  Result<void> apply_sparse(std::string_view key, std::string_view value);
  bool offset_pending_ = false;
};

/// Reads a part of an old GNU sparse map: pairs of numbers in the header and the following blocks.
/// Returns whether another block follows.
Result<bool> append_gnu_sparse_map(TarBlock block, bool is_header, std::vector<Extent>& extents);
/// Returns the file size in an old GNU sparse header.
Result<std::uint64_t> gnu_sparse_size(TarBlock header);

/// Parses digits only, at most 2^63-1.
Result<std::uint64_t> parse_decimal(std::string_view text);

/// Limit of a file's parts, which bounds memory. Sufficient in practice.
inline constexpr std::size_t kMaxExtents = 1'000'000;

// --- tar reader ---

/// Part of an entry's data, in the inflating thread's buffer.
struct TarData {
  std::span<const std::byte> bytes;
  const PieceRef* piece = nullptr;  ///< copy it to keep the bytes
};

/// Reads a tar archive piece by piece: V7, ustar, PAX and GNU, with GNU's three sparse formats.
///
/// Strict where readers differ (CVE-2025-62518): an extended header belongs to the one file entry
/// after it, a size has one source, and malformed input is refused, not skipped. libarchive is
/// laxer: it skips malformed extended headers with a warning, truncates a name at a NUL, and in a
/// UTF-8 locale normalizes names, so that a program may not find its file.
class TarReader {
 public:
  explicit TarReader(PieceQueue& queue) : queue_(queue) {}

  /// Reads the next entry, skipping unread data of the previous one. Returns false at the end of
  /// the archive.
  Result<bool> next(TarEntry& entry);
  /// Returns the next bytes of the entry's stored data, at least one and at most `most`. Empty at
  /// the end.
  Result<TarData> read(std::uint64_t most);
  /// Returns the number of bytes of the archive read so far.
  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// Reads past the end of the archive, where only padding is expected: it belongs to the diffID,
  /// but is not parsed.
  Result<void> drain();

 private:
  Result<std::optional<TarBlock>> block();
  Result<void> skip(std::uint64_t count);
  Result<std::string> text(std::uint64_t size, const char* what);
  Result<bool> header(TarHeader& header);
  Result<void> fill(TarEntry& entry, const TarHeader& header, PaxRecords& pax,
                    const std::string& long_name, const std::string& long_link);
  Result<void> read_gnu_sparse_map(TarEntry& entry);
  Result<void> read_pax_sparse_map(TarEntry& entry);

  PieceQueue& queue_;
  PieceRef piece_;
  std::size_t at_ = 0;  ///< position in the piece
  std::uint64_t position_ = 0;
  std::uint64_t data_ = 0;     ///< unread bytes of the entry's data
  std::uint64_t padding_ = 0;  ///< after the data
  TarBlock last_header_{kNoBlock};
  static constexpr std::byte kNoBlock[kTarBlock] = {};
};

}  // namespace spc
