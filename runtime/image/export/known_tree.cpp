#include "image/export/known_tree.hpp"

#include <string_view>

namespace spc {
namespace {

/// Not for anybody who wants to deceive it: whoever could choose these numbers could change the
/// file at once.
std::uint64_t mark_of(const struct stat& status) {
  const bool is_directory = S_ISDIR(status.st_mode);
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t told[] = {number(status.st_mode),         number(status.st_dev),
                                number(status.st_ino),          number(status.st_size),
                                number(status.st_rdev),         number(status.st_mtim.tv_sec),
                                number(status.st_mtim.tv_nsec), number(status.st_ctim.tv_sec),
                                number(status.st_ctim.tv_nsec)};
  const std::size_t counted = is_directory ? sizeof told[0] : sizeof told;
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(told), counted});
}

}  // namespace

Result<KnownTree> KnownTree::read(int root) {
  KnownTree known;
  SPC_TRY(walk_image(root, [&](const TreeEntry& entry) -> Result<void> {
    known.marks_.emplace(entry.path, mark_of(entry.status));
    return {};
  }));
  return known;
}

bool KnownTree::is_unchanged(const TreeEntry& entry, Met& met) const {
  if (S_ISDIR(entry.status.st_mode)) met.directories.insert(entry.path);
  const auto found = marks_.find(entry.path);
  if (found == marks_.end()) return false;
  met.paths.insert(entry.path);
  return found->second == mark_of(entry.status);
}

std::vector<std::string> KnownTree::gone(const Met& met) const {
  std::vector<std::string> paths;
  for (const auto& [path, mark] : marks_) {
    const auto slash = path.rfind('/');
    const bool has_place =
        slash == std::string::npos || met.directories.contains(path.substr(0, slash));
    if (has_place && !met.paths.contains(path)) paths.push_back(path);
  }
  return paths;
}

}  // namespace spc
