#include "image/layer/erofs_record.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>

namespace spc::erofs {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kAttributesHeader = 12;
constexpr std::size_t kLinksOffset = 44;  ///< in an inode
constexpr std::string_view kUser = "user.", kTrusted = "trusted.";
constexpr char kUserIndex = 1, kTrustedIndex = 4;

/// The kernel reads the first when root mounts the overlay, the second with the option userxattr.
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
  return static_cast<std::uint16_t>(kTypes[inode.content.index()] |
                                    inode.mode);  // the order of the alternatives
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
