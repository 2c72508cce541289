#include "hooks/node/node_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"

namespace spc {

bool NodeFiles::exists(const std::string& path) const {
  return ::access(on_disk(path).c_str(), F_OK) == 0;
}

bool NodeFiles::is_regular(const std::string& path) const {
  struct stat status {};
  return ::stat(on_disk(path).c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string NodeFiles::text(const std::string& path) const {
  const UniqueFd file(::open(on_disk(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return {};
  auto text = read_file(file.get(), 64 << 10);
  return text ? *std::move(text) : std::string();
}

std::string NodeFiles::link(const std::string& path) const {
  char target[PATH_MAX];
  const auto size = ::readlink(on_disk(path).c_str(), target, sizeof target);
  return size > 0 ? std::string(target, static_cast<std::size_t>(size)) : std::string();
}

std::vector<std::string> NodeFiles::names(const std::string& directory,
                                          std::string_view prefix) const {
  return names_if(directory, [&](std::string_view name) { return name.starts_with(prefix); });
}

std::vector<std::string> NodeFiles::names_if(
    const std::string& directory, const std::function<bool(std::string_view)>& wanted) const {
  std::vector<std::string> names;
  for (DirectoryReader entries(on_disk(directory)); entries.next();) {
    if (wanted(entries.name())) names.emplace_back(entries.name());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const int order = compare_versions(a, b);
    return order != 0 ? order < 0 : a < b;
  });
  return names;
}

std::string field_of(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto colon = line.find(':');
    if (colon == std::string_view::npos ||
        line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != name)
      continue;
    line.remove_prefix(colon + 1);
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return std::string(line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin));
  }
  return {};
}

}  // namespace spc
