#include "image/reference/sif.hpp"

#include <array>
#include <cstring>
#include <string>

#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::string_view kSifMagic{"SIF_MAGIC\0", 10};
constexpr std::size_t kMagicAt = 32;
constexpr std::size_t kEntryBytes = 585;     // Go's encoding/binary leaves no gaps
constexpr std::uint64_t kMaxEntries = 1024;  // the format's tools make 48

enum class DataType : std::int32_t { partition = 0x4004, oci_root = 0x400a };
enum class FileSystem : std::int32_t { squashfs = 1, ext3 = 2, encrypted_squashfs = 5 };
enum class Part : std::int32_t { system = 1, primary_system = 2, overlay = 4 };

template <typename Number>
Number sif_number_at(std::span<const std::byte> bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

/// The two digits that stand for an architecture.
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
  FileSystem file_system{};  // the rest: partitions only
  Part part{};
  std::string architecture;

  explicit Entry(std::span<const std::byte> bytes)
      : type(sif_number_at<DataType>(bytes, 0)),
        used(bytes[4] != std::byte{0}),
        offset(sif_number_at<std::int64_t>(bytes, 17)),
        size(sif_number_at<std::int64_t>(bytes, 25)),
        file_system(sif_number_at<FileSystem>(bytes, 201)),
        part(sif_number_at<Part>(bytes, 205)),
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
  const auto entries = sif_number_at<std::int64_t>(head, 88);
  const auto offset = sif_number_at<std::int64_t>(head, 96);
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
