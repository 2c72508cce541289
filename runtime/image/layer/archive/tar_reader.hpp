#pragma once

#include <optional>

#include "image/layer/archive/piece_queue.hpp"
#include "image/layer/archive/tar_header.hpp"

namespace spc {

/// Part of an entry's data, where the inflating thread put it.
struct TarData {
  std::span<const std::byte> bytes;
  const PieceRef* piece = nullptr;  ///< copy it to keep the bytes
};

/// Reads a tar archive piece by piece: V7, ustar, PAX and GNU, with GNU's three sparse formats.
///
/// It is strict where readers differ (CVE-2025-62518): an extended header belongs to the one file
/// entry after it, a size comes from one place, and malformed input is refused, not skipped.
/// libarchive is laxer: it skips malformed extended headers with a warning, cuts a name at a NUL,
/// and in a UTF-8 locale normalizes names, so that a program no longer finds its file.
class TarReader {
 public:
  explicit TarReader(PieceQueue& queue) : queue_(queue) {}

  /// The next entry; false at the end of the archive. Skips unread data of the previous one.
  Result<bool> next(TarEntry& entry);
  /// The next bytes of the entry's stored data, at least one and at most `most`; empty at the end.
  Result<TarData> read(std::uint64_t most);
  /// Bytes of the archive up to here.
  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// Reads past the end of the archive, where only padding should be: it belongs to the diffID, but
  /// is not parsed.
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
