#pragma once

#include <zstd.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace spc::verify {

// --- layer bytes ---

/// The bytes of a layer's file, or test data.
class LayerBytes {
 public:
  virtual ~LayerBytes() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// Fills `into` with the bytes at `offset`. The caller has checked the bounds.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) = 0;
};

/// Bytes in memory.
class SpanBytes : public LayerBytes {
 public:
  explicit SpanBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) override {
    if (!into.empty())
      std::memcpy(into.data(), bytes_.subspan(offset, into.size()).data(), into.size());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

/// Reader of consecutive little-endian numbers. The caller has checked the size.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::unsigned_integral Number>
  Number take() {
    Number number = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
      number = static_cast<Number>(number | static_cast<Number>(bytes_[i]) << (8 * i));
    }
    bytes_ = bytes_.subspan(sizeof(Number));
    return number;
  }

 private:
  std::span<const std::byte> bytes_;
};

inline Error refused(std::string what) { return Error(ErrorKind::refused, std::move(what)); }

// --- zstd frame ---

/// Checks the headers of a frame of `size` bytes at `place` in `layer`. Returns its decompressed
/// size. Accepts only frames as the layer writer generates them: one frame, the content size in its
/// shortest form, a window of that size, no dictionary, no checksum, blocks up to the end.
Result<std::size_t> check_frame(LayerBytes& layer, std::uint64_t place, std::uint64_t size);

/// Decompressor of whole frames.
class FrameReader {
 public:
  FrameReader();

  /// Decompresses a frame, checked as above, to the start of `into`. Returns the number of bytes.
  /// Refuses a frame that does not fit.
  Result<std::size_t> unpack(std::span<const std::byte> frame, std::span<std::byte> into);

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
};

// --- block reader ---

/// Compression of all blocks of an image, numbered as in the super block.
enum class Codec : std::uint16_t { lz4 = 5, zstd = 6 };

/// Decompressor of whole blocks.
class BlockReader {
 public:
  explicit BlockReader(Codec codec) : codec_(codec) {}

  /// Decompresses a block to the start of `into`. Returns the number of bytes. Refuses a block that
  /// does not fit, and a zstd frame that the layer writer does not generate.
  Result<std::size_t> unpack(std::span<const std::byte> block, std::span<std::byte> into);

 private:
  Codec codec_;
  FrameReader frames_;
};

// --- super block ---

inline constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;

/// Positions of all parts of an image. If reading succeeds, super block, compressor options, owner
/// table, position lists and padding are exactly those that the layer writer generates for an image
/// of these sizes. All ranges are in this order, within the file, without gaps.
struct Layout {
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  Codec codec = Codec::zstd;
  std::uint32_t inode_count = 0;
  std::uint16_t group = 0;  ///< of all inodes: index into the owner table
  std::uint64_t root = 0;   ///< reference into the inode table
  Range data;
  Range inodes;
  Range directories;
  std::uint32_t fragment_count = 0;
  std::uint64_t fragment_places = 0;  ///< position of the list of fragment block positions
  Range fragments;
  bool has_attributes = false;
  std::uint32_t attribute_sets = 0;
  std::uint64_t attribute_places = 0;  ///< position of the list of attribute block positions
  Range attributes;
  Range sets;
  /// value of a super block flag that the fragments must match
  bool fragments_stored_as_is = false;

  static Result<Layout> read(LayerBytes& layer);
};

/// Returns the number of metadata blocks of a table of 16-byte entries.
constexpr std::uint64_t blocks_for(std::uint64_t entries) { return (entries * 16 + 8191) / 8192; }

/// Returns the 64-bit number at `offset`, which must be within the file.
Result<std::uint64_t> number_at(LayerBytes& layer, std::uint64_t offset);

// --- meta stream ---

inline constexpr std::size_t kMetaBytes = 8192;

/// A table stored in metadata blocks, read once from start to end.
///
/// All blocks but the last are full, and they fill the table's range in the file without gaps. So
/// data read here in order is where the writer stored it, and the range contains no other data.
class MetaStream {
 public:
  /// Position of the next byte, in the form of references in the image: the block's position in the
  /// table, and the offset in the block. After the last byte of a full block this is the start of
  /// the next one.
  struct Position {
    std::uint64_t block = 0;
    std::uint32_t offset = 0;
    bool operator==(const Position&) const = default;
    [[nodiscard]] std::uint64_t reference() const { return block << 16U | offset; }
  };

  /// `begin` and `end`: bounds of the table, within the file. `name` is for errors and outlives
  /// this object.
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

// --- listing ---

/// The stored entries of one directory: groups with one metadata block of inodes and similar inode
/// numbers. Each group has a header and is as long as possible.
class Listing {
 public:
  struct Entry {
    std::string_view name;  ///< valid until the next call
    std::uint32_t number = 0;
    std::uint64_t block = 0;  ///< block of the inode's position
    std::uint16_t offset = 0;
    std::uint16_t kind = 0;
  };
  /// Start of a group. The inodes of long directories repeat it.
  struct Begin {
    std::uint64_t at = 0;  ///< offset in the listing
    std::uint64_t block = 0;
  };

  /// Reads `size` bytes from the position of `stream`.
  Listing(MetaStream& stream, std::uint64_t size) : stream_(stream), size_(size) {}

  /// Returns the next entry, or empty at the end. Checks that names are valid and sorted.
  Result<std::optional<Entry>> next();
  /// Returns the start of the group if the last entry was its first.
  [[nodiscard]] const std::optional<Begin>& group_begin() const { return begin_; }

 private:
  struct Group {
    std::uint32_t left = 0;   ///< unread entries
    std::uint32_t count = 0;  ///< read entries
    /// end of the last entry, counted from the start of the metadata block
    std::uint64_t bytes = 0;
    std::uint32_t block = 0;
    std::uint32_t number = 0;  ///< inode number of the first entry
    [[nodiscard]] bool has_room_for(const Entry& entry) const;
  };

  Result<void> begin_group();

  MetaStream& stream_;
  std::uint64_t size_;
  std::uint64_t at_ = 0;
  Group group_;
  std::optional<Begin> begin_;
  std::string name_;
  std::string last_name_;
};

}  // namespace spc::verify
