#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "image/layer/archive/tar_entry.hpp"

namespace spc {

inline constexpr std::size_t kTarBlock = 512;
using TarBlock = std::span<const std::byte, kTarBlock>;

/// One 512-byte header: V7, ustar or GNU. The constructor checks the checksum and every number that
/// is used.
struct TarHeader {
  char type = '0';
  std::string name;  ///< with ustar's prefix
  std::string link;
  std::uint64_t size = 0;
  std::uint16_t mode = 0;
  std::uint32_t mtime = 0;

  static Result<TarHeader> parse(TarBlock block);
};

bool is_zero(TarBlock block);

/// The records of a PAX extended header, `length key=value\n`. Anything malformed is refused: a
/// reader that skips what it does not understand sees a different archive than the next reader.
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
  /// True if they set the name of an entry or the end of its data.
  [[nodiscard]] bool name_or_place() const {
    return !path.empty() || !link.empty() || has_size || sparse;
  }

 private:
  Result<void> apply(std::string_view key, std::string_view value);
  Result<void> apply_sparse(std::string_view key, std::string_view value);
  bool offset_pending_ = false;
};

/// Old GNU sparse maps: pairs of numbers in the header and the following blocks. True if another
/// block follows.
Result<bool> append_gnu_sparse_map(TarBlock block, bool is_header, std::vector<Extent>& extents);
/// The file size in an old GNU sparse header.
Result<std::uint64_t> gnu_sparse_size(TarBlock header);

/// Digits only, at most 2^63-1.
Result<std::uint64_t> parse_decimal(std::string_view text);

/// Sufficient in practice, and bounds memory.
inline constexpr std::size_t kMaxExtents = 1'000'000;

}  // namespace spc
