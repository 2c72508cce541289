#include <algorithm>
#include <array>
#include <limits>

#include "filesystem/erofs_writer.hpp"
#include "filesystem/image_reader.hpp"

namespace spc::fuse {

namespace {

using namespace erofs;

static_assert(kErofsHeadBytes == kSuperAt + sizeof(SuperBlock));

constexpr std::uint64_t kUnitBytes = 128 << 10;
constexpr std::uint64_t kUnitBlocks = kUnitBytes / kBlock;
// chunk format: 2^5 blocks per chunk, with a list of block numbers
constexpr std::uint32_t kChunksOfUnits = 5;

// Inodes.
constexpr std::size_t kCompactInodeBytes = 32;
constexpr std::uint16_t kExtendedInode = 1;

// The index of a compressed file: a header, then an entry for each block.
constexpr std::size_t kIndexHeaderBytes = 16;
constexpr std::size_t kIndexEntryBytes = 8;
// header of an index: clusters of several blocks, lz4, one entry for 4 KiB
constexpr std::uint64_t kIndexHeader = std::uint64_t{2} << 32U;
constexpr std::uint32_t kPlainEntry = 0, kHeadEntry = 1, kNonHeadEntry = 2;
constexpr std::uint16_t kBlockCount = 0x800;

constexpr std::size_t kDirentBytes = 12;
constexpr std::array<mode_t, 8> kDirentModes{0,       S_IFREG, S_IFDIR,  S_IFCHR,
                                             S_IFBLK, S_IFIFO, S_IFSOCK, S_IFLNK};

constexpr std::uint64_t rounded_up(std::uint64_t number, std::uint64_t unit) {
  return (number + unit - 1) / unit * unit;
}

std::span<const std::byte> bytes_of(const Piece& piece) {
  return {piece.block->bytes.get() + piece.offset, piece.size};
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const char* xattr_prefix(std::uint8_t index, bool of_users) {
  switch (index) {
    case 1: return "user.";
    case 4: return "trusted.";
    case 6: return "security.";
    case 2: return of_users ? "system.posix_acl_access" : nullptr;  // the whole name
    case 3: return of_users ? "system.posix_acl_default" : nullptr;
    default: return nullptr;
  }
}

/// Fields of the super block in addition to the summary.
struct ErofsSuper {
  std::uint64_t inodes_at = 0;  ///< base position of nids
  std::uint64_t shared_at = 0;  ///< position of the shared attributes
  std::uint64_t date = 0;       ///< date of compact inodes
  bool of_users = false;
};

/// Reads EROFS images as written by the layer writer: blocks of 4 KiB, extended inodes, contents in
/// units of 128 KiB that are plain, holes or compressed with lz4. For users' images, also reads
/// those of mkfs.erofs without compression: compact inodes, the end of a file after its inode,
/// shared attributes. Refuses other images when opened, or when an unsupported part is read.
///
/// References and numbers of inodes are their nids.
class ErofsReader final : public ImageReader {
 public:
  ErofsReader(const ImageFile& image, const ImageSummary& summary, const ErofsSuper& super,
              const CacheLimits& limits, Unpacker unpacker)
      : ImageReader(image, summary, limits, unpacker), super_(super) {}

 private:
  // metadata_ is by block number, data_ by position of the first block and number of compressed
  // blocks.

  Result<SharedBlock> metadata_block(std::uint64_t number) {
    return metadata_.get(number, [&]() -> Result<Block> {
      Block block{.bytes = std::make_unique_for_overwrite<std::byte[]>(kBlock), .size = kBlock};
      SPC_TRY(image_.read(number * kBlock, {block.bytes.get(), block.size}));
      return block;
    });
  }

  Result<void> read_metadata(std::uint64_t position, std::span<std::byte> into) {
    while (!into.empty()) {
      const auto block = SPC_TRY(metadata_block(position / kBlock));
      const std::size_t offset = position % kBlock;
      const std::size_t count = std::min(into.size(), block->size - offset);
      std::memcpy(into.data(), block->bytes.get() + offset, count);
      into = into.subspan(count);
      position += count;
    }
    return {};
  }

  Result<Inode> load_inode(std::uint64_t reference) override {
    if (reference > image_.size() / kSlot) return damaged("an inode beyond the end of the image");
    const std::uint64_t position = super_.inodes_at + reference * kSlot;
    std::array<std::byte, kInodeBytes> fields{};
    SPC_TRY(read_metadata(position, std::span(fields).first(kCompactInodeBytes)));
    const auto format = number_at<std::uint16_t>(fields, 0);
    const bool is_compact = (format & kExtendedInode) == 0;
    if ((is_compact && !super_.of_users) || format >> 4U != 0)
      return damaged("an inode of unknown form");
    if (!is_compact) SPC_TRY(read_metadata(position, fields));

    Inode inode;
    inode.reference = inode.number = reference;
    const mode_t mode = number_at<std::uint16_t>(fields, 4);
    const mode_t type = mode & S_IFMT;
    if (type == 0 ||
        std::find(kDirentModes.begin(), kDirentModes.end(), type) == kDirentModes.end()) {
      return damaged("an inode of unknown type");
    }
    inode.mode = type | (mode & kKeptMode);
    inode.size =
        is_compact ? number_at<std::uint32_t>(fields, 8) : number_at<std::uint64_t>(fields, 8);
    const auto mtime = is_compact ? super_.date : number_at<std::uint64_t>(fields, 32);
    if (mtime > std::numeric_limits<std::uint32_t>::max()) return damaged("an invalid date");
    inode.mtime = static_cast<std::uint32_t>(mtime);
    inode.links =
        is_compact ? number_at<std::uint16_t>(fields, 6) : number_at<std::uint32_t>(fields, 44);
    const auto start = number_at<std::uint32_t>(fields, 16);
    if (is_device(type)) inode.device = start;

    const std::uint32_t xattr_words = number_at<std::uint16_t>(fields, 2);
    inode.has_xattrs = xattr_words != 0;
    const std::uint64_t attributes = position + (is_compact ? kCompactInodeBytes : kInodeBytes);
    const std::uint64_t xattr_bytes =
        xattr_words == 0 ? 0 : kAttributesHeader + 4 * (xattr_words - 1);
    inode.place = ErofsPlace{.attributes = attributes,
                             .behind = attributes + xattr_bytes,
                             .start = start,
                             .layout = static_cast<Layout>(format >> 1U)};
    return inode;
  }

  /// Returns a block of a directory, or another inode's content if it is within one block.
  Result<Piece> content(const Inode& inode, std::uint64_t block) {
    const auto& place = std::get<ErofsPlace>(inode.place);
    if (place.layout != Layout::plain && place.layout != Layout::inlined)
      return damaged("a content of unknown layout");
    const std::uint64_t rest = inode.size - block * kBlock;
    if (place.layout == Layout::inlined && !super_.of_users && block == 0 && rest > kBlock)
      return damaged("content that does not fit into its block");
    if (place.layout == Layout::inlined && rest < kBlock + (super_.of_users ? 0 : 1)) {
      const std::size_t offset = place.behind % kBlock;
      if (rest > kBlock - offset) return damaged("content that does not fit into its block");
      return Piece{SPC_TRY(metadata_block(place.behind / kBlock)), offset,
                   static_cast<std::size_t>(rest)};
    }
    return Piece{SPC_TRY(metadata_block(place.start + block)), 0,
                 static_cast<std::size_t>(std::min(rest, kBlock))};
  }

  Result<void> load_directory(const Inode& inode, Directory& directory) override {
    if (inode.size > kMaxListing) return damaged("an invalid directory size");
    for (std::uint64_t block = 0; block * kBlock < inode.size; ++block) {
      const auto piece = SPC_TRY(content(inode, block));
      SPC_TRY(add_entries(bytes_of(piece), inode, directory));
    }
    return {};
  }

  Result<void> add_entries(std::span<const std::byte> block, const Inode& inode,
                           Directory& directory) {
    const std::size_t names = block.size() < kDirentBytes ? 0 : number_at<std::uint16_t>(block, 8);
    if (names < kDirentBytes || names % kDirentBytes != 0 || names > block.size())
      return damaged("an invalid directory");
    for (std::size_t at = 0; at < names; at += kDirentBytes) {
      const bool is_last = at + kDirentBytes == names;
      const std::size_t begin = number_at<std::uint16_t>(block, at + 8);
      const std::size_t end =
          is_last ? block.size() : number_at<std::uint16_t>(block, at + kDirentBytes + 8);
      if (begin < names || begin >= end || end > block.size())
        return damaged("an invalid directory entry");
      std::string_view name = as_text(block.subspan(begin, end - begin));
      if (is_last) name = name.substr(0, name.find('\0'));
      if (name == "." || name == "..") continue;
      const auto type = number_at<std::uint8_t>(block, at + 10);
      if (type == 0 || type >= kDirentModes.size()) return damaged("an invalid directory entry");
      const auto nid = number_at<std::uint64_t>(block, at);
      if (S_ISDIR(kDirentModes[type]) && nid <= inode.reference && !super_.of_users)
        return damaged("a directory in front of the one that it is in");
      if (is_device(kDirentModes[type]) && !SPC_TRY(this->inode(nid))) continue;
      SPC_TRY(directory.add(name, nid, nid, kDirentModes[type]));
    }
    return {};
  }

  Result<std::string> load_target(const Inode& inode) override {
    const auto piece = SPC_TRY(content(inode, 0));
    return std::string(as_text(bytes_of(piece)));
  }

  Result<SharedBlock> stored(std::uint64_t first_block, std::size_t size) {
    return data_.get(first_block * kBlock, [&]() -> Result<Block> {
      Block block{.bytes = std::make_unique_for_overwrite<std::byte[]>(size), .size = size};
      SPC_TRY(image_.read(first_block * kBlock, {block.bytes.get(), size}));
      return block;
    });
  }

  Result<SharedBlock> unpacked(std::uint64_t first_block, std::size_t blocks, std::size_t size) {
    return data_.get(first_block * kBlock + blocks, [&]() -> Result<Block> {
      const auto packed = std::make_unique_for_overwrite<std::byte[]>(blocks * kBlock);
      const std::span all(packed.get(), blocks * kBlock);
      SPC_TRY(image_.read(first_block * kBlock, all));
      const auto begin =
          std::find_if(all.begin(), all.end(), [](std::byte byte) { return byte != std::byte{}; });
      Block block{.bytes = std::make_unique_for_overwrite<std::byte[]>(size), .size = size};
      if (begin == all.end() ||
          !unpacker_.unpack(kLz4Compressor, {begin, all.end()}, block.bytes.get(), block.size)) {
        return damaged("a block that cannot be decompressed");
      }
      if (block.size != size) return damaged("an invalid block size");
      return block;
    });
  }

  Result<SharedBlock> compressed_unit(const ErofsPlace& place, std::uint64_t index,
                                      std::size_t size) {
    const std::uint64_t header_at = rounded_up(place.behind, kIndexEntryBytes);
    std::array<std::byte, kIndexHeaderBytes> header;
    SPC_TRY(read_metadata(header_at, header));
    if (number_at<std::uint64_t>(header, 0) != kIndexHeader ||
        number_at<std::uint64_t>(header, 8) != 0) {
      return damaged("an unknown compression");
    }
    // The second entry has the number of blocks.
    std::array<std::byte, 2 * kIndexEntryBytes> entries{};
    const std::size_t whole_blocks = size / kBlock;
    const auto needed =
        std::span(entries).first(whole_blocks > 1 ? entries.size() : kIndexEntryBytes);
    SPC_TRY(read_metadata(header_at + kIndexHeaderBytes + index * kUnitBlocks * kIndexEntryBytes,
                          needed));
    // The upper half of the number is the offset in the block.
    const auto kind = number_at<std::uint32_t>(entries, 0);
    const auto first_block = number_at<std::uint32_t>(entries, 4);
    if (kind == kPlainEntry) return stored(first_block, size);
    if (kind != kHeadEntry || whole_blocks == 0)
      return damaged("an invalid entry of a file's index");
    std::size_t blocks = 1;
    if (whole_blocks > 1) {
      const auto count = number_at<std::uint16_t>(entries, kIndexEntryBytes + 4);
      if (number_at<std::uint32_t>(entries, kIndexEntryBytes) != kNonHeadEntry ||
          (count & kBlockCount) == 0) {
        return damaged("an invalid entry of a file's index");
      }
      blocks = count & (kBlockCount - 1U);
    }
    if (blocks == 0 || blocks * kBlock >= size) return damaged("an invalid compressed size");
    return unpacked(first_block, blocks, size);
  }

  /// Returns a file's unit of `size` bytes. Empty: zeros.
  Result<SharedBlock> unit(const ErofsPlace& place, std::uint64_t index, std::size_t size) {
    switch (place.layout) {
      case Layout::inlined:
      case Layout::plain: return stored(place.start + index * kUnitBlocks, size);
      case Layout::compressed: return compressed_unit(place, index, size);
      case Layout::chunks: {
        if (place.start != kChunksOfUnits) return damaged("chunks of unknown form");
        std::uint32_t first_block = 0;
        SPC_TRY(read_metadata(place.behind + index * sizeof first_block,
                              std::as_writable_bytes(std::span(&first_block, 1))));
        if (first_block == kNoBlock) return SharedBlock();
        return stored(first_block, size);
      }
      default: return damaged("a content of unknown layout");
    }
  }

  Result<std::vector<Piece>> load_content(const Inode& file, std::uint64_t start,
                                          std::uint64_t end) override {
    std::vector<Piece> pieces;
    const auto& place = std::get<ErofsPlace>(file.place);
    // size of the content that is not inlined after the inode
    const std::uint64_t body = place.layout != Layout::inlined ? file.size
                               : super_.of_users               ? file.size / kBlock * kBlock
                                                               : 0;
    const std::uint64_t body_end = std::min(end, body);
    for (std::uint64_t index = start / kUnitBytes; index * kUnitBytes < body_end && start < body;
         ++index) {
      const std::uint64_t first = index * kUnitBytes;
      const std::uint64_t begin = std::max(start, first);
      Piece piece{.block = SPC_TRY(unit(
                      place, index, static_cast<std::size_t>(std::min(kUnitBytes, body - first)))),
                  .offset = static_cast<std::size_t>(begin - first),
                  .size = static_cast<std::size_t>(std::min(body_end, first + kUnitBytes) - begin)};
      pieces.push_back(std::move(piece));
    }
    if (end > body) {
      auto piece = SPC_TRY(content(file, body / kBlock));
      const std::uint64_t begin = std::max(start, body);
      piece.offset += begin - body;
      piece.size = end - begin;
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  /// Reads the attribute at `position`, and sets `position` to the next one.
  Result<Attributes::value_type> attribute(std::uint64_t& position, std::uint64_t end) {
    std::array<std::byte, 4> head;
    SPC_TRY(read_metadata(position, head));
    const std::size_t name_bytes = number_at<std::uint8_t>(head, 0);
    const char* const prefix = xattr_prefix(number_at<std::uint8_t>(head, 1), super_.of_users);
    const std::size_t value_bytes = number_at<std::uint16_t>(head, 2);
    position += head.size();
    if (prefix == nullptr || (name_bytes == 0 && !super_.of_users) || position > end ||
        name_bytes + value_bytes > end - position) {
      return damaged("an invalid extended attribute");
    }
    std::vector<std::byte> bytes(name_bytes + value_bytes);
    SPC_TRY(read_metadata(position, bytes));
    position = rounded_up(position + bytes.size(), 4);
    const std::string_view entry = as_text(bytes);
    return std::pair(std::string(prefix).append(entry.substr(0, name_bytes)),
                     std::string(entry.substr(name_bytes)));
  }

  Result<Attributes> xattrs(const Inode& inode) override {
    Attributes found;
    if (!inode.has_xattrs) return found;
    const auto& place = std::get<ErofsPlace>(inode.place);
    std::array<std::byte, kAttributesHeader> header;
    SPC_TRY(read_metadata(place.attributes, header));
    const std::size_t shared = number_at<std::uint8_t>(header, 4);
    if (shared != 0 && !super_.of_users) return damaged("extended attributes of several files");
    std::uint64_t position = place.attributes + kAttributesHeader;
    for (std::size_t i = 0; i < shared; ++i, position += 4) {
      std::uint32_t number = 0;
      SPC_TRY(read_metadata(position, std::as_writable_bytes(std::span(&number, 1))));
      std::uint64_t there = super_.shared_at + std::uint64_t{number} * 4;
      found.push_back(SPC_TRY(attribute(there, image_.size())));
    }
    while (position < place.behind) {
      if (found.size() == kMaxXattrs) return damaged("an invalid extended attribute");
      found.push_back(SPC_TRY(attribute(position, place.behind)));
    }
    return found;
  }

  const ErofsSuper super_;
};

}  // namespace

bool looks_like_erofs(std::span<const std::byte> head) {
  return head.size() >= kErofsHeadBytes &&
         number_at<std::uint32_t>(head, kSuperAt) == SuperBlock::kMagic;
}

namespace {

/// Refuses an image of mkfs.erofs that has compressed files, or another feature, by its name.
Error refuse_features(std::uint32_t features, std::uint16_t algorithms) {
  struct Name {
    std::uint32_t bit;
    const char* name;
  };
  constexpr Name kAlgorithms[] = {{1, "lz4"}, {2, "lzma"}, {4, "deflate"}, {8, "zstd"}};
  constexpr Name kFeatures[] = {{0x08, "several devices"},         {0x10, "-Eztailpacking"},
                                {0x20, "-Efragments or -Ededupe"}, {0x40, "prefixes of attributes"},
                                {0x80, "48-bit blocks"},           {0x100, "metabox"}};
  constexpr std::uint32_t kPadding = 1;  // all compressed images; older ones have no algorithms
  constexpr std::uint32_t kList = 2;     // `algorithms` is not the window of lz4
  const auto named = [](const auto& names, std::uint32_t bits) {
    std::string text;
    for (const Name& one : names)
      if ((bits & one.bit) != 0) text += (text.empty() ? "" : ", ") + std::string(one.name);
    return text;
  };
  if ((features & (kPadding | kList)) != 0 || algorithms != 0) {
    const std::string by = (features & kList) != 0 ? named(kAlgorithms, algorithms) : "lz4";
    return Error(ErrorKind::invalid, "the EROFS image is compressed" +
                                         (by.empty() ? "" : " with " + by) +
                                         ", which is supported for squashfs only")
        .hint("make it by mkfs.erofs without -z, or by mksquashfs");
  }
  const std::string what = named(kFeatures, features);
  return Error(ErrorKind::invalid, "the EROFS image has a feature that is not supported" +
                                       (what.empty() ? "" : ": " + what))
      .hint("make it by mkfs.erofs without -E and --chunksize, or by mksquashfs");
}

}  // namespace

Result<std::unique_ptr<ImageReader>> open_erofs(const ImageFile& image,
                                                std::span<const std::byte> head, Unpacker unpacker,
                                                const CacheLimits& limits, ErofsForm form) {
  constexpr std::uint32_t kCompressed = SuperBlock::kCompressed, kChunks = SuperBlock::kChunks;
  const auto super = number_at<SuperBlock>(head, kSuperAt);

  // Refuse images with a feature that this reader does not know.
  const std::uint32_t features = super.incompatible;
  const bool is_compressed = (features & kCompressed) != 0;
  const bool is_known = (features == kChunks || features == (kChunks | kCompressed)) &&
                        super.algorithms == (is_compressed ? SuperBlock::kLz4 : 0) &&
                        (!is_compressed || unpacker.knows(kLz4Compressor));
  const bool of_users = form == ErofsForm::of_users;
  if (of_users && !is_known &&
      (super.algorithms != 0 || (features & ~(kChunks | kCompressed)) != 0)) {
    return refuse_features(features, super.algorithms);
  }
  if ((!is_known && !of_users) || super.block_bits != SuperBlock().block_bits ||
      (!of_users && super.first_record + std::uint64_t{super.shared_attributes} != 0)) {
    return Error(ErrorKind::invalid,
                 of_users ? "the EROFS image has no blocks of 4096 bytes"
                          : "the EROFS image has another form than layers of the store");
  }

  const std::uint64_t bytes = std::uint64_t{super.blocks} * kBlock;
  if (bytes > image.size())
    return damaged("the EROFS image is corrupt: it ends beyond the end of the file");
  const ImageSummary summary{.root = super.root,
                             .bytes = bytes,
                             .inodes = super.inodes,
                             .block_size = kUnitBytes,
                             .has_xattrs = true};
  const ErofsSuper more{.inodes_at = std::uint64_t{super.first_record} * kBlock,
                        .shared_at = std::uint64_t{super.shared_attributes} * kBlock,
                        .date = super.date,
                        .of_users = of_users};
  return std::unique_ptr<ImageReader>(
      std::make_unique<ErofsReader>(image.first(bytes), summary, more, limits, unpacker));
}

}  // namespace spc::fuse
