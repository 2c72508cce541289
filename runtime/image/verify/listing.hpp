#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "image/verify/meta_stream.hpp"

namespace spc::verify {

/// One directory's entries as stored: in groups whose inodes are in one metadata block and have
/// similar numbers. Each group has a header and is as long as possible.
class Listing {
 public:
  struct Entry {
    std::string_view name;  ///< valid until the next call
    std::uint32_t number = 0;
    std::uint64_t block = 0;  ///< of the inode's position
    std::uint16_t offset = 0;
    std::uint16_t kind = 0;
  };
  /// Start of a group: long directories repeat it in their inode.
  struct Begin {
    std::uint64_t at = 0;  ///< from the start of the listing
    std::uint64_t block = 0;
  };

  /// `size` bytes from the position of `stream`.
  Listing(MetaStream& stream, std::uint64_t size) : stream_(stream), size_(size) {}

  /// Empty at the end. Names are valid and sorted.
  Result<std::optional<Entry>> next();
  /// Of the group, if the last entry was its first.
  [[nodiscard]] const std::optional<Begin>& group_begin() const { return begin_; }

 private:
  struct Group {
    std::uint32_t left = 0;   ///< unread entries
    std::uint32_t count = 0;  ///< read entries
    std::uint64_t bytes = 0;  ///< end of the last entry, from the start of the metadata block
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
