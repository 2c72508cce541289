#include "image/layer/erofs_tables.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "image/layer/data_writer.hpp"
#include "image/layer/erofs_record.hpp"

namespace spc {
namespace erofs {
namespace {

constexpr std::size_t kEntryBytes = 12;    ///< of a directory, without the name
constexpr std::size_t kIndexHeader = 16;   ///< in front of the index of a compressed file
constexpr std::uint32_t kChunkFormat = 5;  ///< kBlockBytes are 2^5 blocks
constexpr std::uint64_t kRootRoom = kBlock - kRootNumber * kSlot;
constexpr std::uint16_t kIsPlain = 0, kIsHead = 1,
                        kIsInside = 2;  ///< of 4 KiB of a compressed file
constexpr std::uint16_t kCountsBlocks = 1U << 11U;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

template <typename Number>
void append(std::string& to, Number number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Writes forward, with zeros in what is left out.
class ForwardWriter {
 public:
  ForwardWriter(int output, std::uint64_t begin) : output_(output), at_(begin) {}

  Result<void> write(std::uint64_t place, std::string_view bytes) {
    buffer_.append(place - position(), '\0').append(bytes);
    return buffer_.size() < kBufferBytes ? Result<void>() : flush();
  }
  /// Where what comes next may lie.
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
  std::uint64_t at_;  ///< where the buffer begins
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
  constexpr std::array<std::uint8_t, 5> kTypes{
      2, 1, 7, 5, 3};  // FT_DIR and so on, in the order of the alternatives
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
  std::uint64_t at_;              ///< end of the placed records
  std::uint64_t run_blocks_ = 0;  ///< of directories and links too large for their records
  std::uint64_t next_run_ = 0;    ///< block of the next of these that is written
  std::uint64_t inodes_ = 1;
  std::uint64_t size_ = 0;
  std::string root_record_;
  ForwardWriter* records_ = nullptr;
  ForwardWriter* runs_ = nullptr;
};

/// How many names each inode has, and how many inodes there are.
void ErofsTables::count(Inode& directory) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (inode->links++ == 0) ++inodes_;
    if (std::holds_alternative<Directory>(inode->content)) count(*inode);
  }
}

/// All names of a directory in the order of their bytes, as the kernel looks them up.
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

/// Of what is to be written yet.
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

/// Directories come before what is in them: with ascending numbers there can be no cycle.
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
      append(listing, entry.number);
      append(listing, static_cast<std::uint16_t>(name_at));
      append(listing, std::uint16_t{entry.type});  // and a reserved byte
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

/// Where each 4 KiB of a compressed file are.
Result<void> ErofsTables::emit_index(std::uint64_t place, const FileData& file) {
  std::string index;
  const auto entry = [&](std::uint16_t type, std::uint64_t offset, std::uint32_t where) {
    append(index, type);
    append(index, static_cast<std::uint16_t>(offset));
    append(index, where);
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
      if (size % kBlock != 0) entry(kIsPlain, size % kBlock, 0);  // ends there
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
      append(record, unit == 0 ? kNoBlock : block);
      block += unit & ~FileData::kAsIs;
    }
  } else if (layout == Layout::compressed) {
    record.resize(round_up(record.size(), 8));
    append(record, std::uint32_t{0});
    append(record, std::uint32_t{2});  // clusters of several blocks; lz4; 4 KiB an entry
    append(record, std::uint64_t{0});
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

/// In the order of place_inside(), which is that of the positions.
Result<void> ErofsTables::emit_inside(Inode& directory) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    const std::uint64_t place = inode->reference * kSlot;
    if (place >= records_->position()) {
      SPC_TRY(emit(*inode, directory.reference));
    } else if (place < data_end_ && inode->links > 1) {
      SPC_TRY(write_links(output_, inode->reference,
                          inode->links));  // of a small file, which has been written
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

/// CRC-32C (Castagnoli), as the kernel computes it: without the final inversion.
std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t sum = ~std::uint32_t{0};
  for (const char byte : bytes) {
    sum ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1U ^ ((sum & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return sum;
}

Result<void> ErofsTables::write_super_block() {
  constexpr std::size_t kSuperOffset = 1024;
  struct Super {
    std::uint32_t magic = 0xe0f5e1e2, checksum = 0,
                  compatible = 3;  // has a checksum; dates are of content
    std::uint8_t block_bits = 12, slots = 0;
    std::uint16_t root = kRootNumber;
    std::uint64_t inodes = 0, date = 0;
    std::uint32_t nanoseconds = 0, blocks = 0, first_record = 0, shared_attributes = 0;
    char uuid[16] = {}, name[16] = {};
    std::uint32_t incompatible = 4;  // chunks
    std::uint16_t algorithms = 0;
    char unused[42] = {};
    std::uint16_t options_size = 0, window = 0, most_blocks = 0;  // of lz4
    char unused_options[10] = {};
  } super;
  static_assert(sizeof(Super) == 144);
  super.inodes = inodes_;
  super.blocks = static_cast<std::uint32_t>(size_ / kBlock);
  if (compression_ != LayerCompression::none) {
    super.incompatible = 7;  // padding in front, clusters of several blocks, options
    super.algorithms = 1;    // lz4
    super.options_size = 14;
    super.window = 65535;
    super.most_blocks = kBlockBytes / kBlock;
  }
  std::string block(kBlock, '\0');
  std::memcpy(block.data() + kRootNumber * kSlot, root_record_.data(), root_record_.size());
  std::memcpy(block.data() + kSuperOffset, &super, sizeof super);
  super.checksum = checksum(std::string_view(block).substr(kSuperOffset));
  std::memcpy(block.data() + kSuperOffset, &super, sizeof super);
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
