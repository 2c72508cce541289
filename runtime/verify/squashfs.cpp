// Checks of a squashfs above its tables: file data, attributes and the tree of inodes.

#include "verify/squashfs.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>

#include "base/format.hpp"

namespace spc::verify {

// --- data area ---

namespace {

constexpr std::uint32_t kStoredAsIs = 1U << 24U;
constexpr std::uint32_t kNoFragment = 0xffffffff;

}  // namespace

DataArea::DataArea(LayerBytes& layer, const Layout& layout)
    : layer_(layer), layout_(layout), blocks_(layout.codec) {}

/// Returns the decompressed size of a block. lz4 does not store it: returns `wanted`, the size in
/// the file's description, or decompresses the block.
Result<std::size_t> DataArea::unpacked_size(std::uint64_t place, std::uint32_t size,
                                            std::optional<std::size_t> wanted) {
  if (layout_.codec == Codec::zstd) return check_frame(layer_, place, size);
  if (wanted) return *wanted;
  stored_.resize(size);
  unpacked_.resize(kBlockBytes);
  SPC_TRY(layer_.read(place, stored_));
  return blocks_.unpack(stored_, unpacked_);
}

/// Checks one block and returns its decompressed size. `place` must not be before the data.
/// `wanted`: size by the file's description.
Result<std::size_t> DataArea::check_block(std::uint64_t place, std::uint32_t stored_size,
                                          std::optional<std::size_t> wanted) {
  const bool as_is = (stored_size & kStoredAsIs) != 0;
  const std::uint32_t size = stored_size & ~kStoredAsIs;
  if (size == 0 || size > kBlockBytes) return refused("wrong size of a block");
  if (place > layout_.data.end || size > layout_.data.end - place)
    return refused("block out of bounds");
  if (as_is) return std::size_t{size};
  const std::size_t unpacked = SPC_TRY(unpacked_size(place, size, wanted));
  if (unpacked > kBlockBytes) return refused("a block decompresses to more than its limit");
  if (size >= unpacked) return refused("a block is compressed but not smaller");
  return unpacked;
}

Result<void> DataArea::check_fragments() {
  if (layout_.fragment_count == 0) return {};
  MetaStream table(layer_, layout_.codec, "fragments", layout_.fragments.begin,
                   layout_.fragments.end);
  std::uint64_t end = layout_.data.begin;
  bool all_as_is = true;
  for (std::uint32_t i = 0; i < layout_.fragment_count; ++i) {
    if (i % (kMetaBytes / 16) == 0) {
      const auto place =
          SPC_TRY(number_at(layer_, layout_.fragment_places + i / (kMetaBytes / 16) * 8));
      if (place != layout_.fragments.begin + table.position().block)
        return refused("fragments: wrong position of a block");
    }
    const auto entry = SPC_TRY(table.take<16>());
    Fields fields(entry);
    const auto start = fields.take<std::uint64_t>();
    const auto size = fields.take<std::uint32_t>();
    if (fields.take<std::uint32_t>() != 0) return refused("fragments: an unused field is not zero");
    if (start < end) return refused("fragments: the blocks are not in order");
    const auto unpacked = SPC_TRY_DURING("fragments", check_block(start, size, std::nullopt));
    end = start + (size & ~kStoredAsIs);
    all_as_is = all_as_is && (size & kStoredAsIs) != 0;
    fragment_sizes_.push_back(static_cast<std::uint32_t>(unpacked));
    extents_.push_back({.begin = start, .end = end});
  }
  if (all_as_is != layout_.fragments_stored_as_is) return refused("super block: unexpected flags");
  return table.expect_end();
}

Result<void> DataArea::check_part(const FileData& file) {
  if (file.start != 0 || file.holes != 0) return refused("a small file has blocks");
  if (file.size == 0) {
    if (file.fragment != kNoFragment || file.fragment_offset != 0)
      return refused("an empty file has a position");
    return {};
  }
  if (file.fragment >= fragment_sizes_.size()) return refused("a file in a missing fragment");
  const std::uint64_t room = fragment_sizes_[file.fragment];
  if (file.fragment_offset > room || file.size > room - file.fragment_offset) {
    return refused("a file extends beyond its fragment");
  }
  const std::uint64_t begin = file.fragment * kBlockBytes + file.fragment_offset;
  parts_.push_back({.begin = begin, .end = begin + file.size});
  return {};
}

Result<void> DataArea::check_file(const FileData& file, MetaStream& inodes) {
  if (file.size < kBlockBytes) return check_part(file);
  if (file.fragment != kNoFragment || file.fragment_offset != 0)
    return refused("a large file in a fragment");
  std::uint64_t place = file.start;
  std::uint64_t holes = 0;
  std::uint64_t left = file.size;
  while (left > 0) {
    const std::uint64_t wanted = std::min(left, kBlockBytes);
    const auto bytes = SPC_TRY(inodes.take<4>());
    const auto stored_size = Fields(bytes).take<std::uint32_t>();
    if (stored_size == 0) {
      holes += wanted;
    } else {
      if (place < layout_.data.begin) return refused("block out of bounds");
      const auto unpacked = SPC_TRY(check_block(place, stored_size, wanted));
      if (unpacked != wanted) return refused("wrong block size for its file");
      place += stored_size & ~kStoredAsIs;
    }
    left -= wanted;
  }
  if (holes != file.holes) return refused("wrong count of holes");
  if (holes == file.size) {
    if (file.start != 0) return refused("a file without blocks has a position");
    return {};
  }
  extents_.push_back({.begin = file.start, .end = place});
  return {};
}

Result<void> DataArea::check_apart() {
  for (auto* extents : {&extents_, &parts_}) {
    std::sort(extents->begin(), extents->end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    std::uint64_t end = 0;
    for (const Extent& extent : *extents) {
      if (extent.begin < end) return refused("two files share their data");
      end = extent.end;
    }
  }
  return {};
}

// --- attributes ---

namespace {

enum Namespace : std::uint16_t { kUser = 0, kTrusted = 1 };
constexpr std::uint16_t kElsewhere = 0x100;  ///< flag: the value is stored with another name
constexpr std::string_view kMark = "overlay.opaque";
constexpr std::size_t kMaxAttributeName = 255;
constexpr std::uint32_t kMaxValue = 65536;

Error bad(const char* what) { return refused(std::string("attributes: ") + what); }

/// Reader of names and values, one set after the other.
class Reader {
 public:
  Reader(LayerBytes& layer, const Layout& layout)
      : pairs_(layer, layout.codec, "attributes", layout.attributes.begin, layout.attributes.end) {}

  /// Reads one set. Returns whether it has overlayfs's mark.
  Result<bool> read_set(std::span<const std::byte> description) {
    Fields fields(description);
    const auto reference = fields.take<std::uint64_t>();
    const auto count = fields.take<std::uint32_t>();
    const auto size = fields.take<std::uint32_t>();
    if (reference != pairs_.position().reference()) return bad("wrong position of a set");
    if (count == 0) return bad("empty set");
    bytes_ = 0;
    marks_ = 0;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t name = SPC_TRY(read_pair());
      if (i > 0 && name <= last) return bad("names of a set not sorted");
      last = name;
    }
    if (bytes_ != size) return bad("wrong size of a set");
    if (marks_ == 1) return bad("overlayfs mark in a set of its own");
    return marks_ == 2;
  }

  Result<void> expect_end() const { return pairs_.expect_end(); }

 private:
  /// Returns the number of the pair's name: names are numbered in order of first use.
  Result<std::uint32_t> read_pair() {
    const auto head = SPC_TRY(pairs_.take<4>());
    Fields fields(head);
    const auto type = fields.take<std::uint16_t>();
    const std::size_t length = fields.take<std::uint16_t>();
    const unsigned name_space = type & ~unsigned{kElsewhere};
    const std::size_t prefix = name_space == kUser ? 5 : 8;
    if (name_space != kUser && name_space != kTrusted)
      return bad("a name is neither user.* nor overlayfs's mark");
    if (length == 0 || length + prefix > kMaxAttributeName) return bad("wrong length of a name");
    std::string name(length, '\0');
    SPC_TRY(pairs_.read(std::as_writable_bytes(std::span(name))));
    if (name.find('\0') != std::string::npos) return bad("a name contains NUL");
    const bool is_mark = name == kMark;
    if (!is_mark && (name_space == kTrusted || name.starts_with("overlay."))) {
      return bad("a name is neither user.* nor overlayfs's mark");
    }
    const bool elsewhere = (type & kElsewhere) != 0;
    if (is_mark) {
      ++marks_;
      if (elsewhere) return bad("wrong value of an overlayfs mark");
    }
    SPC_TRY(elsewhere ? read_reference() : read_value(is_mark));
    bytes_ += head.size() + length;
    name.insert(name.begin(), static_cast<char>(name_space));
    return names_.try_emplace(std::move(name), static_cast<std::uint32_t>(names_.size()))
        .first->second;
  }

  Result<void> read_value(bool is_mark) {
    const auto place = pairs_.position().reference();
    const auto head = SPC_TRY(pairs_.take<4>());
    const auto size = Fields(head).take<std::uint32_t>();
    if (size > kMaxValue) return bad("value too long");
    bytes_ += head.size() + size;
    if (is_mark) {
      if (size != 1 || SPC_TRY(pairs_.take<1>())[0] != std::byte{'y'})
        return bad("wrong value of an overlayfs mark");
      return {};
    }
    if (size > 8) values_.push_back(place);
    return pairs_.skip(size);
  }

  Result<void> read_reference() {
    const auto bytes = SPC_TRY(pairs_.take<12>());
    Fields fields(bytes);
    const auto size = fields.take<std::uint32_t>();
    // Only values longer than a reference are shared, and they precede their references.
    if (size != 8 ||
        !std::binary_search(values_.begin(), values_.end(), fields.take<std::uint64_t>())) {
      return bad("invalid reference to a value");
    }
    bytes_ += bytes.size();
    return {};
  }

  MetaStream pairs_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  std::vector<std::uint64_t> values_;  ///< positions of values that references may use, ascending
  std::uint64_t bytes_ = 0;            ///< size of the current set
  unsigned marks_ = 0;                 ///< marks in the current set
};

}  // namespace

Result<Attributes> Attributes::read(LayerBytes& layer, const Layout& layout) {
  Attributes attributes;
  if (!layout.has_attributes) return attributes;
  Reader reader(layer, layout);
  MetaStream sets(layer, layout.codec, "attributes", layout.sets.begin, layout.sets.end);
  for (std::uint32_t i = 0; i < layout.attribute_sets; ++i) {
    if (i % (kMetaBytes / 16) == 0) {
      const auto place =
          SPC_TRY(number_at(layer, layout.attribute_places + i / (kMetaBytes / 16) * 8));
      if (place != layout.sets.begin + sets.position().block)
        return bad("wrong position of a block");
    }
    const auto description = SPC_TRY(sets.take<16>());
    attributes.hides_.push_back(SPC_TRY(reader.read_set(description)));
  }
  SPC_TRY(sets.expect_end());
  SPC_TRY(reader.expect_end());
  return attributes;
}

Result<void> Attributes::use(std::uint32_t set, bool by_directory) {
  if (set == kNoAttributes) return {};
  if (set > used_ || set >= hides_.size()) return bad("an inode refers to a missing or later set");
  if (hides_[set] && !by_directory) return bad("overlayfs's mark on a non-directory");
  if (set == used_) ++used_;
  return {};
}

// --- inode tree ---

namespace {

constexpr std::size_t kSmallestInode = 20;
constexpr std::uint32_t kMaxHeight = 2048;  ///< longer paths cannot be opened
constexpr std::uint32_t kMaxTarget = 4095;
/// added to the size of a directory's listing for `.` and `..`, which are not stored
constexpr std::uint32_t kDots = 3;

/// Types of inodes. The long forms have more fields.
enum Type : std::uint16_t {
  kDirectory = 1,
  kFile = 2,
  kSymlink = 3,
  kCharacterDevice = 5,
  kFifo = 6,
  kLongDirectory = 8,
  kLongFile = 9,
};

/// Sticky bit and permissions, without setuid and setgid. The type is a separate field. If the mode
/// had bits of another type, the kernel would add them.
constexpr std::uint16_t kPermissions = 01777;

}  // namespace

struct InodeTree::Common {
  std::uint16_t type, mode, owner, group;
  std::uint32_t date, number;
  explicit Common(Fields fields)
      : type(fields.take<std::uint16_t>()),
        mode(fields.take<std::uint16_t>()),
        owner(fields.take<std::uint16_t>()),
        group(fields.take<std::uint16_t>()),
        date(fields.take<std::uint32_t>()),
        number(fields.take<std::uint32_t>()) {}
};

struct InodeTree::DirectoryFields {
  std::uint32_t links = 0;
  std::uint32_t size = 0;
  std::uint32_t parent = 0;
  MetaStream::Position listing;
  std::uint32_t attributes = kNoAttributes;
  std::uint16_t indexes = 0;
};

/// Position check for the inodes of one directory, following its entries.
class InodeTree::Order {
 public:
  void directory(const Inode& inode) {
    right_ = right_ && (directories_ == 0 || inode.first == behind_directories_);
    if (directories_++ == 0) first_ = inode.first;
    behind_directories_ = inode.order + 1;
  }
  void other(const Inode& inode) {
    right_ = right_ && (others_ == 0 || inode.order == behind_others_);
    if (others_++ == 0) first_other_ = inode.order;
    behind_others_ = inode.order + 1;
  }
  /// Returns whether the order is correct and the directory is next. `first`: position of the first
  /// inode below it.
  bool ends_at(std::uint32_t order, std::uint32_t& first) const {
    const std::uint32_t behind = others_ > 0        ? behind_others_
                                 : directories_ > 0 ? behind_directories_
                                                    : order;
    first = directories_ > 0 ? first_ : others_ > 0 ? first_other_ : order;
    return right_ && behind == order &&
           (directories_ == 0 || others_ == 0 || first_other_ == behind_directories_);
  }
  [[nodiscard]] std::uint32_t directories() const { return directories_; }

 private:
  bool right_ = true;
  std::uint32_t directories_ = 0, others_ = 0;
  std::uint32_t first_ = 0, behind_directories_ = 0, first_other_ = 0, behind_others_ = 0;
};

InodeTree::InodeTree(LayerBytes& layer, const Layout& layout, DataArea& data,
                     Attributes& attributes)
    : layout_(layout),
      data_(data),
      attributes_(attributes),
      inodes_(layer, layout.codec, "inodes", layout.inodes.begin, layout.inodes.end),
      listings_(layer, layout.codec, "directories", layout.directories.begin,
                layout.directories.end) {}

Result<void> InodeTree::check() {
  const std::uint64_t blocks = (layout_.inodes.end - layout_.inodes.begin) / 3 + 1;
  if (layout_.inode_count > blocks * kMetaBytes / kSmallestInode)
    return refused("fewer inodes than stated");
  // calloc returns zeroed pages, which are allocated when touched. So a count that is too large
  // costs no memory.
  known_.reset(static_cast<Inode*>(std::calloc(layout_.inode_count, sizeof(Inode))));
  if (!known_) throw std::bad_alloc();

  for (std::uint32_t i = 0; i < layout_.inode_count; ++i) {
    const auto place = inodes_.position();
    SPC_TRY_DURING(formatted("inode {} at {}:{}", i, place.block, place.offset), check_inode(i));
  }
  SPC_TRY(inodes_.expect_end());
  SPC_TRY(listings_.expect_end());
  if (names_left_ != 0) return refused("an inode has fewer names than stated");
  if (!attributes_.all_used()) return refused("attributes: a set belongs to no inode");

  const Inode& root = known_[layout_.inode_count - 1];
  if (root.kind != Kind::directory || root.named || root.order != layout_.inode_count - 1 ||
      layout_.root != (std::uint64_t{root.block} << 16U | root.offset)) {
    return refused("the root is not the last inode");
  }
  if (root.first != 0) return refused("an inode is not reached from the root");
  if (root.link_left != layout_.inode_count + 1) return refused("the root has a parent");
  return {};
}

Result<void> InodeTree::check_inode(std::uint32_t order) {
  const auto place = inodes_.position();
  const auto bytes = SPC_TRY(inodes_.take<16>());
  const Common common{Fields(bytes)};
  if (common.owner != 0 || common.group != layout_.group) return refused("its owner is not 0");
  if ((common.mode & ~unsigned{kPermissions}) != 0)
    return refused("mode bits other than permissions and sticky");
  if (common.number == 0 || common.number > layout_.inode_count)
    return refused("its number is too large");
  Inode& inode = known_[common.number - 1];
  if (inode.kind != Kind::none) return refused("duplicate number");
  if (place.block > 0xffffffff) return refused("its position is too large");
  inode.block = static_cast<std::uint32_t>(place.block);
  inode.offset = static_cast<std::uint16_t>(place.offset);
  inode.order = order;
  // Check the fields of each type.

  switch (common.type) {
    case kFile:
    case kLongFile: inode.kind = Kind::file; return check_file(inode, common.type == kLongFile);
    case kDirectory:
    case kLongDirectory:
      inode.kind = Kind::directory;
      return check_directory(inode, common.number, common.type == kLongDirectory);
    case kSymlink:
      if (common.mode != 0777) return refused("a link with permissions");
      inode.kind = Kind::symlink;
      SPC_TRY(check_symlink(inode));
      break;
    case kCharacterDevice: {
      const auto fields = SPC_TRY(inodes_.take<8>());
      inode.kind = Kind::whiteout;
      inode.link_left = Fields(fields).take<std::uint32_t>();
      const auto device = Fields(std::span(fields).subspan(4)).take<std::uint32_t>();
      if (device != 0 || inode.link_left != 1 || common.mode != 0)
        return refused("a device other than a whiteout");
      break;
    }
    case kFifo: {
      const auto fields = SPC_TRY(inodes_.take<4>());
      inode.kind = Kind::fifo;
      inode.link_left = Fields(fields).take<std::uint32_t>();
      break;
    }
    default: return refused("unused type");
  }
  names_left_ += inode.link_left;
  return {};
}

Result<void> InodeTree::check_symlink(Inode& inode) {
  const auto bytes = SPC_TRY(inodes_.take<8>());
  Fields fields(bytes);
  inode.link_left = fields.take<std::uint32_t>();
  const auto size = fields.take<std::uint32_t>();
  if (size == 0 || size > kMaxTarget) return refused("the link's target has a wrong length");
  std::array<std::byte, kMaxTarget> target;
  const auto text = std::span(target).first(size);
  SPC_TRY(inodes_.read(text));
  if (std::find(text.begin(), text.end(), std::byte{0}) != text.end())
    return refused("the link's target contains NUL");
  return {};
}

Result<void> InodeTree::check_file(Inode& inode, bool is_long) {
  FileData file;
  inode.link_left = 1;
  if (!is_long) {
    const auto bytes = SPC_TRY(inodes_.take<16>());
    Fields fields(bytes);
    file.start = fields.take<std::uint32_t>();
    file.fragment = fields.take<std::uint32_t>();
    file.fragment_offset = fields.take<std::uint32_t>();
    file.size = fields.take<std::uint32_t>();
  } else {
    const auto bytes = SPC_TRY(inodes_.take<40>());
    Fields fields(bytes);
    file.start = fields.take<std::uint64_t>();
    file.size = fields.take<std::uint64_t>();
    file.holes = fields.take<std::uint64_t>();
    inode.link_left = fields.take<std::uint32_t>();
    file.fragment = fields.take<std::uint32_t>();
    file.fragment_offset = fields.take<std::uint32_t>();
    const auto attributes = fields.take<std::uint32_t>();
    if (inode.link_left == 1 && attributes == kNoAttributes && file.holes == 0 &&
        file.start <= 0xffffffff && file.size <= 0xffffffff) {
      return refused("unnecessary long form");
    }
    SPC_TRY(attributes_.use(attributes, false));
  }
  names_left_ += inode.link_left;
  return data_.check_file(file, inodes_);
}

Result<InodeTree::DirectoryFields> InodeTree::read_directory(bool is_long) {
  DirectoryFields directory;
  if (!is_long) {
    const auto bytes = SPC_TRY(inodes_.take<16>());
    Fields fields(bytes);
    directory.listing.block = fields.take<std::uint32_t>();
    directory.links = fields.take<std::uint32_t>();
    directory.size = fields.take<std::uint16_t>();
    directory.listing.offset = fields.take<std::uint16_t>();
    directory.parent = fields.take<std::uint32_t>();
  } else {
    const auto bytes = SPC_TRY(inodes_.take<24>());
    Fields fields(bytes);
    directory.links = fields.take<std::uint32_t>();
    directory.size = fields.take<std::uint32_t>();
    directory.listing.block = fields.take<std::uint32_t>();
    directory.parent = fields.take<std::uint32_t>();
    directory.indexes = fields.take<std::uint16_t>();
    directory.listing.offset = fields.take<std::uint16_t>();
    directory.attributes = fields.take<std::uint32_t>();
    if (directory.attributes == kNoAttributes && directory.size <= 0xffff) {
      return refused("unnecessary long form");
    }
  }
  if (directory.size < kDots) return refused("wrong size");
  return directory;
}

/// Returns the inode if its type and position match the entry.
Result<InodeTree::Inode*> InodeTree::named_by(const Listing::Entry& entry) {
  if (entry.number == 0 || entry.number > layout_.inode_count)
    return refused("an entry refers to a missing inode");
  Inode& inode = known_[entry.number - 1];
  if (inode.kind == Kind::none || static_cast<std::uint16_t>(inode.kind) != entry.kind ||
      inode.block != entry.block || inode.offset != entry.offset) {
    return refused("an entry refers to a missing inode");
  }
  return &inode;
}

/// Checks an index entry in the inode of a long directory: the start of a group, and its first
/// name.
Result<void> InodeTree::check_index(const Listing::Begin& begin, std::string_view name) {
  const auto bytes = SPC_TRY(inodes_.take<12>());
  Fields fields(bytes);
  const bool right = fields.take<std::uint32_t>() == begin.at &&
                     fields.take<std::uint32_t>() == begin.block &&
                     fields.take<std::uint32_t>() == name.size() - 1;
  if (!right) return refused("its index does not match its listing");
  std::array<char, 255> found;
  const auto text = std::span(found).first(name.size());
  SPC_TRY(inodes_.read(std::as_writable_bytes(text)));
  if (!std::equal(text.begin(), text.end(), name.begin()))
    return refused("its index does not match its listing");
  return {};
}

Result<void> InodeTree::check_directory(Inode& inode, std::uint32_t number, bool is_long) {
  const auto directory = SPC_TRY(read_directory(is_long));
  SPC_TRY(attributes_.use(directory.attributes, true));
  if (directory.listing != listings_.position()) return refused("wrong position of its listing");
  inode.link_left = directory.parent;

  Listing listing(listings_, directory.size - kDots);
  Order order;
  std::uint32_t indexes = 0;
  for (;;) {
    const auto entry = SPC_TRY(listing.next());
    if (!entry) break;
    if (is_long && listing.group_begin()) {
      ++indexes;
      SPC_TRY(check_index(*listing.group_begin(), entry->name));
    }
    Inode* const child = SPC_TRY(named_by(*entry));
    if (child->kind == Kind::directory) {
      if (child->named || child->link_left != number)
        return refused("names a directory that has another parent");
      order.directory(*child);
      inode.height = std::max(inode.height, child->height + 1);
    } else {
      if (child->link_left == 0) return refused("names an inode that has no name left");
      if (!child->named) order.other(*child);
      --child->link_left;
      --names_left_;
    }
    child->named = true;
  }
  if (is_long && indexes != directory.indexes)
    return refused("its index does not match its listing");
  if (directory.links != 2 + order.directories()) return refused("wrong link count");
  if (inode.height >= kMaxHeight) return refused("the directories are nested too deeply");
  if (!order.ends_at(inode.order, inode.first)) return refused("unexpected order of inodes");
  return {};
}

}  // namespace spc::verify
