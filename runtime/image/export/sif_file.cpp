#include "image/export/sif_file.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "base/file.hpp"
#include "base/sha256.hpp"
#include "image/export/archive.hpp"
#include "image/reference/request.hpp"

// As github.com/apptainer/sif writes version 1, little-endian without gaps. image/reference/sif.cpp
// reads it.

namespace spc {
namespace {

constexpr std::size_t kHeaderBytes = 128;
constexpr std::size_t kEntryBytes = 585;
constexpr std::size_t kEntries = 48;  // its tools make so many
constexpr std::uint64_t kTableAt = 4096;
constexpr std::uint64_t kMove = 1 << 20;
constexpr std::uint64_t kPage = 4096;  // where data begins, so that it can be mounted in place
constexpr std::uint32_t kGroup = 0xf0000001;
constexpr std::int32_t kPartition = 0x4004, kGenericJson = 0x4006;
constexpr std::int32_t kSquashfs = 1, kPrimarySystem = 2;

constexpr std::uint64_t on_page(std::uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

/// Numbers and texts one after the other.
class Packed {
 public:
  template <typename Number>
  Packed& add(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  Packed& add(std::string text, std::size_t size) {
    text.resize(size);
    bytes_ += text;
    return *this;
  }
  [[nodiscard]] std::string filled_up_to(std::size_t size) const {
    std::string bytes = bytes_;
    bytes.resize(size);
    return bytes;
  }

 private:
  std::string bytes_;
};

std::string architecture_code() {
  constexpr std::array<std::pair<const char*, const char*>, 6> kCodes{{{"386", "01"},
                                                                       {"amd64", "02"},
                                                                       {"arm", "03"},
                                                                       {"arm64", "04"},
                                                                       {"ppc64le", "06"},
                                                                       {"s390x", "10"}}};
  const std::string ours = Platform::host().architecture;
  const auto found = std::find_if(kCodes.begin(), kCodes.end(),
                                  [&](const auto& one) { return ours == one.first; });
  return found == kCodes.end() ? "00" : found->second;
}

struct Part {
  std::int32_t type;
  std::string name;
  std::uint64_t offset, size;
};

std::string entry_of(const Part& part, std::uint32_t id, std::int64_t date) {
  Packed entry;
  entry.add(part.type).add(char{1}).add(id).add(kGroup).add(std::uint32_t{0});
  entry.add(part.offset)
      .add(part.size)
      .add(part.size)
      .add(date)
      .add(date)
      .add(std::int64_t{0})
      .add(std::int64_t{0});
  entry.add(part.name, 128);
  if (part.type == kPartition) entry.add(kSquashfs).add(kPrimarySystem).add(architecture_code(), 3);
  return entry.filled_up_to(kEntryBytes);
}

/// A random number to look at, but the same for the same content.
std::string number_of(const Digest& content) {
  std::string number(reinterpret_cast<const char*>(content.bytes.data()), 16);
  number[6] = static_cast<char>((number[6] & 0x0f) | 0x40);
  number[8] = static_cast<char>((number[8] & 0x3f) | 0x80);
  return number;
}

std::string header_of(const Digest& content, std::uint64_t used, std::uint64_t data_bytes,
                      std::uint64_t data_at, std::int64_t date) {
  Packed header;
  header.add("#!/usr/bin/env run-singularity\n", 32)
      .add("SIF_MAGIC", 10)
      .add("01", 3)
      .add(architecture_code(), 3);
  header.add(number_of(content), 16).add(date).add(date);
  header.add(std::uint64_t{kEntries} - used)
      .add(std::uint64_t{kEntries})
      .add(kTableAt)
      .add(std::uint64_t{kEntries * kEntryBytes});
  header.add(data_at).add(data_bytes);
  return header.filled_up_to(kHeaderBytes);
}

Result<void> write_at(int file, std::uint64_t at, const std::string& bytes) {
  if (::lseek(file, static_cast<off_t>(at), SEEK_SET) < 0)
    return Error::from_errno(errno, "write the SIF file");
  return write_all(file, bytes);
}

/// Bytes of `file` from `at` on, as many as `into` takes.
Result<void> read_at(int file, std::uint64_t at, std::span<char> into) {
  while (!into.empty()) {
    const ssize_t got = ::pread(file, into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error::from_errno(got < 0 ? errno : EIO, "read the squashfs");
    into = into.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

/// What is at both ends of the content: its first data, and the tables, which have every name, size
/// and date.
Result<Digest> ends_of(int file, std::uint64_t size) {
  std::string both(static_cast<std::size_t>(std::min<std::uint64_t>(size, kMove)), '\0');
  SPC_TRY(read_at(file, 0, both));
  Sha256 hash;
  hash.update(std::as_bytes(std::span(both)));
  SPC_TRY(read_at(file, size - both.size(), both));
  hash.update(std::as_bytes(std::span(both)));
  return hash.finish();
}

/// The content moves `by` bytes, whole pages, up: without being copied where the file system can do
/// that.
Result<void> move_up(int file, std::uint64_t size, std::uint64_t by) {
  if (::fallocate(file, FALLOC_FL_INSERT_RANGE, 0, static_cast<off_t>(by)) == 0) return {};
  std::string piece;
  for (std::uint64_t end = size; end > 0; end -= piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(end, kMove)));
    SPC_TRY(read_at(file, end - piece.size(), piece));
    SPC_TRY(write_at(file, end - piece.size() + by, piece));
  }
  return {};
}

}  // namespace

Result<void> make_sif(int file, const std::string& config) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Error::from_errno(errno, "look at the squashfs");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::int64_t date = std::max<std::int64_t>(latest_time().value_or(0), 0);
  const std::uint64_t data_at = on_page(kTableAt + kEntries * kEntryBytes);
  const std::uint64_t root_at = data_at + on_page(config.size());
  const Digest ends = SPC_TRY(ends_of(file, size));
  std::vector<Part> parts;
  if (!config.empty()) parts.push_back({kGenericJson, "oci-config.json", data_at, config.size()});
  parts.push_back({kPartition, "squashfs.img", root_at, size});
  std::string table;
  for (const Part& part : parts)
    table += entry_of(part, static_cast<std::uint32_t>(&part - parts.data()) + 1, date);

  SPC_TRY(move_up(file, size, root_at));
  std::string front = header_of(ends, parts.size(), root_at + size - data_at, data_at, date);
  front.resize(kTableAt);
  front += table;
  front.resize(data_at);
  front += config;
  front.resize(root_at);
  return write_at(file, 0, front);
}

}  // namespace spc
