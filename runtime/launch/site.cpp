#include "launch/site.hpp"

#include <fcntl.h>

#include "base/file.hpp"
#include "base/policy_record.hpp"
#include "base/unique_fd.hpp"

namespace spc {

Site Site::read() {
  const UniqueFd file(::open(SPC_RUN_DIR "/policy", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  constexpr std::size_t kSane = 1 << 20;
  const auto bytes = file ? read_file(file.get(), kSane) : Result<std::string>(std::string());
  if (!bytes || bytes->size() <= sizeof(PolicyRecord)) return {};
  return parse(std::string_view(*bytes).substr(sizeof(PolicyRecord)));
}

Site Site::parse(std::string_view records) {
  Site site;
  while (!records.empty()) {
    const std::string_view record = records.substr(0, records.find('\0'));
    records.remove_prefix(std::min(record.size() + 1, records.size()));
    const auto equals = record.find('=');
    if (equals == std::string_view::npos) continue;
    site.records_.emplace_back(record.substr(0, equals), record.substr(equals + 1));
  }
  return site;
}

std::string Site::text(std::string_view key, std::string_view otherwise) const {
  std::string found(otherwise);
  for (const auto& [name, value] : records_) {
    if (name == key) found = value;
  }
  return found;
}

bool Site::flag(std::string_view key, bool otherwise) const { return text(key, otherwise ? "true" : "false") == "true"; }

std::vector<std::string> Site::all(std::string_view key) const {
  std::vector<std::string> found;
  for (const auto& [name, value] : records_) {
    if (name == key) found.push_back(value);
  }
  return found;
}

}  // namespace spc
