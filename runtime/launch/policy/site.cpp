#include "launch/policy/site.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "base/file.hpp"
#include "base/records.hpp"
#include "base/unique_fd.hpp"
#include "protocol/policy.hpp"

namespace spc {
namespace {

constexpr std::size_t kSane = sizeof(PolicyRecord) + PolicyRecord::kMostText;

}  // namespace

Result<Site> Site::of(int policy_file) {
  const std::string bytes = SPC_TRY_DURING("read the site's policy", read_file(policy_file, kSane));
  PolicyRecord record;
  if (bytes.size() >= sizeof record) std::memcpy(&record, bytes.data(), sizeof record);
  if (bytes.size() < sizeof record || bytes.size() != sizeof record + record.text_bytes) {
    return Error(ErrorKind::internal, "read the site's policy: unexpected length");
  }
  return parse(std::string_view(bytes).substr(sizeof record));
}

Site Site::read() {
  const UniqueFd file(::open(SPC_RUN_DIR "/policy", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  auto site = file ? of(file.get()) : Result<Site>(Site());
  return site ? *std::move(site) : Site();
}

Site Site::parse(std::string_view records) {
  Site site;
  for (Records record(records); record.next();) site.records_.emplace_back(record.key(), record.value());
  return site;
}

void Site::override_with(const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    if (equals != std::string::npos) records_.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
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
