#include "hooks/hook.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.hpp"
#include "base/text.hpp"

namespace spc {

// --- text ---

std::vector<std::string> parts_of(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::string_view part = next_part(list, separator);
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

// --- hook ---

bool is_gpu_node(std::string_view node) {
  return node.starts_with("/dev/nvidia") || node.starts_with("/dev/dri/") || node == "/dev/kfd";
}

bool is_mig_capability(std::string_view node) { return node.starts_with("/dev/nvidia-caps/"); }

std::string HookContext::setting(std::string_view key, std::string_view otherwise) const {
  const auto [begin, end] = settings.equal_range(key);
  return begin == end ? std::string(otherwise) : std::prev(end)->second;
}

bool HookContext::flag(std::string_view key, bool otherwise) const {
  return setting(key, otherwise ? "true" : "false") == "true";
}

std::vector<std::string> HookContext::settings_of(std::string_view key) const {
  std::vector<std::string> values;
  const auto [begin, end] = settings.equal_range(key);
  for (auto it = begin; it != end; ++it) values.push_back(it->second);
  return values;
}

const std::string* HookContext::of_job(std::string_view name) const {
  const auto found = job.find(std::string(name));
  return found == job.end() ? nullptr : &found->second;
}

std::optional<std::uint32_t> HookContext::job_number(std::string_view name) const {
  const std::string* text = of_job(name);
  return text == nullptr ? std::nullopt : parse_number(*text);
}

const std::string* HookContext::of_image(std::string_view name) const {
  const auto found = image.find(std::string(name));
  return found == image.end() ? nullptr : &found->second;
}

bool HookContext::may_open(const std::string& node) const {
  if (granted_devices && is_gpu_node(node)) return granted_devices->contains(node);
  const int how = is_mig_capability(node) ? R_OK : R_OK | W_OK;
  return ::faccessat(AT_FDCWD, (host_root + node).c_str(), how, AT_EACCESS) == 0;
}

UniqueFd HookContext::open_regular(const char* path) const {
  UniqueFd file = open_in_image ? open_in_image(path, O_RDONLY) : UniqueFd();
  struct stat status {};
  const bool is_regular = file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
  return is_regular ? std::move(file) : UniqueFd();
}

std::optional<std::string> HookContext::image_file(const char* path, std::size_t most) const {
  const UniqueFd file = open_regular(path);
  if (!file) return std::nullopt;
  auto text = read_file(file.get(), most);
  return text ? std::optional(*std::move(text)) : std::nullopt;
}

}  // namespace spc
