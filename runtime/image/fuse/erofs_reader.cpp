#include "image/fuse/erofs_reader.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace spc::fuse {
namespace {

// The super block.
constexpr std::size_t kErofsSuperAt = 1024;
constexpr std::size_t kErofsSuperBytes = 128;
constexpr std::uint32_t kErofsMagic = 0xe0f5e1e2;
constexpr std::uint32_t kErofsCompressed =
    3;  // zeros in front of what is compressed, and compressors are named
constexpr std::uint32_t kErofsChunks = 4;
constexpr std::uint16_t kErofsOnlyLz4 = 1;

constexpr std::uint64_t kErofsBlock = 4096;
constexpr std::uint64_t kNidBytes = 32;
constexpr std::uint64_t kUnitBytes = 128 << 10;
constexpr std::uint64_t kUnitBlocks = kUnitBytes / kErofsBlock;
constexpr std::uint32_t kChunksOfUnits =
    5;  // 2^5 blocks each, and their places are a list of numbers
constexpr std::uint32_t kHole = ~0U;

// Inodes.
constexpr std::size_t kInodeBytes = 64, kCompactInodeBytes = 32;
constexpr std::size_t kXattrHeaderBytes = 12;
constexpr std::uint16_t kExtendedInode = 1;
enum ErofsLayout : std::uint16_t {
  kFlatPlain = 0,
  kCompressedFull = 1,
  kFlatInline = 2,
  kChunkBased = 4
};

// The index of a compressed file: a header, then an entry for each block.
constexpr std::size_t kIndexHeaderBytes = 16;
constexpr std::size_t kIndexEntryBytes = 8;
constexpr std::uint64_t kIndexHeader =
    std::uint64_t{2} << 32U;  // clusters of several blocks, lz4, one entry for 4 KiB
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

}  // namespace

bool looks_like_erofs(std::span<const std::byte> head) {
  return head.size() >= kErofsHeadBytes &&
         number_at<std::uint32_t>(head, kErofsSuperAt) == kErofsMagic;
}

Result<std::unique_ptr<ImageReader>> ErofsReader::open(const ImageFile& image, Unpacker unpacker,
                                                       const CacheLimits& limits, ErofsForm form) {
  std::array<std::byte, kErofsSuperBytes> super;
  SPC_TRY(image.read(kErofsSuperAt, super));
  const auto features = number_at<std::uint32_t>(super, 80);
  const bool is_compressed = (features & kErofsCompressed) != 0;
  const auto compressors = number_at<std::uint16_t>(super, 84);
  const bool is_known =
      (features == kErofsChunks || features == (kErofsChunks | kErofsCompressed)) &&
      compressors == (is_compressed ? kErofsOnlyLz4 : 0) &&
      (!is_compressed || unpacker.knows(kLz4Compressor));
  constexpr std::uint8_t kBlockBits = 12;
  const auto inodes_at = number_at<std::uint32_t>(super, 40) * kErofsBlock;
  const auto shared_at = number_at<std::uint32_t>(super, 44) * kErofsBlock;
  const bool of_users = form == ErofsForm::of_users;
  if (of_users && !is_known &&
      (compressors != 0 || (features & ~(kErofsChunks | kErofsCompressed)) != 0)) {
    return Error(ErrorKind::invalid,
                 "the EROFS image is compressed, or has a feature that is not supported")
        .hint("make it without -z, -E and --chunksize, or as a squashfs");
  }
  if ((!is_known && !of_users) || number_at<std::uint8_t>(super, 12) != kBlockBits ||
      (!of_users && inodes_at + shared_at != 0)) {
    return Error(ErrorKind::invalid,
                 of_users ? "the EROFS image has no blocks of 4096 bytes"
                          : "the EROFS image has another form than layers of the store");
  }
  const std::uint64_t bytes = number_at<std::uint32_t>(super, 36) * kErofsBlock;
  if (bytes > image.size())
    return damaged("the EROFS image is corrupt: it ends beyond the end of the file");
  const ImageSummary summary{.root = number_at<std::uint16_t>(super, 14),
                             .bytes = bytes,
                             .inodes = number_at<std::uint64_t>(super, 16),
                             .block_size = kUnitBytes,
                             .has_xattrs = true};
  const Super more{.inodes_at = inodes_at,
                   .shared_at = shared_at,
                   .date = number_at<std::uint64_t>(super, 24),
                   .of_users = of_users};
  return std::unique_ptr<ImageReader>(
      new ErofsReader(image.first(bytes), summary, more, unpacker, limits));
}

Result<SharedBlock> ErofsReader::metadata_block(std::uint64_t number) {
  return metadata_.get(number, [&]() -> Result<Block> {
    Block block{.bytes = std::make_unique_for_overwrite<std::byte[]>(kErofsBlock),
                .size = kErofsBlock};
    SPC_TRY(image_.read(number * kErofsBlock, {block.bytes.get(), block.size}));
    return block;
  });
}

Result<void> ErofsReader::read_metadata(std::uint64_t position, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto block = SPC_TRY(metadata_block(position / kErofsBlock));
    const std::size_t offset = position % kErofsBlock;
    const std::size_t count = std::min(into.size(), block->size - offset);
    std::memcpy(into.data(), block->bytes.get() + offset, count);
    into = into.subspan(count);
    position += count;
  }
  return {};
}

Result<std::optional<Inode>> ErofsReader::inode(std::uint64_t reference) {
  if (reference > image_.size() / kNidBytes) return damaged("an inode beyond the end of the image");
  const std::uint64_t position = super_.inodes_at + reference * kNidBytes;
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
  if (inode.size > kMaxFileBytes) return damaged("an invalid file size");
  if (S_ISLNK(type) && (inode.size == 0 || inode.size > kMaxTarget))
    return damaged("an invalid link target size");
  const auto mtime = is_compact ? super_.date : number_at<std::uint64_t>(fields, 32);
  if (mtime > std::numeric_limits<std::uint32_t>::max()) return damaged("an invalid date");
  inode.mtime = static_cast<std::uint32_t>(mtime);
  inode.links =
      is_compact ? number_at<std::uint16_t>(fields, 6) : number_at<std::uint32_t>(fields, 44);
  const auto start = number_at<std::uint32_t>(fields, 16);
  if (is_device(type)) inode.device = start;
  if (S_ISBLK(type) || (S_ISCHR(type) && inode.device != 0)) return std::optional<Inode>();

  const std::uint32_t xattr_words = number_at<std::uint16_t>(fields, 2);
  inode.has_xattrs = xattr_words != 0;
  const std::uint64_t attributes = position + (is_compact ? kCompactInodeBytes : kInodeBytes);
  const std::uint64_t xattr_bytes =
      xattr_words == 0 ? 0 : kXattrHeaderBytes + 4 * (xattr_words - 1);
  inode.place = ErofsPlace{.attributes = attributes,
                           .behind = attributes + xattr_bytes,
                           .start = start,
                           .layout = static_cast<std::uint16_t>(format >> 1U)};
  return std::optional(inode);
}

Result<Piece> ErofsReader::content(const Inode& inode, std::uint64_t block) {
  const auto& place = std::get<ErofsPlace>(inode.place);
  if (place.layout != kFlatPlain && place.layout != kFlatInline)
    return damaged("a content of unknown layout");
  const std::uint64_t rest = inode.size - block * kErofsBlock;
  if (place.layout == kFlatInline && !super_.of_users && block == 0 && rest > kErofsBlock)
    return damaged("content that does not fit into its block");
  if (place.layout == kFlatInline && rest < kErofsBlock + (super_.of_users ? 0 : 1)) {
    const std::size_t offset = place.behind % kErofsBlock;
    if (rest > kErofsBlock - offset) return damaged("content that does not fit into its block");
    return Piece{SPC_TRY(metadata_block(place.behind / kErofsBlock)), offset,
                 static_cast<std::size_t>(rest)};
  }
  return Piece{SPC_TRY(metadata_block(place.start + block)), 0,
               static_cast<std::size_t>(std::min(rest, kErofsBlock))};
}

Result<std::shared_ptr<const Directory>> ErofsReader::directory(const Inode& inode) {
  return directories_.get(inode.reference, [&] { return load_directory(inode); });
}

Result<Directory> ErofsReader::load_directory(const Inode& inode) {
  Directory directory;
  if (!S_ISDIR(inode.mode)) return damaged("entries of a non-directory");
  if (inode.size > kMaxListing) return damaged("an invalid directory size");
  for (std::uint64_t block = 0; block * kErofsBlock < inode.size; ++block) {
    const auto piece = SPC_TRY(content(inode, block));
    SPC_TRY(add_entries(bytes_of(piece), inode, directory));
  }
  SPC_TRY(directory.sort());
  return directory;
}

Result<void> ErofsReader::add_entries(std::span<const std::byte> block, const Inode& inode,
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
    if (name.empty() || name.size() > kMaxName || !is_entry_name(name))
      return damaged("an invalid name");
    const auto type = number_at<std::uint8_t>(block, at + 10);
    if (type == 0 || type >= kDirentModes.size()) return damaged("an invalid directory entry");
    const auto nid = number_at<std::uint64_t>(block, at);
    if (S_ISDIR(kDirentModes[type]) && nid <= inode.reference && !super_.of_users)
      return damaged("a directory in front of the one that it is in");
    if (is_device(kDirentModes[type]) && !SPC_TRY(this->inode(nid))) continue;
    directory.entries.push_back({.reference = nid,
                                 .number = nid,
                                 .name_at = static_cast<std::uint32_t>(directory.names.size()),
                                 .type = static_cast<std::uint16_t>(kDirentModes[type]),
                                 .name_bytes = static_cast<std::uint8_t>(name.size())});
    directory.names.append(name);
  }
  return {};
}

Result<std::string> ErofsReader::link_target(const Inode& inode) {
  if (!S_ISLNK(inode.mode)) return damaged("target of a non-link");
  const auto piece = SPC_TRY(content(inode, 0));
  std::string target(as_text(bytes_of(piece)));
  if (target.find('\0') != std::string::npos) return damaged("a link's target with a NUL");
  return target;
}

Result<SharedBlock> ErofsReader::stored(std::uint64_t first_block, std::size_t size) {
  return data_.get(first_block * kErofsBlock, [&]() -> Result<Block> {
    Block block{.bytes = std::make_unique_for_overwrite<std::byte[]>(size), .size = size};
    SPC_TRY(image_.read(first_block * kErofsBlock, {block.bytes.get(), size}));
    return block;
  });
}

Result<SharedBlock> ErofsReader::unpacked(std::uint64_t first_block, std::size_t blocks,
                                          std::size_t size) {
  return data_.get(first_block * kErofsBlock + blocks, [&]() -> Result<Block> {
    const auto packed = std::make_unique_for_overwrite<std::byte[]>(blocks * kErofsBlock);
    const std::span all(packed.get(), blocks * kErofsBlock);
    SPC_TRY(image_.read(first_block * kErofsBlock, all));
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

Result<SharedBlock> ErofsReader::compressed_unit(const ErofsPlace& place, std::uint64_t index,
                                                 std::size_t size) {
  const std::uint64_t header_at = rounded_up(place.behind, kIndexEntryBytes);
  std::array<std::byte, kIndexHeaderBytes> header;
  SPC_TRY(read_metadata(header_at, header));
  if (number_at<std::uint64_t>(header, 0) != kIndexHeader ||
      number_at<std::uint64_t>(header, 8) != 0) {
    return damaged("an unknown compression");
  }
  std::array<std::byte, 2 * kIndexEntryBytes>
      entries{};  // the second one tells how many blocks there are
  const std::size_t whole_blocks = size / kErofsBlock;
  const auto needed =
      std::span(entries).first(whole_blocks > 1 ? entries.size() : kIndexEntryBytes);
  SPC_TRY(read_metadata(header_at + kIndexHeaderBytes + index * kUnitBlocks * kIndexEntryBytes,
                        needed));
  const auto kind =
      number_at<std::uint32_t>(entries, 0);  // with the upper half, the offset in the block
  const auto first_block = number_at<std::uint32_t>(entries, 4);
  if (kind == kPlainEntry) return stored(first_block, size);
  if (kind != kHeadEntry || whole_blocks == 0) return damaged("an invalid entry of a file's index");
  std::size_t blocks = 1;
  if (whole_blocks > 1) {
    const auto count = number_at<std::uint16_t>(entries, kIndexEntryBytes + 4);
    if (number_at<std::uint32_t>(entries, kIndexEntryBytes) != kNonHeadEntry ||
        (count & kBlockCount) == 0) {
      return damaged("an invalid entry of a file's index");
    }
    blocks = count & (kBlockCount - 1U);
  }
  if (blocks == 0 || blocks * kErofsBlock >= size) return damaged("an invalid compressed size");
  return unpacked(first_block, blocks, size);
}

Result<SharedBlock> ErofsReader::unit(const ErofsPlace& place, std::uint64_t index,
                                      std::size_t size) {
  switch (place.layout) {
    case kFlatInline:
    case kFlatPlain: return stored(place.start + index * kUnitBlocks, size);
    case kCompressedFull: return compressed_unit(place, index, size);
    case kChunkBased: {
      if (place.start != kChunksOfUnits) return damaged("chunks of unknown form");
      std::uint32_t first_block = 0;
      SPC_TRY(read_metadata(place.behind + index * sizeof first_block,
                            std::as_writable_bytes(std::span(&first_block, 1))));
      if (first_block == kHole) return SharedBlock();
      return stored(first_block, size);
    }
    default: return damaged("a content of unknown layout");
  }
}

Result<std::vector<Piece>> ErofsReader::read(const Inode& file, std::uint64_t start,
                                             std::size_t size) {
  std::vector<Piece> pieces;
  if (!S_ISREG(file.mode)) return damaged("content of a non-file");
  if (start >= file.size || size == 0) return pieces;
  const std::uint64_t end = start + std::min<std::uint64_t>(size, file.size - start);
  const auto& place = std::get<ErofsPlace>(file.place);
  // What is not behind the inode.
  const std::uint64_t body = place.layout != kFlatInline ? file.size
                             : super_.of_users           ? file.size / kErofsBlock * kErofsBlock
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
    // Another file may have made of the same blocks something shorter.
    if (piece.block &&
        (piece.offset > piece.block->size || piece.size > piece.block->size - piece.offset)) {
      return damaged("a block that is too short for its file");
    }
    pieces.push_back(std::move(piece));
  }
  if (end > body) {
    auto piece = SPC_TRY(content(file, body / kErofsBlock));
    const std::uint64_t begin = std::max(start, body);
    piece.offset += begin - body;
    piece.size = end - begin;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

/// One that begins at `position`, which then is that of the next.
Result<std::pair<std::string, std::string>> ErofsReader::attribute(std::uint64_t& position,
                                                                   std::uint64_t end) {
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

Result<std::vector<std::pair<std::string, std::string>>> ErofsReader::xattrs(const Inode& inode) {
  std::vector<std::pair<std::string, std::string>> found;
  if (!inode.has_xattrs) return found;
  const auto& place = std::get<ErofsPlace>(inode.place);
  std::array<std::byte, kXattrHeaderBytes> header;
  SPC_TRY(read_metadata(place.attributes, header));
  const std::size_t shared = number_at<std::uint8_t>(header, 4);
  if (shared != 0 && !super_.of_users) return damaged("extended attributes of several files");
  std::uint64_t position = place.attributes + kXattrHeaderBytes;
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

}  // namespace spc::fuse
