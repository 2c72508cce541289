#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "image/verify/erofs/inode.hpp"

namespace spc::verify::erofs {

/// What an entry says of its inode.
enum class EntryType : std::uint8_t {
  file = 1,
  directory = 2,
  whiteout = 3,
  fifo = 5,
  symlink = 7
};

/// One directory's entries: blocks of them, each with its names behind them and filled before the
/// next is begun.
class Directory {
 public:
  struct Entry {
    std::uint64_t nid = 0;
    EntryType type = EntryType::file;
    std::string_view name;  ///< valid until the next call
  };

  /// `begin`: of its `size` bytes, which are more than none.
  Directory(Window& image, std::uint64_t begin, std::uint64_t size)
      : image_(image), begin_(begin), left_(size) {}

  /// Empty at the end. Names are valid and sorted, `.` and `..` among them.
  Result<std::optional<Entry>> next();

 private:
  Result<void> load();
  Result<std::size_t> name_end(std::size_t begin) const;
  Result<void> check_name(std::string_view name);
  [[nodiscard]] std::span<const std::byte> block() const { return std::span(block_).first(size_); }

  Window& image_;
  std::uint64_t begin_, left_;  ///< of the unread blocks
  std::array<std::byte, kBlock> block_;
  std::size_t size_ = 0;            ///< of this block
  std::size_t at_ = 0, count_ = 0;  ///< of its entries
  std::size_t names_ = 0;           ///< where the next name begins
  std::size_t room_ = 0;            ///< behind the last name of the block before
  bool is_first_ = false;           ///< entry of a block that has one before
  std::string last_name_;
};

}  // namespace spc::verify::erofs
