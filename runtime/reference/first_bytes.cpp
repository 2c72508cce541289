// Headers of image files: the squashfs super block, and the object table of a SIF.

#include "reference/first_bytes.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {

// --- squashfs super block ---

namespace {

constexpr std::uint32_t kMagicSwapped = 0x68737173;  // "sqsh": big-endian, only up to version 3
constexpr std::uint32_t kSmallestBlock = 4096;
constexpr std::uint32_t kLargestBlock = 1 << 20;

static_assert(std::endian::native == std::endian::little,
              "squashfs is little-endian, and so are all machines we know");

Error damaged(const std::string& what) {
  return Error(ErrorKind::corrupt, "the squashfs is corrupt: " + what);
}

/// Returns whether a table of `count` entries, located by a list of its metadata blocks, can start
/// at `list`.
bool places_fit(std::uint64_t list, std::uint64_t count, std::uint64_t entry_bytes,
                std::uint64_t end) {
  const std::uint64_t blocks =
      (count * entry_bytes + SquashfsSuper::kTableBlockBytes - 1) / SquashfsSuper::kTableBlockBytes;
  return list >= sizeof(SquashfsSuper) && list <= end &&
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
  return magic == SquashfsSuper::kMagic || magic == kMagicSwapped;
}

Result<SquashfsSuper> parse_squashfs_super(std::span<const std::byte> head,
                                           std::uint64_t available) {
  if (!looks_like_squashfs(head)) return Error(ErrorKind::corrupt, "it is not a squashfs");
  if (head.size() < sizeof(SquashfsSuper) || available < sizeof(SquashfsSuper)) {
    return Error(ErrorKind::corrupt, "the squashfs is truncated: it ends within its super block");
  }

  // Refuse other versions before any other field is read.
  const auto super = number_at<SquashfsSuper>(head, 0);
  const bool swapped = super.magic == kMagicSwapped;
  if (swapped || super.major != 4 || super.minor != 0) {
    const std::string version =
        swapped ? "3 or older" : std::to_string(super.major) + "." + std::to_string(super.minor);
    return Error(
               ErrorKind::invalid,
               formatted("it is a squashfs of version {}, only version 4.0 is supported", version))
        .hint("recreate it with squashfs-tools 4.0 or newer");
  }

  // Check the fields of the super block itself.
  if (compressor_name(super.compressor) == nullptr) {
    return Error(
        ErrorKind::invalid,
        formatted("the squashfs is compressed in an unknown way (number {})", super.compressor));
  }
  if (super.block_size < kSmallestBlock || super.block_size > kLargestBlock ||
      !std::has_single_bit(super.block_size) ||
      super.block_bits != std::countr_zero(super.block_size)) {
    return damaged("block size " + std::to_string(super.block_size));
  }
  if (super.bytes_used < sizeof super) return damaged("it is smaller than its super block");
  if (super.bytes_used > available) {
    return Error(ErrorKind::corrupt,
                 formatted("the squashfs is truncated: {} of {} bytes are there", available,
                           super.bytes_used))
        .hint("copy it again");
  }

  // Check that each table begins within the image.
  const std::uint64_t end = super.bytes_used;
  if (super.inode_table < sizeof super || super.inode_table >= super.directory_table ||
      super.directory_table >= end) {
    return damaged("inode or directory table out of bounds");
  }
  if (super.root >> 16U >= super.directory_table - super.inode_table ||
      (super.root & 0xffffU) >= SquashfsSuper::kTableBlockBytes) {
    return damaged("root directory out of bounds");
  }
  if (super.fragment_count != 0 &&
      !places_fit(super.fragment_table, super.fragment_count, 16, end)) {
    return damaged("fragment table out of bounds");
  }
  if (super.owners == 0 || !places_fit(super.owner_table, super.owners, 4, end)) {
    return damaged("ID table out of bounds");
  }
  if (super.xattr_table != SquashfsSuper::kNone &&
      (super.xattr_table < sizeof super || super.xattr_table > end - 16)) {
    return damaged("extended attribute table out of bounds");
  }
  return super;
}

// --- SIF ---

namespace {

constexpr std::string_view kSifMagic{"SIF_MAGIC\0", 10};
constexpr std::size_t kMagicAt = 32;
constexpr std::size_t kEntryBytes = 585;     // bytes; Go's encoding/binary adds no padding
constexpr std::uint64_t kMaxEntries = 1024;  // the format's tools create 48

enum class DataType : std::int32_t { partition = 0x4004, oci_root = 0x400a };
enum class FileSystem : std::int32_t { squashfs = 1, ext3 = 2, encrypted_squashfs = 5 };
enum class Part : std::int32_t { system = 1, primary_system = 2, overlay = 4 };

/// Returns the architecture that the two digits at `offset` denote.
std::string architecture_at(std::span<const std::byte> bytes, std::size_t offset) {
  constexpr std::array kNames{"unknown",  "386",     "amd64",  "arm",    "arm64",
                              "ppc64",    "ppc64le", "mips",   "mipsle", "mips64",
                              "mips64le", "s390x",   "riscv64"};
  const auto digit = [&](std::size_t i) { return static_cast<unsigned>(bytes[offset + i]) - '0'; };
  const unsigned code = digit(0) > 9 || digit(1) > 9 ? 0 : digit(0) * 10 + digit(1);
  return code < kNames.size() ? kNames[code] : kNames[0];
}

struct Entry {
  DataType type{};
  bool used = false;
  std::int64_t offset = 0;
  std::int64_t size = 0;
  FileSystem file_system{};  // members from here on: partitions only
  Part part{};
  std::string architecture;

  explicit Entry(std::span<const std::byte> bytes)
      : type(number_at<DataType>(bytes, 0)),
        used(bytes[4] != std::byte{0}),
        offset(number_at<std::int64_t>(bytes, 17)),
        size(number_at<std::int64_t>(bytes, 25)),
        file_system(number_at<FileSystem>(bytes, 201)),
        part(number_at<Part>(bytes, 205)),
        architecture(architecture_at(bytes, 209)) {}
};

Error unusable(const std::string& why, std::string_view advice) {
  return Error(ErrorKind::invalid, why).hint(advice);
}

Result<SifPartition> check(const Entry& root, std::uint64_t file_size,
                           std::string_view architecture) {
  if (root.file_system == FileSystem::encrypted_squashfs) {
    return unusable("the SIF file's root file system is encrypted",
                    "decrypt it where the key is available: apptainer build --sandbox");
  }
  if (root.file_system == FileSystem::ext3) {
    return unusable("the SIF file's root file system is ext3, which is not supported",
                    "rebuild it: apptainer build NEW.sif OLD.sif");
  }
  if (root.file_system != FileSystem::squashfs)
    return unusable("the SIF file's root file system is not a squashfs", "rebuild it");
  if (root.architecture != "unknown" && root.architecture != architecture) {
    return Error(ErrorKind::invalid, formatted("the SIF file is for {}, this node is {}",
                                               root.architecture, architecture))
        .hint(formatted("build it for {}, on a machine of that architecture", architecture));
  }
  const auto offset = static_cast<std::uint64_t>(root.offset);
  const auto size = static_cast<std::uint64_t>(root.size);
  if (root.offset < 0 || root.size <= 0 || offset > file_size || size > file_size - offset) {
    return Error(
               ErrorKind::corrupt,
               "the SIF file is truncated: its root file system extends beyond the end of the file")
        .hint("copy it again");
  }
  return SifPartition{.offset = offset, .size = size};
}

}  // namespace

bool looks_like_sif(std::span<const std::byte> head) {
  return head.size() >= kMagicAt + kSifMagic.size() &&
         std::memcmp(head.data() + kMagicAt, kSifMagic.data(), kSifMagic.size()) == 0;
}

Result<SifTable> parse_sif_header(std::span<const std::byte> head, std::uint64_t file_size) {
  if (!looks_like_sif(head)) return Error(ErrorKind::corrupt, "it is not a SIF file");
  if (head.size() < SifTable::kHeaderBytes)
    return Error(ErrorKind::corrupt, "the SIF file is truncated: it ends within its header");
  const std::string version(reinterpret_cast<const char*>(head.data()) + 42, 2);
  if (version != "01")
    return Error(
        ErrorKind::invalid,
        formatted("it is a SIF file of version {}, only 01 is supported", in_quotes(version)));
  const auto entries = number_at<std::int64_t>(head, 88);
  const auto offset = number_at<std::int64_t>(head, 96);
  if (entries <= 0 || static_cast<std::uint64_t>(entries) > kMaxEntries ||
      offset < static_cast<std::int64_t>(SifTable::kHeaderBytes)) {
    return Error(ErrorKind::corrupt, "the SIF file is corrupt: invalid header");
  }
  const SifTable table{.offset = static_cast<std::uint64_t>(offset),
                       .size = static_cast<std::size_t>(entries) * kEntryBytes};
  if (table.offset > file_size || table.size > file_size - table.offset) {
    return Error(ErrorKind::corrupt,
                 "the SIF file is truncated: it ends within its table of contents")
        .hint("copy it again");
  }
  return table;
}

Result<SifPartition> find_sif_root(std::span<const std::byte> table, std::uint64_t file_size,
                                   std::string_view architecture) {
  bool has_overlay = false;
  bool has_oci = false;
  const Part wanted[] = {Part::primary_system, Part::system};
  for (const Part part : wanted) {
    for (std::size_t at = 0; at + kEntryBytes <= table.size(); at += kEntryBytes) {
      const Entry entry(table.subspan(at, kEntryBytes));
      if (!entry.used) continue;
      has_oci |= entry.type == DataType::oci_root;
      if (entry.type != DataType::partition) continue;
      has_overlay |= entry.part == Part::overlay;
      if (entry.part == part) return check(entry, file_size, architecture);
    }
  }
  if (has_oci)
    return unusable("OCI-SIF files are not supported",
                    "convert it to an OCI archive: singularity pull --oci, skopeo");
  if (has_overlay)
    return unusable("the SIF file contains only an overlay", "use the image it belongs to");
  return Error(ErrorKind::invalid, "the SIF file contains no root file system");
}

}  // namespace spc
