#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "image/verify/meta_stream.hpp"

namespace spc::verify {

/// One directory's entries as they are stored: in groups, whose inodes lie in one metadata block and have numbers near
/// each other. Each group has a header and is as long as it can be.
class Listing {
 public:
  struct Entry {
    std::string_view name;  ///< until the next call
    std::uint32_t number = 0;
    std::uint64_t block = 0;  ///< of the inode's place
    std::uint16_t offset = 0;
    std::uint16_t kind = 0;
  };
  /// Where a group begins: long directories say this again in their inode.
  struct Begin {
    std::uint64_t at = 0;  ///< behind the listing's beginning
    std::uint64_t block = 0;
  };

  /// `size` bytes from where `stream` is.
  Listing(MetaStream& stream, std::uint64_t size) : stream_(stream), size_(size) {}

  /// Nothing at the end. Names are legal and in order.
  Result<std::optional<Entry>> next();
  /// Of the group, if the last entry was its first.
  [[nodiscard]] const std::optional<Begin>& group_begin() const { return begin_; }

 private:
  struct Group {
    std::uint32_t left = 0;   ///< entries that have not been read
    std::uint32_t count = 0;  ///< entries that have been
    std::uint64_t bytes = 0;  ///< to the end of the last entry, from the beginning of the metadata block
    std::uint32_t block = 0;
    std::uint32_t number = 0;  ///< of the first entry
    [[nodiscard]] bool has_room_for(const Entry& entry) const;
  };

  Result<void> begin_group();

  MetaStream& stream_;
  std::uint64_t size_;
  std::uint64_t at_ = 0;
  Group group_;
  std::optional<Begin> begin_;
  std::string name_;
  std::string last_name_;
};

}  // namespace spc::verify
