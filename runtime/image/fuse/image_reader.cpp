#include "image/fuse/image_reader.hpp"

#include <algorithm>
#include <array>

#include "image/fuse/erofs_reader.hpp"
#include "image/fuse/squashfs_reader.hpp"

namespace spc::fuse {

const Directory::Entry* Directory::find(std::string_view wanted) const {
  const auto found = std::lower_bound(
      entries.begin(), entries.end(), wanted,
      [&](const Entry& entry, std::string_view other) { return name(entry) < other; });
  return found != entries.end() && name(*found) == wanted ? &*found : nullptr;
}

Result<void> Directory::sort() {
  const auto by_name = [&](const Entry& a, const Entry& b) { return name(a) < name(b); };
  if (!std::is_sorted(entries.begin(), entries.end(), by_name))
    std::sort(entries.begin(), entries.end(), by_name);
  const auto same = [&](const Entry& a, const Entry& b) { return name(a) == name(b); };
  if (std::adjacent_find(entries.begin(), entries.end(), same) != entries.end())
    return damaged("a duplicate name in a directory");
  return {};
}

bool is_entry_name(std::string_view name) {
  return name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

Result<std::unique_ptr<ImageReader>> open_image(int file, std::uint64_t offset, std::uint64_t size,
                                                Unpacker unpacker, const CacheLimits& limits,
                                                ErofsForm form) {
  if (offset > size)
    return Error(ErrorKind::corrupt, "the squashfs starts beyond the end of the file");
  const ImageFile image(file, offset, size - offset);
  std::array<std::byte, kErofsHeadBytes> head{};
  const auto there = std::span(head).first(
      static_cast<std::size_t>(std::min<std::uint64_t>(image.size(), head.size())));
  SPC_TRY(image.read(0, there));
  if (!looks_like_squashfs(there) && looks_like_erofs(there))
    return ErofsReader::open(image, unpacker, limits, form);
  auto bytes = SPC_TRY(ImageBytes::open(image, unpacker, limits.blocks));
  return std::unique_ptr<ImageReader>(
      std::make_unique<SquashfsReader>(std::move(bytes), limits.directories));
}

}  // namespace spc::fuse
