#include "filesystem/erofs_writer.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "filesystem/data_writer.hpp"

namespace spc::erofs {

// --- erofs record ---

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kLinksOffset = 44;  ///< offset in an inode
constexpr std::string_view kUser = "user.", kTrusted = "trusted.";
constexpr char kUserIndex = 1, kTrustedIndex = 4;

/// The kernel reads the first name when root mounts the overlay, the second with the option
/// userxattr.
constexpr std::array<std::string_view, 2> kOpaque{"trusted.overlay.opaque", "user.overlay.opaque"};

struct DiskInode {
  std::uint16_t format, attributes, mode, unused;
  std::uint64_t size;
  std::uint32_t position, number, uid, gid;
  std::uint64_t mtime;
  std::uint32_t nanoseconds, links;
  std::byte reserved[16];
};
static_assert(sizeof(DiskInode) == kInodeBytes && offsetof(DiskInode, links) == kLinksOffset);

std::uint16_t mode_of(const Inode& inode) {
  constexpr std::array<std::uint16_t, 5> kTypes{S_IFDIR, S_IFREG, S_IFLNK, S_IFIFO, S_IFCHR};
  // in the order of the variant's alternatives
  return static_cast<std::uint16_t>(kTypes[inode.content.index()] | inode.mode);
}

constexpr std::size_t rounded(std::size_t size) { return (size + 3) / 4 * 4; }

std::size_t entry_bytes(std::string_view name, std::string_view value) {
  return rounded(4 + name.size() - (name.starts_with(kUser) ? kUser : kTrusted).size() +
                 value.size());
}

Error too_large(const char* what) {
  return Error(ErrorKind::refused, what)
      .hint("an EROFS image has no room for it: layer_format = \"squashfs\"");
}

template <typename Visitor>
void for_each_attribute(const Inode& inode, Visitor visit) {
  if (inode.opaque) {
    for (const std::string_view name : kOpaque) visit(name, std::string_view("y"));
  }
  if (!inode.xattrs) return;
  for (const Xattr& xattr : *inode.xattrs) visit(xattr.name, xattr.value);
}

std::size_t attribute_bytes(const Inode& inode) {
  std::size_t bytes = 0;
  for_each_attribute(inode, [&](std::string_view name, std::string_view value) {
    bytes += entry_bytes(name, value);
  });
  return bytes == 0 ? 0 : kAttributesHeader + bytes;
}

void append_attribute(std::string& record, std::string_view name, std::string_view value) {
  const bool is_user = name.starts_with(kUser);
  const std::size_t end = record.size() + entry_bytes(name, value);
  name.remove_prefix((is_user ? kUser : kTrusted).size());
  record += static_cast<char>(name.size());
  record += is_user ? kUserIndex : kTrustedIndex;
  record += static_cast<char>(value.size() & 0xffU);
  record += static_cast<char>(value.size() >> 8U);
  record.append(name).append(value).resize(end);
}

}  // namespace

std::size_t head_bytes(const Inode& inode) { return kInodeBytes + attribute_bytes(inode); }

Result<std::string> record_head(const Inode& inode, const RecordHead& head) {
  const std::size_t attributes = attribute_bytes(inode);
  const std::size_t count = attributes == 0 ? 0 : (attributes - kAttributesHeader) / 4 + 1;
  if (count > std::numeric_limits<std::uint16_t>::max())
    return too_large("more than 262,140 bytes of attributes of one file");
  const DiskInode disk{
      .format = static_cast<std::uint16_t>(1U | static_cast<unsigned>(head.layout) << 1U),
      .attributes = static_cast<std::uint16_t>(count),
      .mode = mode_of(inode),
      .unused = 0,
      .size = head.size,
      .position = head.position,
      .number = 0,
      .uid = 0,
      .gid = 0,
      .mtime = inode.mtime,
      .nanoseconds = 0,
      .links = head.links,
      .reserved = {}};
  std::string record(sizeof disk, '\0');
  std::memcpy(record.data(), &disk, sizeof disk);
  if (count == 0) return record;
  record.append(kAttributesHeader, '\0');
  bool fits = true;
  for_each_attribute(inode, [&](std::string_view name, std::string_view value) {
    fits = fits && value.size() <= std::numeric_limits<std::uint16_t>::max();
    append_attribute(record, name, value);
  });
  if (!fits) return too_large("an attribute of 65,536 bytes");
  return record;
}

Result<void> write_links(int output, std::uint64_t number, std::uint32_t links) {
  const auto place = static_cast<off_t>(number * kSlot + kLinksOffset);
  while (::pwrite(output, &links, sizeof links, place) != sizeof links) {
    if (errno != EINTR) return Error::from_errno(errno, "write the layer's image");
  }
  return {};
}

}  // namespace spc::erofs

namespace spc {

// --- erofs tables ---

namespace erofs {
namespace {

constexpr std::size_t kEntryBytes = 12;    ///< of a directory entry, without the name
constexpr std::size_t kIndexHeader = 16;   ///< size of the header of a compressed file's index
constexpr std::uint32_t kChunkFormat = 5;  ///< kBlockBytes are 2^5 blocks
constexpr std::uint64_t kRootRoom = kBlock - kRootNumber * kSlot;
/// types of index entries, one for 4 KiB of a compressed file
constexpr std::uint16_t kIsPlain = 0, kIsHead = 1, kIsInside = 2;
constexpr std::uint16_t kCountsBlocks = 1U << 11U;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

/// Sequential writer that fills gaps with zeros.
class ForwardWriter {
 public:
  ForwardWriter(int output, std::uint64_t begin) : output_(output), at_(begin) {}

  Result<void> write(std::uint64_t place, std::string_view bytes) {
    buffer_.append(place - position(), '\0').append(bytes);
    return buffer_.size() < kBufferBytes ? Result<void>() : flush();
  }
  /// Returns the smallest position at which the next data may be written.
  [[nodiscard]] std::uint64_t position() const { return at_ + buffer_.size(); }
  Result<void> flush() {
    for (std::string_view left = buffer_; !left.empty();) {
      const ssize_t count = ::pwrite(output_, left.data(), left.size(), static_cast<off_t>(at_));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error::from_errno(errno, "write the layer's image");
      left.remove_prefix(static_cast<std::size_t>(count));
      at_ += static_cast<std::uint64_t>(count);
    }
    buffer_.clear();
    return {};
  }

 private:
  static constexpr std::size_t kBufferBytes = 1 << 20;
  int output_;
  std::uint64_t at_;  ///< position of the buffer's start
  std::string buffer_;
};

Layout layout_of(const FileData& file) {
  const auto& units = file.blocks;
  if (std::ranges::any_of(units, [](auto unit) { return unit == 0; })) return Layout::chunks;
  const bool packed =
      std::ranges::any_of(units, [](auto unit) { return (unit & FileData::kAsIs) == 0; });
  return packed ? Layout::compressed : Layout::plain;
}

std::uint8_t entry_type(const Inode& inode) {
  // FT_DIR and so on, in the order of the variant's alternatives
  constexpr std::array<std::uint8_t, 5> kTypes{2, 1, 7, 5, 3};
  return kTypes[inode.content.index()];
}

class ErofsTables {
 public:
  ErofsTables(int output, std::uint64_t data_end, LayerCompression compression)
      : output_(output), compression_(compression), data_end_(data_end), at_(data_end) {}

  Result<void> write(Inode& root);

 private:
  struct Entry {
    std::string_view name;
    std::uint64_t number;
    std::uint8_t type;
  };

  void count(Inode& directory);
  Result<void> place(Inode& inode);
  Result<void> place_inside(Inode& directory);
  Result<void> emit(Inode& inode, std::uint64_t parent);
  Result<void> emit_inside(Inode& directory);
  Result<void> emit_file(const Inode& inode, const FileData& file);
  Result<void> emit_content(const Inode& inode, const std::string& content);
  Result<void> emit_index(std::uint64_t place, const FileData& file);
  Result<void> write_super_block();
  static std::uint64_t record_bytes(const Inode& inode);
  static std::uint64_t room_of(const Inode& inode) {
    return inode.reference == kRootNumber ? kRootRoom : kBlock;
  }
  static std::uint64_t content_bytes(const Inode& inode);
  static std::string listing(const Inode& directory, std::uint64_t parent);

  int output_;
  LayerCompression compression_;
  std::uint64_t data_end_;
  std::uint64_t at_;  ///< end of the assigned records
  /// number of blocks of directories and links that are too large for their records
  std::uint64_t run_blocks_ = 0;
  std::uint64_t next_run_ = 0;  ///< the next of these blocks to be written
  std::uint64_t inodes_ = 1;
  std::uint64_t size_ = 0;
  std::string root_record_;
  ForwardWriter* records_ = nullptr;
  ForwardWriter* runs_ = nullptr;
};

/// Counts the names of each inode, and all inodes.
void ErofsTables::count(Inode& directory) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (inode->links++ == 0) ++inodes_;
    if (std::holds_alternative<Directory>(inode->content)) count(*inode);
  }
}

/// Visits all names of a directory in byte order, as the kernel looks them up.
template <typename Visitor>
void for_each_entry(const Inode& directory, std::uint64_t own, std::uint64_t parent,
                    Visitor visit) {
  struct Fixed {
    std::string_view name;
    std::uint64_t number;
  };
  const std::array<Fixed, 2> fixed{{{".", own}, {"..", parent}}};
  std::size_t next = 0;
  for (const auto& [name, inode] : std::get<Directory>(directory.content)) {
    for (; next < fixed.size() && fixed[next].name < name; ++next)
      visit(fixed[next].name, fixed[next].number, std::uint8_t{2});
    visit(std::string_view(name), inode->reference, entry_type(*inode));
  }
  for (; next < fixed.size(); ++next) visit(fixed[next].name, fixed[next].number, std::uint8_t{2});
}

std::uint64_t ErofsTables::content_bytes(const Inode& inode) {
  if (const auto* link = std::get_if<Symlink>(&inode.content)) return link->target.size();
  std::uint64_t bytes = 0;
  for_each_entry(inode, 0, 0, [&](std::string_view name, std::uint64_t, std::uint8_t) {
    const std::uint64_t entry = kEntryBytes + name.size();
    if (bytes % kBlock + entry > kBlock) bytes = round_up(bytes, kBlock);
    bytes += entry;
  });
  return bytes;
}

/// Returns the size of a record that is still to be written.
std::uint64_t ErofsTables::record_bytes(const Inode& inode) {
  const std::uint64_t head = head_bytes(inode);
  if (const auto* file = std::get_if<FileData>(&inode.content)) {
    switch (layout_of(*file)) {
      case Layout::chunks: return head + sizeof(std::uint32_t) * file->blocks.size();
      case Layout::compressed: return round_up(head, 8) + kIndexHeader + 8 * blocks_of(file->size);
      default: return head;
    }
  }
  if (!std::holds_alternative<Directory>(inode.content) &&
      !std::holds_alternative<Symlink>(inode.content))
    return head;
  const std::uint64_t content = content_bytes(inode);
  return head + content <= room_of(inode) ? head + content : head;
}

Result<void> ErofsTables::place(Inode& inode) {
  const std::uint64_t size = record_bytes(inode);
  if (std::holds_alternative<Directory>(inode.content) ||
      std::holds_alternative<Symlink>(inode.content)) {
    if (size == head_bytes(inode)) run_blocks_ += blocks_of(content_bytes(inode));
  }
  if (inode.reference == kRootNumber) {
    if (size <= kRootRoom) return {};
    return Error(ErrorKind::refused,
                 "the attributes of the layer's root directory take more than 2 KB")
        .hint("store them in a file");
  }
  at_ = round_up(at_, kSlot);
  if (at_ % kBlock + size > kBlock) at_ = round_up(at_, kBlock);
  inode.reference = at_ / kSlot;
  at_ += size;
  return {};
}

/// Assigns positions. Directories precede their entries: with ascending numbers there can be no
/// cycle.
Result<void> ErofsTables::place_inside(Inode& directory) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (inode->reference == Inode::kNotWritten) SPC_TRY(place(*inode));
  }
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (std::holds_alternative<Directory>(inode->content)) SPC_TRY(place_inside(*inode));
  }
  return {};
}

std::string ErofsTables::listing(const Inode& directory, std::uint64_t parent) {
  std::vector<Entry> block;
  std::string listing;
  std::size_t used = 0;
  const auto end_block = [&] {
    std::size_t name_at = kEntryBytes * block.size();
    for (const Entry& entry : block) {
      append_number(listing, entry.number);
      append_number(listing, static_cast<std::uint16_t>(name_at));
      append_number(listing, std::uint16_t{entry.type});  // with a reserved byte
      name_at += entry.name.size();
    }
    for (const Entry& entry : block) listing += entry.name;
    block.clear();
    used = 0;
  };
  for_each_entry(directory, directory.reference, parent,
                 [&](std::string_view name, std::uint64_t number, std::uint8_t type) {
                   if (used + kEntryBytes + name.size() > kBlock) {
                     end_block();
                     listing.resize(round_up(listing.size(), kBlock));
                   }
                   block.push_back({name, number, type});
                   used += kEntryBytes + name.size();
                 });
  end_block();
  return listing;
}

Result<void> ErofsTables::emit_content(const Inode& inode, const std::string& content) {
  const bool fits = head_bytes(inode) + content.size() <= room_of(inode);
  std::uint32_t links = inode.links;
  if (const auto* entries = std::get_if<Directory>(&inode.content)) {
    links = 2;
    for (const auto& [name, child] : *entries)
      links += std::holds_alternative<Directory>(child->content) ? 1 : 0;
  }
  std::string record =
      SPC_TRY(record_head(inode, {.layout = fits ? Layout::inlined : Layout::plain,
                                  .size = content.size(),
                                  .position = fits ? 0 : static_cast<std::uint32_t>(next_run_),
                                  .links = links}));
  if (fits) {
    record += content;
  } else {
    SPC_TRY(runs_->write(next_run_ * kBlock, content));
    next_run_ += blocks_of(content.size());
  }
  if (inode.reference != kRootNumber) return records_->write(inode.reference * kSlot, record);
  root_record_ = std::move(record);
  return {};
}

/// Writes the index of a compressed file: the location of each 4 KiB.
Result<void> ErofsTables::emit_index(std::uint64_t place, const FileData& file) {
  std::string index;
  const auto entry = [&](std::uint16_t type, std::uint64_t offset, std::uint32_t where) {
    append_number(index, type);
    append_number(index, static_cast<std::uint16_t>(offset));
    append_number(index, where);
  };
  auto block = static_cast<std::uint32_t>(file.start / kBlock);
  std::uint64_t left = file.size;
  for (const std::uint32_t unit : file.blocks) {
    const std::uint64_t size = std::min<std::uint64_t>(left, kBlockBytes);
    const std::uint32_t stored = unit & ~FileData::kAsIs;
    if ((unit & FileData::kAsIs) != 0) {
      for (std::uint32_t i = 0; i < stored; ++i) entry(kIsPlain, 0, block + i);
    } else {
      const auto whole = static_cast<std::uint32_t>(size / kBlock);
      entry(kIsHead, 0, block);
      for (std::uint32_t i = 1; i < whole; ++i)
        entry(kIsInside, 0, (i == 1 ? kCountsBlocks | stored : i) | (whole - i) << 16U);
      if (size % kBlock != 0) entry(kIsPlain, size % kBlock, 0);  // the file's end
    }
    block += stored;
    left -= size;
    SPC_TRY(records_->write(place, index));
    place += index.size();
    index.clear();
  }
  return {};
}

Result<void> ErofsTables::emit_file(const Inode& inode, const FileData& file) {
  const Layout layout = layout_of(file);
  RecordHead head{.layout = layout,
                  .size = file.size,
                  .position = static_cast<std::uint32_t>(file.start / kBlock),
                  .links = inode.links};
  if (layout == Layout::chunks) head.position = kChunkFormat;
  if (layout == Layout::compressed) {
    head.position = 0;
    for (const std::uint32_t unit : file.blocks) head.position += unit & ~FileData::kAsIs;
  }
  std::string record = SPC_TRY(record_head(inode, head));
  if (layout == Layout::chunks) {
    auto block = static_cast<std::uint32_t>(file.start / kBlock);
    for (const std::uint32_t unit : file.blocks) {
      append_number(record, unit == 0 ? kNoBlock : block);
      block += unit & ~FileData::kAsIs;
    }
  } else if (layout == Layout::compressed) {
    record.resize(round_up(record.size(), 8));
    append_number(record, std::uint32_t{0});
    append_number(record, std::uint32_t{2});  // clusters of several blocks; lz4; 4 KiB per entry
    append_number(record, std::uint64_t{0});
  }
  const std::uint64_t place = inode.reference * kSlot;
  SPC_TRY(records_->write(place, record));
  return layout == Layout::compressed ? emit_index(place + record.size(), file) : Result<void>();
}

Result<void> ErofsTables::emit(Inode& inode, std::uint64_t parent) {
  if (std::holds_alternative<Directory>(inode.content))
    return emit_content(inode, listing(inode, parent));
  if (const auto* link = std::get_if<Symlink>(&inode.content))
    return emit_content(inode, link->target);
  if (const auto* file = std::get_if<FileData>(&inode.content)) return emit_file(inode, *file);
  return records_->write(inode.reference * kSlot,
                         SPC_TRY(record_head(inode, {.links = inode.links})));
}

/// Writes inodes in the order of place_inside(), which is that of the positions.
Result<void> ErofsTables::emit_inside(Inode& directory) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    const std::uint64_t place = inode->reference * kSlot;
    if (place >= records_->position()) {
      SPC_TRY(emit(*inode, directory.reference));
    } else if (place < data_end_ && inode->links > 1) {
      // The inode of a small file is already written with its content.
      SPC_TRY(write_links(output_, inode->reference, inode->links));
    }
  }
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (std::holds_alternative<Directory>(inode->content)) SPC_TRY(emit_inside(*inode));
  }
  return {};
}

Result<void> ErofsTables::write(Inode& root) {
  root.reference = kRootNumber;
  count(root);
  SPC_TRY(place(root));
  SPC_TRY(place_inside(root));
  const std::uint64_t records_end = round_up(at_, kBlock);
  next_run_ = records_end / kBlock;
  size_ = std::max(records_end + run_blocks_ * kBlock, 2 * kBlock);
  if (size_ / kBlock > kNoBlock) return Error(ErrorKind::no_space, "an image of more than 16 TiB");
  ForwardWriter records(output_, data_end_);
  ForwardWriter runs(output_, records_end);
  records_ = &records;
  runs_ = &runs;
  SPC_TRY(emit(root, kRootNumber));
  SPC_TRY(emit_inside(root));
  SPC_TRY(records.flush());
  SPC_TRY(runs.flush());
  if (::ftruncate(output_, static_cast<off_t>(size_)) != 0)
    return Error::from_errno(errno, "write the layer's image");
  return write_super_block();
}

/// Returns the CRC-32C (Castagnoli) as the kernel computes it: without the final inversion.
std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t sum = ~std::uint32_t{0};
  for (const char byte : bytes) {
    sum ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1U ^ ((sum & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return sum;
}

Result<void> ErofsTables::write_super_block() {
  SuperBlock super;
  super.inodes = inodes_;
  super.blocks = static_cast<std::uint32_t>(size_ / kBlock);
  if (compression_ != LayerCompression::none) {
    super.incompatible |= SuperBlock::kCompressed;
    super.algorithms = SuperBlock::kLz4;
    super.options_size = 14;
    super.window = 65535;
    super.most_blocks = kBlockBytes / kBlock;
  }
  std::string block(kBlock, '\0');
  std::memcpy(block.data() + kRootNumber * kSlot, root_record_.data(), root_record_.size());
  std::memcpy(block.data() + kSuperAt, &super, sizeof super);
  super.checksum = checksum(std::string_view(block).substr(kSuperAt));
  std::memcpy(block.data() + kSuperAt, &super, sizeof super);
  ForwardWriter first(output_, 0);
  SPC_TRY(first.write(0, block));
  return first.flush();
}

}  // namespace
}  // namespace erofs

Result<void> write_erofs_tables(int output, std::uint64_t data_end, LayerCompression compression,
                                Inode& root) {
  return erofs::ErofsTables(output, data_end, compression).write(root);
}

}  // namespace spc
