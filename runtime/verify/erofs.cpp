// Checks of an EROFS image, from the super block to the tree of inodes.

#include "verify/erofs.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/format.hpp"

namespace spc::verify::erofs {

// --- window ---

namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{128} << 10U;

}  // namespace

bool Window::within(std::uint64_t offset, std::uint64_t size) const {
  return offset <= layer_.size() && size <= layer_.size() - offset;
}

bool Window::keeps(std::uint64_t offset, std::uint64_t size) const {
  return offset >= begin_ && offset - begin_ <= bytes_.size() &&
         size <= bytes_.size() - (offset - begin_);
}

Result<std::span<const std::byte>> Window::at(std::uint64_t offset, std::uint64_t size) {
  if (!within(offset, size)) return refused("it extends beyond the end of the image");
  if (!keeps(offset, size)) {
    begin_ = offset / kBlock * kBlock;
    bytes_.resize(std::min(std::max(kWindowBytes, offset - begin_ + size), layer_.size() - begin_));
    SPC_TRY(layer_.read(begin_, bytes_));
  }
  return std::span<const std::byte>(bytes_).subspan(offset - begin_, size);
}

Result<void> Window::copy(std::uint64_t offset, std::span<std::byte> into) {
  if (!within(offset, into.size())) return refused("it extends beyond the end of the image");
  if (!keeps(offset, into.size())) return layer_.read(offset, into);
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset - begin_), into.size(),
              into.begin());
  return {};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

// --- super block ---

namespace {

constexpr std::uint64_t kSuperPlace = 1024;
constexpr std::size_t kSuperSize = 128;
constexpr std::uint32_t kErofsMagic = 0xE0F5E1E2;
constexpr std::uint32_t kSquashfsMagic = 0x73717368;

/// Offsets in the super block.
enum SuperAt : std::size_t {
  kMagicAt = 0,
  kChecksumAt = 4,
  kCompatibleAt = 8,
  kBlockBitsAt = 12,
  kSlotsAt = 13,
  kRootAt = 14,
  kInodesAt = 16,
  kTimeAt = 24,  // seconds and nanoseconds
  kBlocksAt = 36,
  kMetaAt = 40,  // base of inodes and shared attributes
  kLabelAt = 48,
  kIncompatibleAt = 80,
  kAlgorithmsAt = 84,
  kRestAt = 86,
};

constexpr std::uint32_t kCompatible = 3;  ///< has a checksum; dates are modification times
constexpr std::uint32_t kChunks = 4;      ///< chunked files
/// leading zeros before compressed bytes; large clusters and compressor options
constexpr std::uint32_t kCompressed = 3;
constexpr std::uint16_t kOnlyLz4 = 1;

/// lz4's options: their size, the maximum distance, blocks of the largest cluster, and zeros.
constexpr std::array<std::uint8_t, 16> kSettings{14, 0, 0xff, 0xff, 32};

Error bad_super(const char* what) { return refused(std::string("super block: ") + what); }

/// Returns the CRC32C in EROFS's form: without the final inversion.
std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t sum) {
  for (const std::byte byte : bytes) {
    sum ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return sum;
}

Result<void> check_checksum(std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, 4> kNone{};
  std::uint32_t sum = checksum_of(bytes.first(kChecksumAt), 0xffffffff);
  sum = checksum_of(kNone, sum);
  sum = checksum_of(bytes.subspan(kChecksumAt + kNone.size()), sum);
  if (sum != number<std::uint32_t>(bytes, kChecksumAt)) return bad_super("wrong checksum");
  return {};
}

Result<void> check_settings(std::span<const std::byte> bytes, bool is_compressed) {
  const auto found = bytes.first(kSettings.size());
  const bool are_ours = std::equal(found.begin(), found.end(), kSettings.begin(),
                                   [](auto a, auto b) { return a == std::byte{b}; });
  if (is_compressed ? !are_ours : !all_zero(found)) return bad_super("unexpected settings of lz4");
  if (!all_zero(bytes.subspan(kSettings.size())))
    return bad_super("data between the super block and the root");
  return {};
}

}  // namespace

Result<bool> SuperBlock::is_there(LayerBytes& layer) {
  if (layer.size() < kSuperPlace + kSuperSize) return false;
  std::array<std::byte, 4> magic{};
  SPC_TRY(layer.read(0, magic));
  if (number<std::uint32_t>(magic, 0) == kSquashfsMagic) return false;
  SPC_TRY(layer.read(kSuperPlace, magic));
  return number<std::uint32_t>(magic, 0) == kErofsMagic;
}

Result<SuperBlock> SuperBlock::read(Window& image) {
  if (image.size() < 2 * kBlock) return bad_super("the file is too short");
  const auto block = SPC_TRY(image.at(0, kBlock));
  if (!all_zero(block.first(kSuperPlace))) return bad_super("data in front of it");
  const auto bytes = block.subspan(kSuperPlace);
  if (number<std::uint32_t>(bytes, kMagicAt) != kErofsMagic) return bad_super("not an EROFS image");
  SPC_TRY(check_checksum(bytes));
  if (number<std::uint32_t>(bytes, kCompatibleAt) != kCompatible)
    return bad_super("unexpected compatible features");
  if (number<std::uint8_t>(bytes, kBlockBitsAt) != 12)
    return bad_super("the block size is not 4 KiB");
  if (number<std::uint8_t>(bytes, kSlotsAt) != 0) return bad_super("it is longer than 128 bytes");
  if (number<std::uint16_t>(bytes, kRootAt) != kRoot)
    return bad_super("unexpected place of the root");
  if (!all_zero(bytes.subspan(kTimeAt, kBlocksAt - kTimeAt))) return bad_super("unexpected date");
  if (image.size() % kBlock != 0 ||
      number<std::uint32_t>(bytes, kBlocksAt) != image.size() / kBlock) {
    return bad_super("wrong file size");
  }
  if (!all_zero(bytes.subspan(kMetaAt, kLabelAt - kMetaAt)))
    return bad_super("unexpected place of inodes or attributes");
  if (!all_zero(bytes.subspan(kLabelAt, kIncompatibleAt - kLabelAt)))
    return bad_super("unexpected label");

  SuperBlock super;
  super.inodes = number<std::uint64_t>(bytes, kInodesAt);
  const auto features = number<std::uint32_t>(bytes, kIncompatibleAt);
  super.is_compressed = features == (kChunks | kCompressed);
  if (!super.is_compressed && features != kChunks) return bad_super("unexpected features");
  if (number<std::uint16_t>(bytes, kAlgorithmsAt) != (super.is_compressed ? kOnlyLz4 : 0)) {
    return bad_super("unexpected algorithms");
  }
  if (!all_zero(bytes.subspan(kRestAt, kSuperSize - kRestAt)))
    return bad_super("unexpected values at its end");
  SPC_TRY(check_settings(bytes.subspan(kSuperSize, kRoot * kSlot - kSuperPlace - kSuperSize),
                         super.is_compressed));
  return super;
}

// --- used ranges ---

void Used::add(Extents& extents, Extent extent) {
  if (!extents.empty() && extents.back().end == extent.begin) {
    extents.back().end = extent.end;
  } else {
    extents.push_back(extent);
  }
}

/// Detects overlapping inodes at once, before the rest of the record is read: otherwise a record
/// could be read many times.
Result<void> Used::record(const Inode& inode, std::uint64_t end) {
  if (end > blocks_ * kBlock) return refused("it extends beyond the end of the image");
  SPC_TRY(inode.check_place(end));
  if (inode.begin() < last_end_) return refused("two inodes overlap");
  last_end_ = pieces(end, kSlot) * kSlot;  // minimum position of the next record
  add(records_, {.begin = inode.begin(), .end = last_end_});
  return {};
}

Result<void> Used::content(std::uint64_t first, std::uint64_t count) {
  if (first == 0) return refused("its data is in block 0");
  if (first > blocks_ || count > blocks_ - first)
    return refused("its data extends beyond the end of the image");
  add(contents_, {.begin = first * kBlock, .end = (first + count) * kBlock});
  return {};
}

Result<void> Used::check_apart() {
  for (Extents* extents : {&records_, &contents_}) {
    std::sort(extents->begin(), extents->end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < extents->size(); ++i) {
      if ((*extents)[i].begin >= (*extents)[i - 1].end) continue;
      return refused(extents == &records_ ? "two inodes overlap" : "two inodes share their data");
    }
  }
  std::size_t behind = 0;
  for (const Extent& record : records_) {
    while (behind < contents_.size() && contents_[behind].end <= record.begin) ++behind;
    if (behind < contents_.size() && contents_[behind].begin < record.end)
      return refused("data overlaps an inode");
  }
  return {};
}

// --- content ---

namespace {

constexpr std::uint64_t kUnit = std::uint64_t{128} << 10U;  ///< unit of chunks and of compression
constexpr std::uint32_t kUnitChunks = 5;  ///< chunks of that size, with a list of block numbers
constexpr std::uint64_t kChunkEntry = 4;
constexpr std::uint32_t kHole = 0xffffffff;

constexpr std::uint64_t kIndexHead = 16;
constexpr std::uint64_t kIndexEntry = 8;
/// of the header: lz4, clusters of several blocks
constexpr std::uint64_t kLargeClusters = std::uint64_t{2} << 32U;

/// Types of index entries. There is one entry for each block of the file's content.
enum ClusterType : std::uint16_t { kStoredAsIs = 0, kHead = 1, kFollower = 2 };
constexpr unsigned kClusterSize = 0x800;  ///< flag: the number is the cluster's size in blocks

struct IndexEntry {
  std::uint16_t type, offset;
  std::uint32_t block;
  std::uint16_t back, on;  ///< the same bytes

  IndexEntry(std::span<const std::byte> entries, std::size_t i)
      : type(number<std::uint16_t>(entries, i * kIndexEntry)),
        offset(number<std::uint16_t>(entries, i * kIndexEntry + 2)),
        block(number<std::uint32_t>(entries, i * kIndexEntry + 4)),
        back(number<std::uint16_t>(entries, i * kIndexEntry + 4)),
        on(number<std::uint16_t>(entries, i * kIndexEntry + 6)) {}
};

}  // namespace

Result<std::uint64_t> place_text(const Inode& inode, Used& used) {
  if (inode.size == 0) return refused("it is empty");
  const std::uint64_t room = kBlock - (inode.nid == kRoot ? inode.begin() : 0);
  const std::uint64_t fixed = Inode::kSize + inode.attributes;
  if (fixed <= room && inode.size <= room - fixed) {
    if (inode.layout != DataLayout::inlined || inode.start != 0)
      return refused("unexpected layout");
    SPC_TRY(used.record(inode, inode.content() + inode.size));
    return inode.content();
  }
  if (inode.layout != DataLayout::plain) return refused("unexpected layout");
  SPC_TRY(used.record(inode, inode.content()));
  SPC_TRY(used.content(inode.start, pieces(inode.size)));
  return inode.start * kBlock;
}

Result<void> FileContent::check(bool may_be_compressed) {
  switch (inode_.layout) {
    case DataLayout::plain:
      SPC_TRY(used_.record(inode_, inode_.content()));
      if (inode_.size > 0) return used_.content(inode_.start, pieces(inode_.size));
      if (inode_.start != 0) return refused("an empty file has a position");
      return {};
    case DataLayout::inlined:
      if (inode_.size == 0 || inode_.start != 0 || inode_.size > kBlock)
        return refused("unexpected layout");
      if (Inode::kSize + inode_.attributes + inode_.size > kBlock)
        return refused("unexpected layout");
      return used_.record(inode_, inode_.content() + inode_.size);
    case DataLayout::chunks: return check_chunks();
    case DataLayout::compressed:
      if (!may_be_compressed) return refused("it is compressed, where nothing is");
      return check_clusters();
  }
  return refused("unknown layout");
}

/// Checks that a file's blocks are consecutive.
Result<void> FileContent::take_blocks(std::uint64_t first, std::uint64_t count) {
  if (count_ == 0) first_ = first;
  if (first != first_ + count_) return refused("its blocks are not consecutive");
  count_ += count;
  return {};
}

Result<void> FileContent::check_chunks() {
  if (inode_.start != kUnitChunks) return refused("chunks of another size or form");
  const std::uint64_t chunks = pieces(inode_.size, kUnit);
  at_ = inode_.content();
  SPC_TRY(used_.record(inode_, at_ + chunks * kChunkEntry));
  std::uint64_t left = inode_.size;
  bool has_hole = false;
  for (std::uint64_t i = 0; i < chunks; ++i, at_ += kChunkEntry) {
    const auto first = number<std::uint32_t>(SPC_TRY(image_.at(at_, kChunkEntry)), 0);
    const std::uint64_t bytes = std::min(left, kUnit);
    left -= bytes;
    if (first == kHole) {
      has_hole = true;
    } else {
      SPC_TRY(take_blocks(first, pieces(bytes)));
    }
  }
  if (!has_hole) return refused("chunks without a hole");
  if (count_ == 0) return {};
  return used_.content(first_, count_);
}

Result<void> FileContent::check_clusters() {
  const std::uint64_t head = pieces(inode_.content(), kIndexEntry) * kIndexEntry;
  SPC_TRY(used_.record(inode_, head + kIndexHead + pieces(inode_.size) * kIndexEntry));
  SPC_TRY(check_cluster_head());
  at_ = head + kIndexHead;
  for (std::uint64_t left = inode_.size; left > 0;) {
    const std::uint64_t size = std::min(left, kUnit);
    SPC_TRY(check_unit(size));
    left -= size;
  }
  if (!has_compressed_) return refused("a compressed file of which nothing is compressed");
  if (count_ != inode_.start) return refused("wrong number of blocks");
  return used_.content(first_, count_);
}

Result<void> FileContent::check_cluster_head() {
  const std::uint64_t padding = (kIndexEntry - inode_.content() % kIndexEntry) % kIndexEntry;
  const auto bytes = SPC_TRY(image_.at(inode_.content(), padding + kIndexHead));
  if (!all_zero(bytes.first(padding)) || number<std::uint64_t>(bytes, padding) != kLargeClusters ||
      number<std::uint64_t>(bytes, padding + 8) != 0) {
    return refused("unexpected head of its index");
  }
  return {};
}

Result<void> FileContent::check_unit(std::uint64_t size) {
  const auto entries = SPC_TRY(image_.at(at_, pieces(size) * kIndexEntry));
  at_ += entries.size();
  const IndexEntry first(entries, 0);
  if (first.offset != 0) return refused("a part of it does not begin where expected");
  if (first.type == kHead) return check_compressed_unit(entries, size);
  return check_plain_unit(entries);
}

Result<void> FileContent::check_plain_unit(std::span<const std::byte> entries) {
  for (std::size_t i = 0; i < entries.size() / kIndexEntry; ++i) {
    const IndexEntry entry(entries, i);
    if (entry.type != kStoredAsIs || entry.offset != 0)
      return refused("unexpected entry in its index");
    SPC_TRY(take_blocks(entry.block, 1));
  }
  return {};
}

/// Checks one unit. The head has the cluster's position, the second entry its length. A cluster
/// shorter than a block marks the end of the file.
Result<void> FileContent::check_compressed_unit(std::span<const std::byte> entries,
                                                std::uint64_t size) {
  const std::size_t whole = size / kBlock;
  std::uint64_t blocks = 1;
  for (std::size_t i = 1; i < whole; ++i) {
    const IndexEntry entry(entries, i);
    const unsigned back = i == 1 ? entry.back & ~kClusterSize : entry.back;
    if (i == 1) blocks = back;
    const bool fits = entry.type == kFollower && entry.offset == 0 && entry.on == whole - i &&
                      (i == 1 ? (entry.back & kClusterSize) != 0 : back == i);
    if (!fits) return refused("unexpected entry in its index");
  }
  if (blocks == 0 || blocks >= pieces(size)) return refused("wrong size of a cluster");
  if (size % kBlock != 0) {
    const IndexEntry end(entries, whole);
    if (end.type != kStoredAsIs || end.offset != size % kBlock || end.block != 0)
      return refused("unexpected end of its index");
  }
  has_compressed_ = true;
  return take_blocks(IndexEntry(entries, 0).block, blocks);
}

// --- inode ---

namespace {

/// Offsets in the inode.
enum InodeAt : std::size_t {
  kFormatAt = 0,
  kAttributesAt = 2,
  kModeAt = 4,
  kReservedAt = 6,
  kSizeAt = 8,
  kStartAt = 16,
  kUnusedNumberAt = 20,
  kOwnerAt = 24,  // user and group
  kDateAt = 32,
  kNanosecondsAt = 40,
  kLinksAt = 44,
  kInodeRestAt = 48,
};

constexpr std::uint16_t kExtended = 1;
constexpr unsigned kTypeOrPermissions = S_IFMT | 01777;  ///< no setuid, no setgid

}  // namespace

Result<Inode> Inode::read(Window& image, std::uint64_t nid) {
  Inode inode;
  inode.nid = nid;
  const auto bytes = SPC_TRY(image.at(inode.begin(), kSize));
  const auto format = number<std::uint16_t>(bytes, kFormatAt);
  inode.layout = static_cast<DataLayout>(format >> 1U);
  const bool is_known = inode.layout == DataLayout::plain ||
                        inode.layout == DataLayout::compressed ||
                        inode.layout == DataLayout::inlined || inode.layout == DataLayout::chunks;
  if ((format & kExtended) == 0) return refused("it is of the short form");
  if (!is_known) return refused("unknown layout");
  inode.mode = number<std::uint16_t>(bytes, kModeAt);
  if ((inode.mode & ~kTypeOrPermissions) != 0)
    return refused("mode bits other than permissions and sticky");
  if (!all_zero(bytes.subspan(kOwnerAt, 8))) return refused("its owner is not 0");
  if (number<std::uint64_t>(bytes, kDateAt) > 0xffffffff ||
      number<std::uint32_t>(bytes, kNanosecondsAt) != 0) {
    return refused("unexpected date");
  }
  if (!all_zero(bytes.subspan(kReservedAt, 2)) || !all_zero(bytes.subspan(kUnusedNumberAt, 4)) ||
      !all_zero(bytes.subspan(kInodeRestAt))) {
    return refused("a value in an unused field");
  }
  inode.size = number<std::uint64_t>(bytes, kSizeAt);
  inode.start = number<std::uint32_t>(bytes, kStartAt);
  inode.links = number<std::uint32_t>(bytes, kLinksAt);
  const std::uint64_t count = number<std::uint16_t>(bytes, kAttributesAt);
  inode.attributes = count == 0 ? 0 : 12 + 4 * (count - 1);
  return inode;
}

Result<void> Inode::check_place(std::uint64_t end) const {
  if (end - begin() <= kBlock) {
    if (begin() % kBlock + (end - begin()) > kBlock)
      return refused("it crosses the end of a block");
  } else if (begin() % kBlock != 0) {
    return refused("it is longer than a block and does not begin with one");
  }
  return {};
}

// --- xattrs ---

namespace {

enum Prefix : std::uint8_t { kUserPrefix = 1, kTrustedPrefix = 4 };
constexpr std::size_t kListHead = 12;
constexpr std::size_t kAttributeHead = 4;
constexpr std::string_view kOpaqueMark = "overlay.opaque";
constexpr std::size_t kMaxUserName = 255 - std::string_view("user.").size();

Error bad_attribute(const char* what) { return refused(std::string("attributes: ") + what); }

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Attribute {
  std::uint8_t prefix = 0;
  std::string_view name;
  std::string_view value;
  std::size_t end = 0;  ///< offset in its begin, with padding

  [[nodiscard]] bool is_mark() const { return name == kOpaqueMark; }
};

/// Reads the attribute at the start of `bytes`.
Result<Attribute> first_of(std::span<const std::byte> bytes) {
  if (bytes.size() < kAttributeHead) return bad_attribute("the last one is cut off");
  const std::size_t name = number<std::uint8_t>(bytes, 0);
  const std::size_t value = number<std::uint16_t>(bytes, 2);
  const std::size_t end = kAttributeHead + name + value;
  Attribute found;
  found.prefix = number<std::uint8_t>(bytes, 1);
  found.end = (end + 3) / 4 * 4;
  if (found.end > bytes.size()) return bad_attribute("the last one is cut off");
  if (!all_zero(bytes.subspan(end, found.end - end)))
    return bad_attribute("data between two of them");
  found.name = text_of(bytes.subspan(kAttributeHead, name));
  found.value = text_of(bytes.subspan(kAttributeHead + name, value));
  return found;
}

Result<void> check_attribute(const Attribute& attribute, bool on_directory) {
  const bool is_user = attribute.prefix == kUserPrefix;
  if (!is_user && attribute.prefix != kTrustedPrefix)
    return bad_attribute("a name is neither user.* nor overlayfs's mark");
  if (attribute.name.empty() || attribute.name.size() > kMaxUserName)
    return bad_attribute("wrong length of a name");
  if (attribute.name.find('\0') != std::string_view::npos)
    return bad_attribute("a name contains NUL");
  if (!attribute.is_mark()) {
    if (!is_user || attribute.name.starts_with("overlay."))
      return bad_attribute("a name is neither user.* nor overlayfs's mark");
    return {};
  }
  if (!on_directory) return bad_attribute("overlayfs's mark on a non-directory");
  if (attribute.value != "y") return bad_attribute("wrong value of an overlayfs mark");
  return {};
}

}  // namespace

Result<void> check_attributes(Window& image, const Inode& inode) {
  if (inode.attributes == 0) return {};
  auto bytes = SPC_TRY(image.at(inode.begin() + Inode::kSize, inode.attributes));
  if (!all_zero(bytes.first(kListHead))) return bad_attribute("unexpected header");
  bytes = bytes.subspan(kListHead);
  if (bytes.empty()) return bad_attribute("empty list");
  std::vector<std::string_view> names;  // user attributes
  unsigned marks = 0;
  unsigned trusted = 0;
  while (!bytes.empty()) {
    const auto attribute = SPC_TRY(first_of(bytes));
    SPC_TRY(check_attribute(attribute, inode.is(S_IFDIR)));
    if (attribute.is_mark()) ++marks;
    if (attribute.prefix == kTrustedPrefix) {
      ++trusted;
    } else {
      names.push_back(attribute.name);
    }
    bytes = bytes.subspan(attribute.end);
  }
  std::sort(names.begin(), names.end());
  if (trusted > 1 || std::adjacent_find(names.begin(), names.end()) != names.end())
    return bad_attribute("a name comes twice");
  if (marks == 1) return bad_attribute("one half of overlayfs's mark");
  return {};
}

// --- directory ---

namespace {

constexpr std::size_t kEntrySize = 12;
constexpr std::size_t kMaxEntryName = 255;

/// Offsets in an entry.
enum EntryAt : std::size_t { kNidAt = 0, kNameAt = 8, kTypeAt = 10, kZeroAt = 11 };

bool is_entry_type(std::uint8_t type) {
  constexpr std::array kTypes{EntryType::file, EntryType::directory, EntryType::whiteout,
                              EntryType::fifo, EntryType::symlink};
  return std::find(kTypes.begin(), kTypes.end(), static_cast<EntryType>(type)) != kTypes.end();
}

}  // namespace

Result<void> Directory::load() {
  size_ = std::min(left_, kBlock);
  SPC_TRY(image_.copy(begin_, std::span(block_).first(size_)));
  begin_ += size_;
  left_ -= size_;
  if (size_ < kEntrySize) return refused("a cut off entry");
  names_ = number<std::uint16_t>(block(), kNameAt);
  count_ = names_ / kEntrySize;
  if (count_ == 0 || names_ % kEntrySize != 0 || names_ > size_)
    return refused("wrong number of entries in a block");
  at_ = 0;
  return {};
}

/// Returns the end of the name of the entry at `at_`, which starts at `begin`.
Result<std::size_t> Directory::name_end(std::size_t begin) const {
  const auto bytes = block();
  if (at_ + 1 < count_) {
    const std::size_t end = number<std::uint16_t>(bytes, (at_ + 1) * kEntrySize + kNameAt);
    if (end < begin || end > size_) return refused("wrong position of a name");
    return end;
  }
  if (left_ == 0) return size_;
  const auto rest = bytes.subspan(begin);
  const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
  if (!all_zero({end, rest.end()})) return refused("data behind the names of a block");
  return begin + static_cast<std::size_t>(end - rest.begin());
}

Result<void> Directory::check_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxEntryName) return refused("wrong length of a name");
  if (name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos)
    return refused("invalid name");
  if (name <= last_name_) return refused("names of a directory not sorted");
  last_name_ = name;
  return {};
}

Result<std::optional<Directory::Entry>> Directory::next() {
  if (at_ == count_) {
    if (left_ == 0) return std::optional<Entry>();
    is_first_ = count_ > 0;
    SPC_TRY(load());
  }
  const auto bytes = block().subspan(at_ * kEntrySize, kEntrySize);
  if (number<std::uint16_t>(bytes, kNameAt) != names_) return refused("wrong position of a name");
  const std::size_t end = SPC_TRY(name_end(names_));
  Entry entry;
  entry.nid = number<std::uint64_t>(bytes, kNidAt);
  const auto type = number<std::uint8_t>(bytes, kTypeAt);
  if (!is_entry_type(type)) return refused("an entry of an unused type");
  if (number<std::uint8_t>(bytes, kZeroAt) != 0)
    return refused("a value in an unused field of an entry");
  entry.type = static_cast<EntryType>(type);
  entry.name = {reinterpret_cast<const char*>(block_.data()) + names_, end - names_};
  SPC_TRY(check_name(entry.name));
  if (is_first_ && kEntrySize + entry.name.size() <= room_)
    return refused("a block of entries that is not full");
  is_first_ = false;
  names_ = end;
  if (++at_ == count_) room_ = kBlock - end;
  return std::optional<Entry>(entry);
}

// --- tree ---

namespace {

constexpr std::uint32_t kMaxDepth = 2048;  ///< longer paths cannot be opened
constexpr std::uint64_t kLongestTarget = 4095;
constexpr unsigned kTypeBits = 3;

mode_t mode_of(EntryType type) {
  switch (type) {
    case EntryType::file: return S_IFREG;
    case EntryType::directory: return S_IFDIR;
    case EntryType::whiteout: return S_IFCHR;
    case EntryType::fifo: return S_IFIFO;
    case EntryType::symlink: return S_IFLNK;
  }
  return 0;
}

}  // namespace

Result<void> Tree::check() {
  SPC_TRY(check_directories());
  used_.begin_others();
  SPC_TRY(check_others());
  if (inodes_ != super_.inodes) return refused("wrong number of inodes");
  return used_.check_apart();
}

Result<void> Tree::check_directories() {
  std::uint64_t last = 0;
  waiting_.push({.nid = kRoot, .parent = kRoot, .depth = 0});
  while (!waiting_.empty()) {
    const Named named = waiting_.top();
    waiting_.pop();
    // Numbers ascend: each directory's number is larger than that of its parent, and so than all
    // numbers read before.
    if (named.nid == last)
      return refused(formatted("inode {}: a directory that two entries name", named.nid));
    last = named.nid;
    SPC_TRY_DURING(formatted("inode {}", named.nid), check_directory(named));
    ++inodes_;
  }
  return {};
}

Result<void> Tree::check_directory(const Named& named) {
  const auto inode = SPC_TRY(Inode::read(image_, named.nid));
  if (!inode.is(S_IFDIR)) return refused("an entry names it as something else");
  const std::uint64_t begin = SPC_TRY(place_text(inode, used_));
  SPC_TRY(check_attributes(image_, inode));
  if (named.nid == kRoot)
    SPC_TRY(check_behind_root(inode.layout == DataLayout::inlined ? begin + inode.size
                                                                  : inode.content()));

  Directory entries(image_, begin, inode.size);
  unsigned dots = 0;
  std::uint64_t links = 2;
  for (;;) {
    const auto entry = SPC_TRY(entries.next());
    if (!entry) break;
    if (entry->name == "." || entry->name == "..") {
      const std::uint64_t itself = entry->name == "." ? named.nid : named.parent;
      if (entry->nid != itself || entry->type != EntryType::directory)
        return refused("a wrong entry . or ..");
      ++dots;
    } else if (SPC_TRY(check_entry(named, *entry))) {
      ++links;
    }
  }
  if (dots != 2) return refused("without entries . and ..");
  if (inode.links != links) return refused("wrong link count");
  return {};
}

Result<bool> Tree::check_entry(const Named& directory, const Directory::Entry& entry) {
  if (entry.nid >= image_.size() / kSlot)
    return refused("an entry names an inode beyond the end of the image");
  if (entry.nid < kBlock / kSlot) return refused("an entry names an inode in block 0");
  if (entry.type != EntryType::directory) {
    names_.push_back(entry.nid << kTypeBits | static_cast<std::uint64_t>(entry.type));
    return false;
  }
  if (entry.nid <= directory.nid) return refused("an entry names a directory in front of it");
  if (directory.depth == kMaxDepth) return refused("the directories are nested too deeply");
  waiting_.push({.nid = entry.nid, .parent = directory.nid, .depth = directory.depth + 1});
  return true;
}

Result<void> Tree::check_behind_root(std::uint64_t end) {
  if (!all_zero(SPC_TRY(image_.at(end, kBlock - end))))
    return refused("data behind the root in block 0");
  return {};
}

Result<void> Tree::check_others() {
  std::sort(names_.begin(), names_.end());
  for (std::size_t i = 0; i < names_.size();) {
    const std::uint64_t named = names_[i];
    const std::uint64_t nid = named >> kTypeBits;
    const std::size_t first = i;
    for (; i < names_.size() && names_[i] >> kTypeBits == nid; ++i) {
      if (names_[i] != named)
        return refused(formatted("inode {}: entries name it as different things", nid));
    }
    const auto type = static_cast<EntryType>(named & ((1U << kTypeBits) - 1));
    SPC_TRY_DURING(formatted("inode {}", nid), check_other(nid, type, i - first));
    ++inodes_;
  }
  return {};
}

Result<void> Tree::check_other(std::uint64_t nid, EntryType type, std::uint64_t names) {
  const auto inode = SPC_TRY(Inode::read(image_, nid));
  if (!inode.is(mode_of(type))) return refused("an entry names it as something else");
  if (inode.links != names) return refused("wrong link count");
  switch (type) {
    case EntryType::file:
      SPC_TRY(FileContent(image_, inode, used_).check(super_.is_compressed));
      break;
    case EntryType::symlink: SPC_TRY(check_target(inode)); break;
    default:
      if (inode.layout != DataLayout::plain || inode.size != 0 || inode.start != 0) {
        return refused(type == EntryType::fifo ? "a FIFO with content"
                                               : "a device other than a whiteout");
      }
      if (inode.attributes != 0) return refused("attributes: unexpected for its type");
      SPC_TRY(used_.record(inode, inode.content()));
  }
  return check_attributes(image_, inode);
}

Result<void> Tree::check_target(const Inode& inode) {
  if (inode.size == 0 || inode.size > kLongestTarget)
    return refused("the link's target has a wrong length");
  const std::uint64_t begin = SPC_TRY(place_text(inode, used_));
  std::array<std::byte, kLongestTarget> target;
  const auto text = std::span(target).first(inode.size);
  SPC_TRY(image_.copy(begin, text));
  if (std::find(text.begin(), text.end(), std::byte{0}) != text.end())
    return refused("the link's target contains NUL");
  return {};
}

}  // namespace spc::verify::erofs
