#include "image/verify/erofs/used.hpp"

#include <algorithm>

namespace spc::verify::erofs {

void Used::add(Extents& extents, Extent extent) {
  if (!extents.empty() && extents.back().end == extent.begin) {
    extents.back().end = extent.end;
  } else {
    extents.push_back(extent);
  }
}

/// Those that overlap are found at once, before anything behind the inode is read: else it could be
/// read again and again.
Result<void> Used::record(const Inode& inode, std::uint64_t end) {
  if (end > blocks_ * kBlock) return refused("it extends beyond the end of the image");
  SPC_TRY(inode.check_place(end));
  if (inode.begin() < last_end_) return refused("two inodes overlap");
  last_end_ = pieces(end, kSlot) * kSlot;  // nothing else can begin before
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

}  // namespace spc::verify::erofs
