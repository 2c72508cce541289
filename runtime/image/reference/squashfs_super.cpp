#include "image/reference/squashfs_super.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::uint32_t kMagic = 0x73717368;  // "hsqs"
constexpr std::uint32_t kMagicSwapped =
    0x68737173;  // "sqsh": big-endian, which ended with version 3
constexpr std::uint32_t kSmallestBlock = 4096;
constexpr std::uint32_t kLargestBlock = 1 << 20;
constexpr std::uint64_t kMetadataBytes = 8192;

static_assert(std::endian::native == std::endian::little,
              "squashfs is little-endian, and so are all machines we know");

template <typename Number>
Number number_at(std::span<const std::byte> bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

Error damaged(const std::string& what) {
  return Error(ErrorKind::corrupt, "the squashfs is corrupt: " + what);
}

/// Whether a table of `count` entries, found through a list of its metadata blocks, can begin here.
bool places_fit(std::uint64_t list, std::uint64_t count, std::uint64_t entry_bytes,
                std::uint64_t end) {
  const std::uint64_t blocks = (count * entry_bytes + kMetadataBytes - 1) / kMetadataBytes;
  return list >= SquashfsSuper::kBytes && list <= end &&
         blocks <= (end - list) / sizeof(std::uint64_t);
}

}  // namespace

const char* compressor_name(std::uint16_t compressor) {
  constexpr std::array kNames{"gzip", "lzma", "lzo", "xz", "lz4", "zstd"};
  return compressor >= 1 && compressor <= kNames.size() ? kNames[compressor - 1U] : nullptr;
}

bool looks_like_squashfs(std::span<const std::byte> head) {
  if (head.size() < sizeof(std::uint32_t)) return false;
  const auto magic = number_at<std::uint32_t>(head, 0);
  return magic == kMagic || magic == kMagicSwapped;
}

Result<SquashfsSuper> parse_squashfs_super(std::span<const std::byte> head,
                                           std::uint64_t available) {
  if (!looks_like_squashfs(head)) return Error(ErrorKind::corrupt, "it is not a squashfs");
  if (head.size() < SquashfsSuper::kBytes || available < SquashfsSuper::kBytes) {
    return Error(ErrorKind::corrupt, "the squashfs is truncated: it ends within its super block");
  }
  const auto major = number_at<std::uint16_t>(head, 28);
  const auto minor = number_at<std::uint16_t>(head, 30);
  const bool swapped = number_at<std::uint32_t>(head, 0) == kMagicSwapped;
  if (swapped || major != 4 || minor != 0) {
    const std::string version =
        swapped ? "3 or older" : std::to_string(major) + "." + std::to_string(minor);
    return Error(
               ErrorKind::invalid,
               formatted("it is a squashfs of version {}, only version 4.0 is supported", version))
        .hint("recreate it with squashfs-tools 4.0 or newer");
  }

  SquashfsSuper super{.inode_count = number_at<std::uint32_t>(head, 4),
                      .block_size = number_at<std::uint32_t>(head, 12),
                      .fragment_count = number_at<std::uint32_t>(head, 16),
                      .compressor = number_at<std::uint16_t>(head, 20),
                      .root = number_at<std::uint64_t>(head, 32),
                      .bytes_used = number_at<std::uint64_t>(head, 40),
                      .inode_table = number_at<std::uint64_t>(head, 64),
                      .directory_table = number_at<std::uint64_t>(head, 72),
                      .fragment_places = number_at<std::uint64_t>(head, 80),
                      .xattr_sets = number_at<std::uint64_t>(head, 56)};
  if (compressor_name(super.compressor) == nullptr) {
    return Error(
        ErrorKind::invalid,
        formatted("the squashfs is compressed in an unknown way (number {})", super.compressor));
  }
  if (super.block_size < kSmallestBlock || super.block_size > kLargestBlock ||
      !std::has_single_bit(super.block_size) ||
      number_at<std::uint16_t>(head, 22) != std::countr_zero(super.block_size)) {
    return damaged("block size " + std::to_string(super.block_size));
  }
  if (super.bytes_used < SquashfsSuper::kBytes)
    return damaged("it is smaller than its super block");
  if (super.bytes_used > available) {
    return Error(ErrorKind::corrupt,
                 formatted("the squashfs is truncated: {} of {} bytes are there", available,
                           super.bytes_used))
        .hint("copy it again");
  }
  const std::uint64_t end = super.bytes_used;
  if (super.inode_table < SquashfsSuper::kBytes || super.inode_table >= super.directory_table ||
      super.directory_table >= end) {
    return damaged("inode or directory table out of bounds");
  }
  if (super.root >> 16U >= super.directory_table - super.inode_table ||
      (super.root & 0xffffU) >= kMetadataBytes) {
    return damaged("root directory out of bounds");
  }
  if (super.fragment_count == 0) super.fragment_places = SquashfsSuper::kNone;
  if (super.fragment_count != 0 &&
      !places_fit(super.fragment_places, super.fragment_count, 16, end)) {
    return damaged("fragment table out of bounds");
  }
  const auto owners = number_at<std::uint16_t>(head, 26);
  if (owners == 0 || !places_fit(number_at<std::uint64_t>(head, 48), owners, 4, end)) {
    return damaged("ID table out of bounds");
  }
  if (super.xattr_sets != SquashfsSuper::kNone &&
      (super.xattr_sets < SquashfsSuper::kBytes || super.xattr_sets > end - 16)) {
    return damaged("extended attribute table out of bounds");
  }
  return super;
}

}  // namespace spc
