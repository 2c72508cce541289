#pragma once

#include <array>
#include <memory>

#include "image/verify/block_reader.hpp"
#include "image/verify/input/layer_bytes.hpp"

namespace spc::verify {

inline constexpr std::size_t kMetaBytes = 8192;

/// A table stored in metadata blocks, read once from start to end.
///
/// All blocks but the last are full, and they fill the table's range in the file without gaps. So
/// whatever is read here in order is where the writer put it, and nothing is anywhere else.
class MetaStream {
 public:
  /// Of the next byte, as references in the image state it: the block's position in the table, and
  /// the offset in it. After the last byte of a full block this is the next one.
  struct Position {
    std::uint64_t block = 0;
    std::uint32_t offset = 0;
    bool operator==(const Position&) const = default;
    [[nodiscard]] std::uint64_t reference() const { return block << 16U | offset; }
  };

  /// `begin` and `end`: of the table in the file, within its size. `name` is for errors and
  /// outlives this.
  MetaStream(LayerBytes& layer, Codec codec, const char* name, std::uint64_t begin,
             std::uint64_t end);

  Result<void> read(std::span<std::byte> into);
  Result<void> skip(std::uint64_t count);
  template <std::size_t size>
  Result<std::array<std::byte, size>> take() {
    std::array<std::byte, size> bytes;
    SPC_TRY(read(bytes));
    return bytes;
  }

  [[nodiscard]] Position position() const;
  [[nodiscard]] bool at_end() const { return at_ == filled_ && next_ == end_; }
  /// Refuses a table with more data.
  Result<void> expect_end() const;

 private:
  struct Buffers {
    std::array<std::byte, kMetaBytes> content;
    std::array<std::byte, kMetaBytes + 2> stored;
  };

  Result<void> load();
  [[nodiscard]] Error bad(const char* what) const;

  LayerBytes& layer_;
  const char* name_;
  std::uint64_t begin_;
  std::uint64_t end_;
  std::uint64_t block_;  ///< start of the current block in the file
  std::uint64_t next_;   ///< its end
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  BlockReader blocks_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace spc::verify
