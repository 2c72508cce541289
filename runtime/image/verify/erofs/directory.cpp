#include "image/verify/erofs/directory.hpp"

#include <algorithm>

namespace spc::verify::erofs {
namespace {

constexpr std::size_t kEntrySize = 12;
constexpr std::size_t kMaxEntryName = 255;

/// Offsets in an entry.
enum EntryAt : std::size_t { kNidAt = 0, kNameAt = 8, kTypeAt = 10, kZeroAt = 11 };

bool is_entry_type(std::uint8_t type) {
  constexpr std::array kTypes{EntryType::file, EntryType::directory, EntryType::whiteout,
                              EntryType::fifo, EntryType::symlink};
  return std::find(kTypes.begin(), kTypes.end(), static_cast<EntryType>(type)) != kTypes.end();
}

}  // namespace

Result<void> Directory::load() {
  size_ = std::min(left_, kBlock);
  SPC_TRY(image_.copy(begin_, std::span(block_).first(size_)));
  begin_ += size_;
  left_ -= size_;
  if (size_ < kEntrySize) return refused("a cut off entry");
  names_ = number<std::uint16_t>(block(), kNameAt);
  count_ = names_ / kEntrySize;
  if (count_ == 0 || names_ % kEntrySize != 0 || names_ > size_)
    return refused("wrong number of entries in a block");
  at_ = 0;
  return {};
}

/// Of the name that begins there, of the entry at `at_`.
Result<std::size_t> Directory::name_end(std::size_t begin) const {
  const auto bytes = block();
  if (at_ + 1 < count_) {
    const std::size_t end = number<std::uint16_t>(bytes, (at_ + 1) * kEntrySize + kNameAt);
    if (end < begin || end > size_) return refused("wrong position of a name");
    return end;
  }
  if (left_ == 0) return size_;
  const auto rest = bytes.subspan(begin);
  const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
  if (!all_zero({end, rest.end()})) return refused("data behind the names of a block");
  return begin + static_cast<std::size_t>(end - rest.begin());
}

Result<void> Directory::check_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxEntryName) return refused("wrong length of a name");
  if (name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos)
    return refused("invalid name");
  if (name <= last_name_) return refused("names of a directory not sorted");
  last_name_ = name;
  return {};
}

Result<std::optional<Directory::Entry>> Directory::next() {
  if (at_ == count_) {
    if (left_ == 0) return std::optional<Entry>();
    is_first_ = count_ > 0;
    SPC_TRY(load());
  }
  const auto bytes = block().subspan(at_ * kEntrySize, kEntrySize);
  if (number<std::uint16_t>(bytes, kNameAt) != names_) return refused("wrong position of a name");
  const std::size_t end = SPC_TRY(name_end(names_));
  Entry entry;
  entry.nid = number<std::uint64_t>(bytes, kNidAt);
  const auto type = number<std::uint8_t>(bytes, kTypeAt);
  if (!is_entry_type(type)) return refused("an entry of an unused type");
  if (number<std::uint8_t>(bytes, kZeroAt) != 0)
    return refused("a value in an unused field of an entry");
  entry.type = static_cast<EntryType>(type);
  entry.name = {reinterpret_cast<const char*>(block_.data()) + names_, end - names_};
  SPC_TRY(check_name(entry.name));
  if (is_first_ && kEntrySize + entry.name.size() <= room_)
    return refused("a block of entries that is not full");
  is_first_ = false;
  names_ = end;
  if (++at_ == count_) room_ = kBlock - end;
  return std::optional<Entry>(entry);
}

}  // namespace spc::verify::erofs
