#include "image/verify/listing.hpp"

namespace spc::verify {
namespace {

constexpr std::uint64_t kHeaderBytes = 12;
constexpr std::uint64_t kEntryBytes = 8;
constexpr std::uint32_t kMaxEntries = 256;
constexpr std::size_t kMaxName = 255;

bool is_legal(std::string_view name) {
  return name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace

/// The writer's rule for where a group ends.
bool Listing::Group::has_room_for(const Entry& entry) const {
  const auto distance = std::int64_t{entry.number} - std::int64_t{number};
  return entry.block == block && distance <= 32767 && distance >= -32767 && count < kMaxEntries &&
         (count == 0 || bytes + kEntryBytes + entry.name.size() <= kMetaBytes);
}

Result<void> Listing::begin_group() {
  const auto position = stream_.position();
  const auto header = SPC_TRY(stream_.take<kHeaderBytes>());
  Fields fields(header);
  const auto last = fields.take<std::uint32_t>();
  if (last >= kMaxEntries) return refused("a listing's group has too many entries");
  begin_ = {.at = at_, .block = position.block};
  group_ = {.left = last + 1, .bytes = (position.offset + kHeaderBytes) % kMetaBytes};
  group_.block = fields.take<std::uint32_t>();
  group_.number = fields.take<std::uint32_t>();
  at_ += kHeaderBytes;
  return {};
}

Result<std::optional<Listing::Entry>> Listing::next() {
  if (at_ == size_ && group_.left == 0) return std::optional<Entry>();
  const Group previous = group_;
  begin_.reset();
  if (group_.left == 0) SPC_TRY(begin_group());

  const auto head = SPC_TRY(stream_.take<kEntryBytes>());
  Fields fields(head);
  Entry entry{.block = group_.block, .offset = fields.take<std::uint16_t>()};
  const auto distance = static_cast<std::int16_t>(fields.take<std::uint16_t>());
  entry.number = group_.number + static_cast<std::uint32_t>(distance);
  entry.kind = fields.take<std::uint16_t>();
  const std::size_t length = fields.take<std::uint16_t>() + std::size_t{1};
  if (length > kMaxName) return refused("a name is longer than 255 bytes");
  at_ += kEntryBytes + length;
  if (at_ > size_) return refused("a listing is longer than stated");
  name_.resize(length);
  SPC_TRY(stream_.read(std::as_writable_bytes(std::span(name_))));
  entry.name = name_;
  if (!is_legal(name_)) return refused("invalid name");
  if (name_ <= last_name_) return refused("names of a directory not sorted");

  if (begin_ && distance != 0) return refused("wrong number of a listing's group");
  if (!group_.has_room_for(entry) || (begin_ && begin_->at > 0 && previous.has_room_for(entry))) {
    return refused("unexpected groups in a listing");
  }
  --group_.left;
  ++group_.count;
  group_.bytes += kEntryBytes + length;
  std::swap(name_, last_name_);
  entry.name = last_name_;
  return std::optional(entry);
}

}  // namespace spc::verify
