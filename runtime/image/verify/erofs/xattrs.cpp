#include "image/verify/erofs/xattrs.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace spc::verify::erofs {
namespace {

enum Prefix : std::uint8_t { kUserPrefix = 1, kTrustedPrefix = 4 };
constexpr std::size_t kListHead = 12;
constexpr std::size_t kAttributeHead = 4;
constexpr std::string_view kOpaqueMark = "overlay.opaque";
constexpr std::size_t kMaxUserName = 255 - std::string_view("user.").size();

Error bad_attribute(const char* what) { return refused(std::string("attributes: ") + what); }

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Attribute {
  std::uint8_t prefix = 0;
  std::string_view name;
  std::string_view value;
  std::size_t end = 0;  ///< from its begin, padding included

  [[nodiscard]] bool is_mark() const { return name == kOpaqueMark; }
};

/// The one at the front of `bytes`.
Result<Attribute> first_of(std::span<const std::byte> bytes) {
  if (bytes.size() < kAttributeHead) return bad_attribute("the last one is cut off");
  const std::size_t name = number<std::uint8_t>(bytes, 0);
  const std::size_t value = number<std::uint16_t>(bytes, 2);
  const std::size_t end = kAttributeHead + name + value;
  Attribute found;
  found.prefix = number<std::uint8_t>(bytes, 1);
  found.end = (end + 3) / 4 * 4;
  if (found.end > bytes.size()) return bad_attribute("the last one is cut off");
  if (!all_zero(bytes.subspan(end, found.end - end)))
    return bad_attribute("data between two of them");
  found.name = text_of(bytes.subspan(kAttributeHead, name));
  found.value = text_of(bytes.subspan(kAttributeHead + name, value));
  return found;
}

Result<void> check_attribute(const Attribute& attribute, bool on_directory) {
  const bool is_user = attribute.prefix == kUserPrefix;
  if (!is_user && attribute.prefix != kTrustedPrefix)
    return bad_attribute("a name is neither user.* nor overlayfs's mark");
  if (attribute.name.empty() || attribute.name.size() > kMaxUserName)
    return bad_attribute("wrong length of a name");
  if (attribute.name.find('\0') != std::string_view::npos)
    return bad_attribute("a name contains NUL");
  if (!attribute.is_mark()) {
    if (!is_user || attribute.name.starts_with("overlay."))
      return bad_attribute("a name is neither user.* nor overlayfs's mark");
    return {};
  }
  if (!on_directory) return bad_attribute("overlayfs's mark on a non-directory");
  if (attribute.value != "y") return bad_attribute("wrong value of an overlayfs mark");
  return {};
}

}  // namespace

Result<void> check_attributes(Window& image, const Inode& inode) {
  if (inode.attributes == 0) return {};
  auto bytes = SPC_TRY(image.at(inode.begin() + Inode::kSize, inode.attributes));
  if (!all_zero(bytes.first(kListHead))) return bad_attribute("unexpected header");
  bytes = bytes.subspan(kListHead);
  if (bytes.empty()) return bad_attribute("empty list");
  std::vector<std::string_view> names;  // of users
  unsigned marks = 0;
  unsigned trusted = 0;
  while (!bytes.empty()) {
    const auto attribute = SPC_TRY(first_of(bytes));
    SPC_TRY(check_attribute(attribute, inode.is(S_IFDIR)));
    if (attribute.is_mark()) ++marks;
    if (attribute.prefix == kTrustedPrefix) {
      ++trusted;
    } else {
      names.push_back(attribute.name);
    }
    bytes = bytes.subspan(attribute.end);
  }
  std::sort(names.begin(), names.end());
  if (trusted > 1 || std::adjacent_find(names.begin(), names.end()) != names.end())
    return bad_attribute("a name comes twice");
  if (marks == 1) return bad_attribute("one half of overlayfs's mark");
  return {};
}

}  // namespace spc::verify::erofs
