#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc::test {

/// Read and write little-endian numbers.
template <typename Number>
Number get(std::string_view bytes, std::size_t at) {
  Number number = 0;
  std::memcpy(&number, bytes.substr(at, sizeof number).data(), sizeof number);
  return number;
}
template <typename Number>
void put(std::string& bytes, std::size_t at, Number number) {
  bytes.replace(at, sizeof number,
                std::string_view(reinterpret_cast<const char*>(&number), sizeof number));
}

/// Offsets in the super block.
enum SuperField : std::size_t {
  kMagic = 0,
  kInodes = 4,
  kDate = 8,
  kBlockSize = 12,
  kFragments = 16,
  kCompressor = 20,
  kBlockLog = 22,
  kFlags = 24,
  kOwners = 26,
  kMajor = 28,
  kMinor = 30,
  kRoot = 32,
  kUsed = 40,
  kOwnerTable = 48,
  kAttributeTable = 56,
  kInodeTable = 64,
  kDirectoryTable = 72,
  kFragmentTable = 80,
  kExportTable = 88,
};

/// A layer image taken apart, to be changed and reassembled. The tables of inodes and listings must
/// have one metadata block each, so that references stay valid for any block size. Throws
/// std::logic_error for other images.
struct Parts {
  std::string super;
  std::string options;
  std::string data;
  std::string inodes, directories, fragments, owners, pairs, sets;  ///< unpacked
  std::uint32_t set_count = 0;

  explicit Parts(std::string_view image);

  /// Reassembles the image with valid offsets. `pack` makes a metadata block with its header, at
  /// most 8 KiB. By default it works as the writer does.
  using Pack = std::function<std::string(std::string_view)>;
  [[nodiscard]] std::string image(const Pack& pack = {}) const;
  static std::string pack_block(std::string_view content);  ///< with zstd

  /// Returns each inode's offset in `inodes`, by number.
  [[nodiscard]] std::map<std::uint32_t, std::size_t> inode_offsets() const;
  /// Returns the offset of the first entry for `name` in `directories`.
  [[nodiscard]] std::size_t entry_offset(std::string_view name) const;
  /// Returns its inode's offset. The root is "".
  [[nodiscard]] std::size_t inode_offset(std::string_view name) const;
};

/// Returns the verifier's refusal, "" if it accepts the image.
std::string refusal(std::string_view image);

}  // namespace spc::test
