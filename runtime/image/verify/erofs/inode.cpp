#include "image/verify/erofs/inode.hpp"

namespace spc::verify::erofs {
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

}  // namespace spc::verify::erofs
