#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace spc::test {

/// Little-endian numbers in bytes.
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

/// One of our images taken apart, to be changed and put together again. Only for images whose
/// tables of inodes and listings have one metadata block each: then references stay right whatever
/// a block's size becomes. What cannot be taken apart is a std::logic_error.
struct Parts {
  std::string super;
  std::string options;
  std::string data;
  std::string inodes, directories, fragments, owners, pairs, sets;  ///< unpacked
  std::uint32_t set_count = 0;

  explicit Parts(std::string_view image);

  /// With all places made right. `pack` makes a metadata block, header included, of at most 8 KiB;
  /// none: as our writer does.
  using Pack = std::function<std::string(std::string_view)>;
  [[nodiscard]] std::string image(const Pack& pack = {}) const;
  static std::string pack_block(std::string_view content);  ///< with zstd

  /// Where each inode begins in `inodes`, by number.
  [[nodiscard]] std::map<std::uint32_t, std::size_t> inode_offsets() const;
  /// Where the entry for `name` begins in `directories`; the first of that name.
  [[nodiscard]] std::size_t entry_offset(std::string_view name) const;
  /// Where its inode begins. The root: "".
  [[nodiscard]] std::size_t inode_offset(std::string_view name) const;
};

/// "" if the verifier accepts the image, else why not.
std::string refusal(std::string_view image);

}  // namespace spc::test
