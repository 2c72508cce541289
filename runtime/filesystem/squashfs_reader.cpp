// Reader of squashfs images of users and of the store.

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "filesystem/image_reader.hpp"

namespace spc::fuse {

namespace {

constexpr std::uint32_t kPlaceBytes = 8;  // size of a number in a list of positions
// entries of 16 bytes in a block of the fragment and attribute tables
constexpr std::uint32_t kEntriesPerBlock = 512;
constexpr std::uint32_t kMaxXattrBytes = 64 << 10;  // XATTR_SIZE_MAX
constexpr std::uint64_t kBlocksPerMark = 2048;
constexpr std::uint32_t kDataPlain = SquashfsSuper::kDataPlain;

/// Types of inodes. The types 8 to 14 are 1 to 7 with more fields.
enum class InodeType : std::uint16_t { directory = 1, file, symlink };
constexpr std::uint16_t kInodeTypes = 7;
constexpr std::array<mode_t, kInodeTypes + 1> kModes{0,       S_IFDIR, S_IFREG, S_IFLNK,
                                                     S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK};

/// The blocks of one squashfs.
class SquashfsBlocks : public ImageReader {
 public:
  SquashfsBlocks(const ImageFile& image, const SquashfsSuper& super, const CacheLimits& limits,
                 Unpacker unpacker)
      : ImageReader(image,
                    {.root = super.root,
                     .bytes = super.bytes_used,
                     .inodes = super.inode_count,
                     .block_size = super.block_size,
                     .has_xattrs = super.xattr_table != SquashfsSuper::kNone},
                    limits, unpacker),
        super_(super) {}

  /// Returns a block of a table: at most 8 KiB, never empty.
  Result<SharedBlock> metadata(std::uint64_t position) {
    return metadata_.get(position, [&]() -> Result<Block> {
      std::uint16_t header = 0;
      SPC_TRY(image_.read(position, std::as_writable_bytes(std::span(&header, 1))));
      const bool is_plain = (header & SquashfsSuper::kTablePlain) != 0;
      const std::size_t stored = header & ~SquashfsSuper::kTablePlain;
      auto block = SPC_TRY(
          load(position + sizeof header, stored, !is_plain, SquashfsSuper::kTableBlockBytes));
      block.next = position + sizeof header + stored;
      return block;
    });
  }

 protected:
  /// Returns a block of file content, with its size word from the file or fragment table. Never
  /// empty.
  Result<SharedBlock> data(std::uint64_t position, std::uint32_t size_word) {
    return data_.get(position, [&]() -> Result<Block> {
      return load(position, size_word & ~kDataPlain, (size_word & kDataPlain) == 0,
                  super_.block_size);
    });
  }

  const SquashfsSuper super_;

 private:
  /// Maps the pages of new memory in one call: page faults cost a fifth of the decompression.
  static void populate(std::span<std::byte> memory) {
    constexpr std::uintptr_t kInPage = 4095;
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE; Linux before 5.14 refuses it
    const auto first = (reinterpret_cast<std::uintptr_t>(memory.data()) + kInPage) & ~kInPage;
    const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size()) & ~kInPage;
    if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, kPopulateWrite);
  }
  Result<Block> load(std::uint64_t position, std::size_t stored, bool compressed,
                     std::size_t limit) const {
    Block block;
    if (stored == 0 || stored > limit) return damaged("an invalid block size");
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(stored);
    SPC_TRY(image_.read(position, {bytes.get(), stored}));
    if (!compressed) {
      block.bytes = std::move(bytes);
      block.size = stored;
      return block;
    }
    block.bytes = std::make_unique_for_overwrite<std::byte[]>(limit);
    block.size = limit;
    populate({block.bytes.get(), limit});
    if (!unpacker_.unpack(super_.compressor, {bytes.get(), stored}, block.bytes.get(),
                          block.size)) {
      return damaged("a block that cannot be decompressed");
    }
    if (block.size == 0 || block.size > limit) return damaged("an invalid block size");
    return block;
  }
};

/// Sequential reader from a position in a table, across blocks.
class TableReader {
 public:
  using Position = SquashfsPlace::Position;

  TableReader(SquashfsBlocks& image, Position position) : image_(image), at_(position) {}

  Result<void> read(std::span<std::byte> into) {
    while (!into.empty()) {
      const auto rest = SPC_TRY(rest_of_block());
      const std::size_t count = std::min(rest.size(), into.size());
      std::memcpy(into.data(), rest.data(), count);
      into = into.subspan(count);
      at_.offset += static_cast<std::uint32_t>(count);
    }
    return {};
  }
  Result<void> skip(std::uint64_t count) {
    while (count != 0) {
      const auto rest = SPC_TRY(rest_of_block());
      const auto step = std::min<std::uint64_t>(rest.size(), count);
      count -= step;
      at_.offset += static_cast<std::uint32_t>(step);
    }
    return {};
  }
  template <typename Number>
  Result<Number> number() {
    Number number;
    SPC_TRY(read(std::as_writable_bytes(std::span(&number, 1))));
    return number;
  }
  [[nodiscard]] Position position() const { return at_; }

 private:
  Result<std::span<const std::byte>> rest_of_block() {
    if (!block_) block_ = SPC_TRY(image_.metadata(at_.block));
    if (at_.offset == block_->size) {
      at_ = {.block = block_->next, .offset = 0};
      block_ = SPC_TRY(image_.metadata(at_.block));
    }
    if (at_.offset > block_->size) return damaged("a position beyond the end of its block");
    return std::span<const std::byte>(block_->bytes.get(), block_->size).subspan(at_.offset);
  }

  SquashfsBlocks& image_;
  Position at_;
  SharedBlock block_;
};

template <std::size_t size>
Result<std::array<std::byte, size>> take(TableReader& table) {
  std::array<std::byte, size> bytes;
  SPC_TRY(table.read(bytes));
  return bytes;
}

Result<void> read_directory_inode(TableReader& table, Inode& inode, SquashfsPlace& place,
                                  const SquashfsSuper& super) {
  const auto fields = SPC_TRY(take<16>(table));
  place.listing = {super.directory_table + number_at<std::uint32_t>(fields, 0),
                   number_at<std::uint16_t>(fields, 10)};
  inode.links = number_at<std::uint32_t>(fields, 4);
  place.listing_bytes = number_at<std::uint16_t>(fields, 8);
  return {};
}

Result<void> read_extended_directory(TableReader& table, Inode& inode, SquashfsPlace& place,
                                     const SquashfsSuper& super) {
  const auto fields = SPC_TRY(take<24>(table));
  inode.links = number_at<std::uint32_t>(fields, 0);
  place.listing_bytes = number_at<std::uint32_t>(fields, 4);
  place.listing = {super.directory_table + number_at<std::uint32_t>(fields, 8),
                   number_at<std::uint16_t>(fields, 18)};
  place.xattrs = number_at<std::uint32_t>(fields, 20);
  return {};
}

Result<void> read_file_inode(TableReader& table, Inode& inode, SquashfsPlace& place) {
  const auto fields = SPC_TRY(take<16>(table));
  inode.links = 1;
  place.first_block = number_at<std::uint32_t>(fields, 0);
  place.fragment = number_at<std::uint32_t>(fields, 4);
  place.fragment_offset = number_at<std::uint32_t>(fields, 8);
  inode.size = number_at<std::uint32_t>(fields, 12);
  return {};
}

Result<void> read_extended_file(TableReader& table, Inode& inode, SquashfsPlace& place) {
  const auto fields = SPC_TRY(take<40>(table));
  place.first_block = number_at<std::uint64_t>(fields, 0);
  inode.size = number_at<std::uint64_t>(fields, 8);
  inode.links = number_at<std::uint32_t>(fields, 24);
  place.fragment = number_at<std::uint32_t>(fields, 28);
  place.fragment_offset = number_at<std::uint32_t>(fields, 32);
  place.xattrs = number_at<std::uint32_t>(fields, 36);
  return {};
}

Result<void> read_symlink(TableReader& table, Inode& inode, SquashfsPlace& place,
                          bool is_extended) {
  inode.links = SPC_TRY(table.number<std::uint32_t>());
  inode.size = SPC_TRY(table.number<std::uint32_t>());
  if (!is_extended || inode.size > kMaxTarget) return {};
  TableReader behind = table;
  SPC_TRY(behind.skip(inode.size));
  place.xattrs = SPC_TRY(behind.number<std::uint32_t>());
  return {};
}

Result<void> read_special(TableReader& table, Inode& inode, SquashfsPlace& place, bool is_device,
                          bool is_extended) {
  inode.links = SPC_TRY(table.number<std::uint32_t>());
  if (is_device) inode.device = SPC_TRY(table.number<std::uint32_t>());
  if (is_extended) place.xattrs = SPC_TRY(table.number<std::uint32_t>());
  return {};
}

class SquashfsReader final : public SquashfsBlocks {
 public:
  using SquashfsBlocks::SquashfsBlocks;

 private:
  /// Sizes of a file's blocks from a given one on, and the first one's position in the image.
  struct BlockSizes {
    std::uint64_t position = 0;
    std::vector<std::uint32_t> words;
  };
  /// The position of each 2048th block of a large file, and of its size words.
  struct BlockIndex {
    struct Mark {
      TableReader::Position words;
      std::uint64_t position = 0;
    };
    std::vector<Mark> marks;
    [[nodiscard]] std::size_t cost() const { return marks.capacity() * sizeof(Mark); }
  };

  Result<Inode> load_inode(std::uint64_t reference) override {
    const std::uint64_t block = reference >> 16U;
    if (block >= super_.directory_table - super_.inode_table)
      return damaged("an inode beyond its table");
    TableReader table(
        *this, {super_.inode_table + block, static_cast<std::uint32_t>(reference & 0xffffU)});
    const auto base = SPC_TRY(take<16>(table));

    Inode inode;
    auto& place = inode.place.emplace<SquashfsPlace>();
    inode.reference = reference;
    inode.mtime = number_at<std::uint32_t>(base, 8);
    inode.number = number_at<std::uint32_t>(base, 12);
    const auto number = number_at<std::uint16_t>(base, 0);
    const bool is_extended = number > kInodeTypes;
    const auto type = static_cast<std::uint16_t>(is_extended ? number - kInodeTypes : number);
    if (type == 0 || type >= kModes.size()) return damaged("an inode of unknown type");
    inode.mode = kModes[type] | (number_at<std::uint16_t>(base, 2) & kKeptMode);
    switch (static_cast<InodeType>(type)) {
      case InodeType::directory:
        SPC_TRY(is_extended ? read_extended_directory(table, inode, place, super_)
                            : read_directory_inode(table, inode, place, super_));
        break;
      case InodeType::file:
        SPC_TRY(is_extended ? read_extended_file(table, inode, place)
                            : read_file_inode(table, inode, place));
        break;
      case InodeType::symlink: SPC_TRY(read_symlink(table, inode, place, is_extended)); break;
      default: SPC_TRY(read_special(table, inode, place, is_device(inode.mode), is_extended));
    }
    place.details = table.position();
    inode.has_xattrs = place.xattrs != SquashfsPlace::kNone;
    return inode;
  }

  Result<void> load_directory(const Inode& inode, Directory& directory) override {
    const auto& place = std::get<SquashfsPlace>(inode.place);
    if (place.listing_bytes > kMaxListing) return damaged("an invalid directory size");
    // The stored size includes three bytes for "." and "..".
    std::uint32_t left = place.listing_bytes < 3 ? 0 : place.listing_bytes - 3;
    TableReader table(*this, place.listing);
    while (left != 0) {
      if (left < 12) return damaged("a truncated directory");
      const auto header = SPC_TRY(take<12>(table));
      left -= 12;
      const std::uint64_t count = std::uint64_t{number_at<std::uint32_t>(header, 0)} + 1;
      if (count > 256) return damaged("too many directory entries in a row");
      const std::uint64_t block = number_at<std::uint32_t>(header, 4);
      const auto number = number_at<std::uint32_t>(header, 8);
      // Read the entries of the group. Each number is the difference to the number in the header.
      for (std::uint64_t i = 0; i < count; ++i) {
        if (left < 8) return damaged("a truncated directory");
        const auto fields = SPC_TRY(take<8>(table));
        left -= 8;
        const std::uint32_t bytes = std::uint32_t{number_at<std::uint16_t>(fields, 6)} + 1;
        const auto type = number_at<std::uint16_t>(fields, 4);
        if (bytes > kMaxName || bytes > left || type == 0 || type >= kModes.size())
          return damaged("an invalid directory entry");
        left -= bytes;
        std::array<char, kMaxName> buffer;
        const auto name = std::span(buffer).first(bytes);
        SPC_TRY(table.read(std::as_writable_bytes(name)));
        const auto difference = static_cast<std::int16_t>(number_at<std::uint16_t>(fields, 2));
        const std::uint64_t reference = block << 16U | number_at<std::uint16_t>(fields, 0);
        if (is_device(kModes[type]) && !SPC_TRY(this->inode(reference))) continue;
        SPC_TRY(directory.add({name.data(), name.size()}, reference,
                              number + static_cast<std::uint32_t>(difference), kModes[type]));
      }
    }
    return {};
  }

  Result<std::string> load_target(const Inode& inode) override {
    std::string target(inode.size, '\0');
    TableReader table(*this, std::get<SquashfsPlace>(inode.place).details);
    SPC_TRY(table.read(std::as_writable_bytes(std::span(target))));
    return target;
  }

  Result<BlockIndex> load_index(const Inode& file, std::uint64_t blocks) {
    BlockIndex index;
    const auto& place = std::get<SquashfsPlace>(file.place);
    TableReader table(*this, place.details);
    std::uint64_t position = place.first_block;
    std::array<std::uint32_t, kBlocksPerMark> words;
    for (std::uint64_t done = 0; done + kBlocksPerMark <= blocks; done += kBlocksPerMark) {
      SPC_TRY(table.read(std::as_writable_bytes(std::span(words))));
      for (const std::uint32_t word : words) position += word & ~kDataPlain;
      index.marks.push_back({table.position(), position});
    }
    return index;
  }

  Result<BlockSizes> block_sizes(const Inode& file, std::uint64_t first, std::uint64_t count,
                                 std::uint64_t blocks) {
    const auto& place = std::get<SquashfsPlace>(file.place);
    TableReader::Position at = place.details;
    BlockSizes sizes{.position = place.first_block, .words = {}};
    const std::uint64_t mark = first / kBlocksPerMark;
    if (mark != 0) {
      const auto index =
          SPC_TRY(indexes_.get(file.reference, [&] { return load_index(file, blocks); }));
      if (mark > index->marks.size()) return damaged("a changed file size");
      at = index->marks[mark - 1].words;
      sizes.position = index->marks[mark - 1].position;
    }
    sizes.words.resize(first % kBlocksPerMark + count);
    TableReader table(*this, at);
    SPC_TRY(table.read(std::as_writable_bytes(std::span(sizes.words))));
    const auto wanted = sizes.words.begin() + static_cast<std::ptrdiff_t>(first % kBlocksPerMark);
    for (auto word = sizes.words.begin(); word != wanted; ++word)
      sizes.position += *word & ~kDataPlain;
    sizes.words.erase(sizes.words.begin(), wanted);
    return sizes;
  }

  Result<SharedBlock> fragment(std::uint32_t index) {
    if (index >= super_.fragment_count) return damaged("a fragment that does not exist");
    std::uint64_t place = 0;
    SPC_TRY(
        image_.read(super_.fragment_table + std::uint64_t{index / kEntriesPerBlock} * kPlaceBytes,
                    std::as_writable_bytes(std::span(&place, 1))));
    TableReader table(*this, {place, index % kEntriesPerBlock * 16});
    const auto entry = SPC_TRY(take<16>(table));
    return data(number_at<std::uint64_t>(entry, 0), number_at<std::uint32_t>(entry, 8));
  }

  Result<std::vector<Piece>> load_content(const Inode& file, std::uint64_t start,
                                          std::uint64_t end) override {
    std::vector<Piece> pieces;
    const std::uint64_t block_size = super_.block_size;
    const auto& place = std::get<SquashfsPlace>(file.place);
    const std::uint64_t in_fragment =
        place.fragment == SquashfsPlace::kNone ? 0 : file.size % block_size;
    const std::uint64_t blocks = (file.size - in_fragment + block_size - 1) / block_size;

    BlockSizes sizes;
    const std::uint64_t first = start / block_size;
    if (first < blocks) {
      const std::uint64_t last = std::min((end - 1) / block_size, blocks - 1);
      sizes = SPC_TRY(block_sizes(file, first, last - first + 1, blocks));
    }
    for (std::uint64_t block = first; block * block_size < end; ++block) {
      const std::uint64_t begin = std::max(start, block * block_size);
      Piece piece{
          .block = nullptr,
          .offset = static_cast<std::size_t>(begin % block_size),
          .size = static_cast<std::size_t>(std::min(end, (block + 1) * block_size) - begin)};
      if (block >= blocks) {
        piece.block = SPC_TRY(fragment(place.fragment));
        piece.offset += place.fragment_offset;
      } else if (const std::uint32_t word = sizes.words[block - first]; word != 0) {
        piece.block = SPC_TRY(data(sizes.position, word));
        sizes.position += word & ~kDataPlain;
      }
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  Result<Attributes::value_type> xattr(TableReader& table, std::uint64_t values) {
    constexpr std::array kPrefixes{"user.", "trusted.", "security."};
    constexpr std::uint16_t kElsewhere = 0x100;  // flag: the value is stored elsewhere and shared
    const auto type = SPC_TRY(table.number<std::uint16_t>());
    const std::size_t name_bytes = SPC_TRY(table.number<std::uint16_t>());
    const std::size_t prefix = type & ~kElsewhere;
    if (prefix >= kPrefixes.size() || name_bytes == 0 || name_bytes > kMaxName)
      return damaged("an invalid extended attribute");
    std::string name(name_bytes, '\0');
    SPC_TRY(table.read(std::as_writable_bytes(std::span(name))));

    const auto read_value = [](TableReader& from) -> Result<std::string> {
      const auto bytes = SPC_TRY(from.number<std::uint32_t>());
      if (bytes > kMaxXattrBytes) return damaged("an invalid extended attribute size");
      std::string value(bytes, '\0');
      SPC_TRY(from.read(std::as_writable_bytes(std::span(value))));
      return value;
    };
    auto value = SPC_TRY(read_value(table));
    if ((type & kElsewhere) != 0) {
      if (value.size() != sizeof(std::uint64_t)) return damaged("an invalid extended attribute");
      const auto place = number_at<std::uint64_t>(value, 0);
      TableReader elsewhere(*this,
                            {values + (place >> 16U), static_cast<std::uint32_t>(place & 0xffffU)});
      value = SPC_TRY(read_value(elsewhere));
    }
    return std::pair(kPrefixes[prefix] + name, std::move(value));
  }

  Result<Attributes> xattrs(const Inode& inode) override {
    Attributes found;
    const std::uint32_t wanted = std::get<SquashfsPlace>(inode.place).xattrs;
    if (wanted == SquashfsPlace::kNone || super_.xattr_table == SquashfsSuper::kNone) return found;
    std::array<std::byte, 16> header;
    SPC_TRY(image_.read(super_.xattr_table, header));
    const auto values = number_at<std::uint64_t>(header, 0);
    if (wanted >= number_at<std::uint32_t>(header, 8))
      return damaged("a missing extended attribute");
    std::uint64_t place = 0;
    SPC_TRY(image_.read(
        super_.xattr_table + header.size() + std::uint64_t{wanted / kEntriesPerBlock} * kPlaceBytes,
        std::as_writable_bytes(std::span(&place, 1))));
    TableReader sets(*this, {place, wanted % kEntriesPerBlock * 16});
    const auto set = SPC_TRY(take<16>(sets));
    const auto reference = number_at<std::uint64_t>(set, 0);
    const auto count = number_at<std::uint32_t>(set, 8);
    if (count > kMaxXattrs) return damaged("too many extended attributes");
    TableReader table(
        *this, {values + (reference >> 16U), static_cast<std::uint32_t>(reference & 0xffffU)});
    for (std::size_t i = 0, bytes = 0; i < count; ++i) {
      found.push_back(SPC_TRY(xattr(table, values)));
      bytes += found.back().second.size();
      if (bytes > kMaxXattrTotal) return damaged("too many bytes of extended attributes");
    }
    return found;
  }

  Cache<BlockIndex> indexes_{4 << 20};
};

}  // namespace

Result<std::unique_ptr<ImageReader>> open_squashfs(const ImageFile& image,
                                                   std::span<const std::byte> head,
                                                   Unpacker unpacker, const CacheLimits& limits) {
  const auto super = SPC_TRY(parse_squashfs_super(head, image.size()));
  if (!unpacker.knows(super.compressor)) {
    return Error(ErrorKind::invalid,
                 formatted("the squashfs is compressed with {}, which this build does not support",
                           compressor_name(super.compressor)))
        .hint("recreate it with mksquashfs -comp zstd");
  }
  return std::unique_ptr<ImageReader>(
      std::make_unique<SquashfsReader>(image.first(super.bytes_used), super, limits, unpacker));
}

}  // namespace spc::fuse
