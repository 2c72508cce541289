#include "image/fuse/squashfs_reader.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace spc::fuse {
namespace {

constexpr std::uint32_t kPlaceBytes = 8;  // of a number in a list of places
constexpr std::uint32_t kEntriesPerBlock =
    512;  // of 16 bytes, in the tables of fragments and attributes
constexpr std::uint32_t kMaxXattrBytes = 64 << 10;  // XATTR_SIZE_MAX
constexpr std::uint64_t kBlocksPerMark = 2048;
constexpr std::uint32_t kDataPlain = 1U << 24U;

/// The numbers of inodes; 8 to 14 are 1 to 7 with more fields.
enum class InodeType : std::uint16_t { directory = 1, file, symlink };
constexpr std::uint16_t kInodeTypes = 7;
constexpr std::array<mode_t, kInodeTypes + 1> kModes{0,       S_IFDIR, S_IFREG, S_IFLNK,
                                                     S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK};

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
  if (inode.size > kMaxFileBytes) return damaged("an invalid file size");
  return {};
}

Result<void> read_symlink(TableReader& table, Inode& inode, SquashfsPlace& place,
                          bool is_extended) {
  inode.links = SPC_TRY(table.number<std::uint32_t>());
  inode.size = SPC_TRY(table.number<std::uint32_t>());
  if (inode.size == 0 || inode.size > kMaxTarget) return damaged("an invalid link target size");
  if (!is_extended) return {};
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

}  // namespace

SquashfsReader::SquashfsReader(std::unique_ptr<ImageBytes> image, std::size_t cache)
    : ImageReader({.root = image->super().root,
                   .bytes = image->super().bytes_used,
                   .inodes = image->super().inode_count,
                   .block_size = image->super().block_size,
                   .has_xattrs = image->super().xattr_sets != SquashfsSuper::kNone}),
      image_(std::move(image)),
      directories_(cache) {}

Result<std::optional<Inode>> SquashfsReader::inode(std::uint64_t reference) {
  const SquashfsSuper& super = image_->super();
  const std::uint64_t block = reference >> 16U;
  if (block >= super.directory_table - super.inode_table)
    return damaged("an inode beyond its table");
  TableReader table(*image_,
                    {super.inode_table + block, static_cast<std::uint32_t>(reference & 0xffffU)});
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
      SPC_TRY(is_extended ? read_extended_directory(table, inode, place, super)
                          : read_directory_inode(table, inode, place, super));
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
  if (S_ISBLK(inode.mode) || (S_ISCHR(inode.mode) && inode.device != 0))
    return std::optional<Inode>();
  return std::optional(inode);
}

Result<std::shared_ptr<const Directory>> SquashfsReader::directory(const Inode& inode) {
  return directories_.get(inode.reference, [&] { return load_directory(inode); });
}

Result<Directory> SquashfsReader::load_directory(const Inode& inode) {
  Directory directory;
  if (!S_ISDIR(inode.mode)) return damaged("entries of a non-directory");
  const auto& place = std::get<SquashfsPlace>(inode.place);
  if (place.listing_bytes > kMaxListing) return damaged("an invalid directory size");
  std::uint32_t left =
      place.listing_bytes < 3 ? 0 : place.listing_bytes - 3;  // three more stand for "." and ".."
  TableReader table(*image_, place.listing);
  while (left != 0) {
    if (left < 12) return damaged("a truncated directory");
    const auto header = SPC_TRY(take<12>(table));
    left -= 12;
    const std::uint64_t count = std::uint64_t{number_at<std::uint32_t>(header, 0)} + 1;
    if (count > 256) return damaged("too many directory entries in a row");
    const std::uint64_t block = number_at<std::uint32_t>(header, 4);
    const auto number = number_at<std::uint32_t>(header, 8);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (left < 8) return damaged("a truncated directory");
      const auto fields = SPC_TRY(take<8>(table));
      left -= 8;
      const std::uint32_t bytes = std::uint32_t{number_at<std::uint16_t>(fields, 6)} + 1;
      const auto type = number_at<std::uint16_t>(fields, 4);
      if (bytes > kMaxName || bytes > left || type == 0 || type >= kModes.size())
        return damaged("an invalid directory entry");
      left -= bytes;
      const auto name_at = static_cast<std::uint32_t>(directory.names.size());
      directory.names.resize(name_at + bytes);
      SPC_TRY(table.read(std::as_writable_bytes(std::span(directory.names).subspan(name_at))));
      if (!is_entry_name(std::string_view(directory.names).substr(name_at)))
        return damaged("an invalid name");
      const auto difference = static_cast<std::int16_t>(number_at<std::uint16_t>(fields, 2));
      directory.entries.push_back({.reference = block << 16U | number_at<std::uint16_t>(fields, 0),
                                   .number = number + static_cast<std::uint32_t>(difference),
                                   .name_at = name_at,
                                   .type = static_cast<std::uint16_t>(kModes[type]),
                                   .name_bytes = static_cast<std::uint8_t>(bytes)});
      if (is_device(kModes[type])) {
        const auto exists = SPC_TRY(this->inode(directory.entries.back().reference));
        if (!exists) directory.entries.pop_back();
      }
    }
  }
  SPC_TRY(directory.sort());
  return directory;
}

Result<std::string> SquashfsReader::link_target(const Inode& inode) {
  if (!S_ISLNK(inode.mode)) return damaged("target of a non-link");
  std::string target(inode.size, '\0');
  TableReader table(*image_, std::get<SquashfsPlace>(inode.place).details);
  SPC_TRY(table.read(std::as_writable_bytes(std::span(target))));
  if (target.find('\0') != std::string::npos) return damaged("a link's target with a NUL");
  return target;
}

Result<SquashfsReader::BlockIndex> SquashfsReader::load_index(const Inode& file,
                                                              std::uint64_t blocks) {
  BlockIndex index;
  const auto& place = std::get<SquashfsPlace>(file.place);
  TableReader table(*image_, place.details);
  std::uint64_t position = place.first_block;
  std::array<std::uint32_t, kBlocksPerMark> words;
  for (std::uint64_t done = 0; done + kBlocksPerMark <= blocks; done += kBlocksPerMark) {
    SPC_TRY(table.read(std::as_writable_bytes(std::span(words))));
    for (const std::uint32_t word : words) position += word & ~kDataPlain;
    index.marks.push_back({table.position(), position});
  }
  return index;
}

Result<SquashfsReader::BlockSizes> SquashfsReader::block_sizes(const Inode& file,
                                                               std::uint64_t first,
                                                               std::uint64_t count,
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
  TableReader table(*image_, at);
  SPC_TRY(table.read(std::as_writable_bytes(std::span(sizes.words))));
  const auto wanted = sizes.words.begin() + static_cast<std::ptrdiff_t>(first % kBlocksPerMark);
  for (auto word = sizes.words.begin(); word != wanted; ++word)
    sizes.position += *word & ~kDataPlain;
  sizes.words.erase(sizes.words.begin(), wanted);
  return sizes;
}

Result<SharedBlock> SquashfsReader::fragment(std::uint32_t index) {
  const SquashfsSuper& super = image_->super();
  if (index >= super.fragment_count) return damaged("a fragment that does not exist");
  std::uint64_t place = 0;
  SPC_TRY(
      image_->read(super.fragment_places + std::uint64_t{index / kEntriesPerBlock} * kPlaceBytes,
                   std::as_writable_bytes(std::span(&place, 1))));
  TableReader table(*image_, {place, index % kEntriesPerBlock * 16});
  const auto entry = SPC_TRY(take<16>(table));
  return image_->data(number_at<std::uint64_t>(entry, 0), number_at<std::uint32_t>(entry, 8));
}

Result<std::vector<Piece>> SquashfsReader::read(const Inode& file, std::uint64_t start,
                                                std::size_t size) {
  std::vector<Piece> pieces;
  if (!S_ISREG(file.mode)) return damaged("content of a non-file");
  if (start >= file.size || size == 0) return pieces;
  const std::uint64_t end = start + std::min<std::uint64_t>(size, file.size - start);
  const std::uint64_t block_size = image_->super().block_size;
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
    Piece piece{.block = nullptr,
                .offset = static_cast<std::size_t>(begin % block_size),
                .size = static_cast<std::size_t>(std::min(end, (block + 1) * block_size) - begin)};
    if (block >= blocks) {
      piece.block = SPC_TRY(fragment(place.fragment));
      piece.offset += place.fragment_offset;
    } else if (const std::uint32_t word = sizes.words[block - first]; word != 0) {
      piece.block = SPC_TRY(image_->data(sizes.position, word));
      sizes.position += word & ~kDataPlain;
    }
    if (piece.block &&
        (piece.offset > piece.block->size || piece.size > piece.block->size - piece.offset)) {
      return damaged("a block that is too short for its file");
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

Result<std::pair<std::string, std::string>> SquashfsReader::xattr(TableReader& table,
                                                                  std::uint64_t values) {
  constexpr std::array kPrefixes{"user.", "trusted.", "security."};
  constexpr std::uint16_t kElsewhere = 0x100;  // the value is at another place, shared with others
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
    const auto place = number_at<std::uint64_t>(std::as_bytes(std::span(value)), 0);
    TableReader elsewhere(*image_,
                          {values + (place >> 16U), static_cast<std::uint32_t>(place & 0xffffU)});
    value = SPC_TRY(read_value(elsewhere));
  }
  return std::pair(kPrefixes[prefix] + name, std::move(value));
}

Result<std::vector<std::pair<std::string, std::string>>> SquashfsReader::xattrs(
    const Inode& inode) {
  std::vector<std::pair<std::string, std::string>> found;
  const SquashfsSuper& super = image_->super();
  const std::uint32_t wanted = std::get<SquashfsPlace>(inode.place).xattrs;
  if (wanted == SquashfsPlace::kNone || super.xattr_sets == SquashfsSuper::kNone) return found;
  std::array<std::byte, 16> header;
  SPC_TRY(image_->read(super.xattr_sets, header));
  const auto values = number_at<std::uint64_t>(header, 0);
  if (wanted >= number_at<std::uint32_t>(header, 8)) return damaged("a missing extended attribute");
  std::uint64_t place = 0;
  SPC_TRY(image_->read(
      super.xattr_sets + header.size() + std::uint64_t{wanted / kEntriesPerBlock} * kPlaceBytes,
      std::as_writable_bytes(std::span(&place, 1))));
  TableReader sets(*image_, {place, wanted % kEntriesPerBlock * 16});
  const auto set = SPC_TRY(take<16>(sets));
  const auto reference = number_at<std::uint64_t>(set, 0);
  const auto count = number_at<std::uint32_t>(set, 8);
  if (count > kMaxXattrs) return damaged("too many extended attributes");
  TableReader table(*image_,
                    {values + (reference >> 16U), static_cast<std::uint32_t>(reference & 0xffffU)});
  for (std::size_t i = 0, bytes = 0; i < count; ++i) {
    found.push_back(SPC_TRY(xattr(table, values)));
    bytes += found.back().second.size();
    if (bytes > kMaxXattrTotal) return damaged("too many bytes of extended attributes");
  }
  return found;
}

}  // namespace spc::fuse
