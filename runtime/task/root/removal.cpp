#include "task/root/removal.hpp"

#include <filesystem>
#include <string_view>

namespace spc {
namespace {

bool is_below(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/';
}

}  // namespace

Result<std::vector<bool>> mounts_to_make(const std::vector<std::string>& targets, const std::vector<Removal>& removals,
                                         const std::function<std::string(const std::string&)>& resolve) {
  std::vector<bool> made(targets.size(), true);
  if (removals.empty()) return made;
  std::vector<std::string> places;
  for (const std::string& target : targets) places.push_back(resolve(target));
  for (const Removal& removal : removals) {
    const std::string place = resolve(removal.target);
    std::size_t found = removal.after;
    while (found > 0 && !(made[found - 1] && places[found - 1] == place)) --found;
    if (found == 0 && removal.optional) continue;
    if (found == 0) {
      return Error(ErrorKind::invalid, "unmount " + in_quotes(removal.shown_as) + ": not a mount")
          .hint("name the exact path of a mount of --container-mounts or of the container; nofail ignores this error");
    }
    made[found - 1] = false;
    for (std::size_t i = found; i < removal.after; ++i) made[i] = made[i] && !is_below(places[i], place);
  }
  return made;
}

std::string without_links(const std::string& path) {
  std::error_code problem;
  const auto whole = std::filesystem::weakly_canonical(path, problem);
  std::string text = (problem ? std::filesystem::path(path) : whole).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace spc
