#include "task/root/removal.hpp"

#include <stdlib.h>

#include <string_view>

#include "base/text.hpp"

namespace spc {
namespace {

bool is_below(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() && path.starts_with(directory) &&
         path[directory.size()] == '/';
}

}  // namespace

Result<std::vector<bool>> mounts_to_make(
    const std::vector<std::string>& targets, const std::vector<Removal>& removals,
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
          .hint(
              "name the exact path of a mount of --container-mounts or of the container; nofail "
              "ignores this error");
    }
    made[found - 1] = false;
    for (std::size_t i = found; i < removal.after; ++i)
      made[i] = made[i] && !is_below(places[i], place);
  }
  return made;
}

std::string without_links(const std::string& path) {
  std::string there = path;  // the part that exists
  std::string rest;
  while (!there.empty()) {
    char* real = ::realpath(there.c_str(), nullptr);
    if (real != nullptr) {
      const std::string whole = normal_path(real + rest);
      ::free(real);
      return whole;
    }
    const auto slash = there.rfind('/');
    if (slash == std::string::npos) break;
    rest.insert(0, there.substr(slash));
    there.resize(slash);
  }
  return normal_path(path);
}

}  // namespace spc
