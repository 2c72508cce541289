#include "image/verify/data_area.hpp"

#include <algorithm>

namespace spc::verify {
namespace {

constexpr std::uint32_t kStoredAsIs = 1U << 24U;
constexpr std::uint32_t kNoFragment = 0xffffffff;

}  // namespace

DataArea::DataArea(LayerBytes& layer, const Layout& layout)
    : layer_(layer), layout_(layout), blocks_(layout.codec) {}

/// Of a compressed block; what its file wants where lz4 leaves it open.
Result<std::size_t> DataArea::unpacked_size(std::uint64_t place, std::uint32_t size,
                                            std::optional<std::size_t> wanted) {
  if (layout_.codec == Codec::zstd) return check_frame(layer_, place, size);
  if (wanted) return *wanted;
  stored_.resize(size);
  unpacked_.resize(kBlockBytes);
  SPC_TRY(layer_.read(place, stored_));
  return blocks_.unpack(stored_, unpacked_);
}

/// Checks one block and gives its size unpacked. `place` must not be before the data. `wanted`: by
/// its file.
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

}  // namespace spc::verify
