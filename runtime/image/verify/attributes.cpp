#include "image/verify/attributes.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace spc::verify {
namespace {

enum Namespace : std::uint16_t { kUser = 0, kTrusted = 1 };
constexpr std::uint16_t kElsewhere = 0x100;  ///< the value is where another name has it
constexpr std::string_view kMark = "overlay.opaque";
constexpr std::size_t kMaxAttributeName = 255;
constexpr std::uint32_t kMaxValue = 65536;

Error bad(const char* what) { return refused(std::string("attributes: ") + what); }

/// Names and values, one set after the other.
class Reader {
 public:
  Reader(LayerBytes& layer, const Layout& layout)
      : pairs_(layer, layout.codec, "attributes", layout.attributes.begin, layout.attributes.end) {}

  /// One set; true if it has overlayfs' mark.
  Result<bool> read_set(std::span<const std::byte> description) {
    Fields fields(description);
    const auto reference = fields.take<std::uint64_t>();
    const auto count = fields.take<std::uint32_t>();
    const auto size = fields.take<std::uint32_t>();
    if (reference != pairs_.position().reference()) return bad("wrong position of a set");
    if (count == 0) return bad("empty set");
    bytes_ = 0;
    marks_ = 0;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t name = SPC_TRY(read_pair());
      if (i > 0 && name <= last) return bad("names of a set not sorted");
      last = name;
    }
    if (bytes_ != size) return bad("wrong size of a set");
    if (marks_ == 1) return bad("overlayfs mark in a set of its own");
    return marks_ == 2;
  }

  Result<void> expect_end() const { return pairs_.expect_end(); }

 private:
  /// The number of the pair's name: names are numbered as they first come.
  Result<std::uint32_t> read_pair() {
    const auto head = SPC_TRY(pairs_.take<4>());
    Fields fields(head);
    const auto type = fields.take<std::uint16_t>();
    const std::size_t length = fields.take<std::uint16_t>();
    const unsigned name_space = type & ~unsigned{kElsewhere};
    const std::size_t prefix = name_space == kUser ? 5 : 8;
    if (name_space != kUser && name_space != kTrusted)
      return bad("a name is neither user.* nor overlayfs's mark");
    if (length == 0 || length + prefix > kMaxAttributeName) return bad("wrong length of a name");
    std::string name(length, '\0');
    SPC_TRY(pairs_.read(std::as_writable_bytes(std::span(name))));
    if (name.find('\0') != std::string::npos) return bad("a name contains NUL");
    const bool is_mark = name == kMark;
    if (!is_mark && (name_space == kTrusted || name.starts_with("overlay."))) {
      return bad("a name is neither user.* nor overlayfs's mark");
    }
    const bool elsewhere = (type & kElsewhere) != 0;
    if (is_mark) {
      ++marks_;
      if (elsewhere) return bad("wrong value of an overlayfs mark");
    }
    SPC_TRY(elsewhere ? read_reference() : read_value(is_mark));
    bytes_ += head.size() + length;
    name.insert(name.begin(), static_cast<char>(name_space));
    return names_.try_emplace(std::move(name), static_cast<std::uint32_t>(names_.size()))
        .first->second;
  }

  Result<void> read_value(bool is_mark) {
    const auto place = pairs_.position().reference();
    const auto head = SPC_TRY(pairs_.take<4>());
    const auto size = Fields(head).take<std::uint32_t>();
    if (size > kMaxValue) return bad("value too long");
    bytes_ += head.size() + size;
    if (is_mark) {
      if (size != 1 || SPC_TRY(pairs_.take<1>())[0] != std::byte{'y'})
        return bad("wrong value of an overlayfs mark");
      return {};
    }
    if (size > 8) values_.push_back(place);
    return pairs_.skip(size);
  }

  Result<void> read_reference() {
    const auto bytes = SPC_TRY(pairs_.take<12>());
    Fields fields(bytes);
    const auto size = fields.take<std::uint32_t>();
    // Only longer values than a reference are shared, and they come first.
    if (size != 8 ||
        !std::binary_search(values_.begin(), values_.end(), fields.take<std::uint64_t>())) {
      return bad("invalid reference to a value");
    }
    bytes_ += bytes.size();
    return {};
  }

  MetaStream pairs_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  std::vector<std::uint64_t> values_;  ///< where values are that may be referred to; ascending
  std::uint64_t bytes_ = 0;            ///< of the current set
  unsigned marks_ = 0;                 ///< in the current set
};

}  // namespace

Result<Attributes> Attributes::read(LayerBytes& layer, const Layout& layout) {
  Attributes attributes;
  if (!layout.has_attributes) return attributes;
  Reader reader(layer, layout);
  MetaStream sets(layer, layout.codec, "attributes", layout.sets.begin, layout.sets.end);
  for (std::uint32_t i = 0; i < layout.attribute_sets; ++i) {
    if (i % (kMetaBytes / 16) == 0) {
      const auto place =
          SPC_TRY(number_at(layer, layout.attribute_places + i / (kMetaBytes / 16) * 8));
      if (place != layout.sets.begin + sets.position().block)
        return bad("wrong position of a block");
    }
    const auto description = SPC_TRY(sets.take<16>());
    attributes.hides_.push_back(SPC_TRY(reader.read_set(description)));
  }
  SPC_TRY(sets.expect_end());
  SPC_TRY(reader.expect_end());
  return attributes;
}

Result<void> Attributes::use(std::uint32_t set, bool by_directory) {
  if (set == kNoAttributes) return {};
  if (set > used_ || set >= hides_.size()) return bad("an inode refers to a missing or later set");
  if (hides_[set] && !by_directory) return bad("overlayfs's mark on a non-directory");
  if (set == used_) ++used_;
  return {};
}

}  // namespace spc::verify
