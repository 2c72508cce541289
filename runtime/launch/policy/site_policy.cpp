#include "launch/policy/site_policy.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "protocol/policy.hpp"

namespace spc {
namespace {

using Row = KeyRow<SitePolicy>;

constexpr std::size_t kMostPolicy = sizeof(PolicyRecord) + PolicyRecord::kMostText;

constexpr std::array<Row, 4> kEnrootKeys{
    {{"writable", "", "", "", &SitePolicy::writable},
     {"mount_home", "", "", "", &SitePolicy::mount_home},
     {"enroot_mounts", "", "", "", &SitePolicy::enroot_mounts},
     {"enroot_mounts_of_user", "", "", "", &SitePolicy::enroot_mounts_of_user}}};

/// Texts of a value, as records have them.
std::vector<std::string> texts_of(bool value) { return {value ? "true" : "false"}; }
std::vector<std::string> texts_of(const std::optional<bool>& value) {
  return value ? texts_of(*value) : std::vector<std::string>();
}
std::vector<std::string> texts_of(const std::string& value) {
  return value.empty() ? std::vector<std::string>() : std::vector{value};
}
std::vector<std::string> texts_of(const std::vector<std::string>& value) { return value; }
std::vector<std::string> texts_of(PullPolicy value) { return {std::string(name_of(value))}; }
template <typename Number>
std::enable_if_t<std::is_integral_v<Number>, std::vector<std::string>> texts_of(Number value) {
  return {std::to_string(value)};
}

const Row* row_of(std::string_view key) {
  for (const std::span<const Row> rows :
       {std::span<const Row>(kSiteKeys), std::span<const Row>(kEnrootKeys)}) {
    for (const Row& row : rows) {
      if (row.name == key) return &row;
    }
  }
  return nullptr;
}

void set_text(SitePolicy& site, std::string_view text) {
  const auto equals = text.find('=');
  if (equals != std::string_view::npos) site.set(text.substr(0, equals), text.substr(equals + 1));
}

}  // namespace

SitePolicy::SitePolicy() { set_defaults<SitePolicy>(kSiteKeys, *this); }

Result<SitePolicy> SitePolicy::of(int policy_file) {
  const std::string bytes =
      SPC_TRY_DURING("read the site's policy", read_file(policy_file, kMostPolicy));
  PolicyRecord record;
  if (bytes.size() >= sizeof record) std::memcpy(&record, bytes.data(), sizeof record);
  if (bytes.size() < sizeof record || bytes.size() != sizeof record + record.text_bytes) {
    return Error(ErrorKind::internal, "read the site's policy: unexpected length");
  }
  return parse(std::string_view(bytes).substr(sizeof record));
}

std::optional<SitePolicy> SitePolicy::read_if_any() {
  const UniqueFd file(::open(SPC_RUN_DIR "/policy", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return std::nullopt;
  auto site = of(file.get());
  return site ? std::optional(*std::move(site)) : std::nullopt;
}

SitePolicy SitePolicy::parse(std::string_view records) {
  SitePolicy site;
  while (!records.empty()) {
    const std::string_view record = records.substr(0, records.find('\0'));
    records.remove_prefix(std::min(record.size() + 1, records.size()));
    set_text(site, record);
  }
  return site;
}

void SitePolicy::set(std::string_view key, std::string_view value) {
  if (const Row* row = row_of(key)) set_by(*row, *this, value);
}

void SitePolicy::override_with(const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) set_text(*this, setting);
}

std::vector<std::pair<std::string, std::string>> SitePolicy::records() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const std::span<const Row> rows :
       {std::span<const Row>(kSiteKeys), std::span<const Row>(kEnrootKeys)}) {
    for (const Row& row : rows) {
      const auto texts = std::visit([&](auto member) { return texts_of(this->*member); }, row.sink);
      for (const std::string& text : texts) all.emplace_back(row.name, text);
    }
  }
  return all;
}

std::optional<bool> SitePolicy::flag(std::string_view key) const {
  const Row* row = row_of(key);
  const auto* member = row == nullptr ? nullptr : std::get_if<bool SitePolicy::*>(&row->sink);
  return member == nullptr ? std::nullopt : std::optional(this->**member);
}

std::string site_records(const SitePolicy& site) {
  std::string bytes;
  for (const auto& [key, value] : site.records())
    bytes.append(key).append("=").append(value) += '\0';
  return bytes;
}

}  // namespace spc
