#include "image/verify/erofs/content.hpp"

#include <algorithm>

namespace spc::verify::erofs {
namespace {

constexpr std::uint64_t kUnit = std::uint64_t{128}
                                << 10U;   ///< what is a chunk, or compressed as a whole
constexpr std::uint32_t kUnitChunks = 5;  ///< chunks of that size, with a list of block numbers
constexpr std::uint64_t kChunkEntry = 4;
constexpr std::uint32_t kHole = 0xffffffff;

constexpr std::uint64_t kIndexHead = 16;
constexpr std::uint64_t kIndexEntry = 8;
constexpr std::uint64_t kLargeClusters =
    std::uint64_t{2} << 32U;  ///< of the head: lz4, in clusters of several blocks

/// An entry of the index, one for each block of the file's content.
enum ClusterType : std::uint16_t { kStoredAsIs = 0, kHead = 1, kFollower = 2 };
constexpr unsigned kClusterSize = 0x800;  ///< the number is that of the cluster's blocks

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

/// Blocks of a file come one behind the other.
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

/// The head says where the cluster is, the next one how long it is; one that is shorter than a
/// block marks the end of the file.
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

}  // namespace spc::verify::erofs
