// The site's policy in /run/spank-container, and the site's rules.

#include <fcntl.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "protocol/policy.hpp"
#include "reference/location.hpp"

namespace spc {

// --- config ---

SitePolicy::SitePolicy() { set_defaults(keys()); }
StoreConfig::StoreConfig() { set_defaults(keys()); }
SharedConfig::SharedConfig() { set_defaults(keys()); }
PeersConfig::PeersConfig() { set_defaults(keys()); }
NodesConfig::NodesConfig() { set_defaults(keys()); }
Config::Config() { set_defaults(keys()); }

std::vector<KeyTable> Config::tables() {
  Keys top = keys();
  for (const Key& key : site.keys()) top.push_back(key);
  return {{"", "", top},
          {"store", "# The image store.", store.keys()},
          {"shared", "# A store of blobs for all nodes.", shared.keys()},
          {"peers", "# How the nodes of a step take an image from each other.", peers.keys()},
          {"nodes",
           "# What all nodes have, for check_at_submit; as well [partitions.\"NAME\"] and "
           "[features.\"NAME\"].",
           nodes.keys()}};
}

const RegistryConfig& Config::registry(std::string_view host) const {
  static const RegistryConfig kDefault;
  const auto found = registries.find(host);
  return found == registries.end() ? kDefault : found->second;
}

// --- policy record ---

Keys SitePolicy::record_keys() {
  Keys all = keys();
  all.insert(all.end(), {{"writable", "", "", "", &writable},
                         {"mount_home", "", "", "", &mount_home},
                         {"enroot_mounts", "", "", "", &enroot_mounts},
                         {"enroot_mounts_of_user", "", "", "", &enroot_mounts_of_user},
                         {"config_error", "", "", "", &config_error}});
  return all;
}

Result<SitePolicy> SitePolicy::of(int policy_file) {
  constexpr std::size_t kMostPolicy = sizeof(PolicyRecord) + PolicyRecord::kMostText;
  const std::string bytes =
      SPC_TRY_DURING("read the site's policy", read_file(policy_file, kMostPolicy));
  PolicyRecord record;
  if (bytes.size() >= sizeof record) std::memcpy(&record, bytes.data(), sizeof record);
  if (bytes.size() < sizeof record || bytes.size() != sizeof record + record.text_bytes) {
    return Error(ErrorKind::internal, "read the site's policy: unexpected length");
  }
  SitePolicy site;
  // One table for all records: it is longer than they are.
  const Keys keys = site.record_keys();
  for (Records records(std::string_view(bytes).substr(sizeof record)); records.next();)
    set_member(keys, records.key(), records.value());
  return site;
}

std::optional<SitePolicy> SitePolicy::read_if_any() {
  const UniqueFd file(::open(SPC_RUN_DIR "/policy", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return std::nullopt;
  auto site = of(file.get());
  return site ? std::optional(*std::move(site)) : std::nullopt;
}

void SitePolicy::set(std::string_view key, std::string_view value) {
  set_member(record_keys(), key, value);
}

void SitePolicy::override_with(const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    if (equals != std::string::npos)
      set(std::string_view(setting).substr(0, equals), setting.substr(equals + 1));
  }
}

namespace {

/// Keys are bound to members that they can set. Callers only read them: a copy of the site's
/// policy would cost each start memory and the library 2 KB of code.
SitePolicy& keys_to_read(const SitePolicy& site) { return const_cast<SitePolicy&>(site); }

}  // namespace

std::vector<std::pair<std::string, std::string>> SitePolicy::records() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Key& key : keys_to_read(*this).record_keys()) {
    for (std::string& text : key.texts()) all.emplace_back(key.name, std::move(text));
  }
  return all;
}

std::optional<bool> SitePolicy::flag(std::string_view key) const {
  for (const Key& one : keys_to_read(*this).keys()) {
    const auto* flag = std::get_if<bool*>(&one.member);
    if (flag != nullptr && one.name == key) return **flag;
  }
  return std::nullopt;
}

std::string site_records(const SitePolicy& site) {
  std::string bytes;
  for (const auto& [key, value] : site.records()) add_record(bytes, key, value);
  return bytes;
}

// --- rules ---

namespace {

std::string_view take_until(std::string_view& text, char end) {
  const auto part = text.substr(0, text.find(end));
  text.remove_prefix(part.size() == text.size() ? text.size() : part.size() + 1);
  return part;
}

Result<void> add_condition(ImageRule& rule, std::string_view word) {
  const std::pair<std::string_view, std::vector<std::string>&> kinds[] = {
      {"user=", rule.users}, {"group=", rule.groups}, {"partition=", rule.partitions}};
  for (const auto& [key, names] : kinds) {
    if (!word.starts_with(key)) continue;
    for (std::string_view rest = word.substr(key.size()); !rest.empty();)
      names.emplace_back(take_until(rest, ','));
    if (names.empty() || word.ends_with(',')) break;
    return {};
  }
  return Error(ErrorKind::invalid,
               in_quotes(word) + " is not user=, group= or partition= with names");
}

}  // namespace

Result<ImageRule> ImageRule::parse(std::string_view text) {
  ImageRule rule;
  rule.pattern = take_until(text, ' ');
  if (rule.pattern.empty() || rule.pattern.find('=') != std::string::npos) {
    return Error(ErrorKind::invalid, "it does not begin with a pattern for images");
  }
  while (!text.empty()) {
    const std::string_view word = take_until(text, ' ');
    if (!word.empty()) SPC_TRY(add_condition(rule, word));
  }
  return rule;
}

bool ImageRule::fits(const std::string& repository) const {
  return ::fnmatch(pattern.c_str(), repository.c_str(), 0) == 0;
}

Result<void> check_features(const std::vector<std::string>& used,
                            const std::vector<std::string>& off) {
  for (const std::string& feature : used) {
    if (std::ranges::find(off, feature) == off.end()) continue;
    return Error(ErrorKind::refused, formatted("--{}: not allowed by this site", feature))
        .hint("drop it, or ask the administrator: features_off");
  }
  return {};
}

std::optional<std::string_view> RegistryRule::rest_of(std::string_view name) const {
  std::size_t end = prefix.size();
  if (prefix.starts_with("*.")) {
    end = std::min(name.find('/'), name.size());
    const auto domain = std::string_view(prefix).substr(1);
    if (!name.substr(0, end).ends_with(domain) || end == domain.size()) return std::nullopt;
  } else if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  if (end == name.size()) return std::string_view();
  return name[end] == '/' ? std::optional(name.substr(end + 1)) : std::nullopt;
}

const RegistryRule* Config::rule_of(std::string_view registry, std::string_view repository) const {
  const std::string name =
      std::string(registry) + (repository.empty() ? "" : "/") + std::string(repository);
  const RegistryRule* found = nullptr;
  for (const RegistryRule& rule : registry_rules) {
    if (rule.rest_of(name) && (found == nullptr || found->prefix.size() < rule.prefix.size()))
      found = &rule;
  }
  return found;
}

Mirrors Config::mirrors_of(const std::string& registry_name, const std::string& repository) const {
  const RegistryConfig& keys = registry(registry_name);
  const RegistryRule* const rule =
      keys.mirrors.empty() ? rule_of(registry_name, repository) : nullptr;
  const std::string name = registry_name + "/" + repository;
  const std::string rest(rule != nullptr ? *rule->rest_of(name) : repository);
  Mirrors mirrors;
  mirrors.resolve_tags = rule != nullptr ? rule->mirror_tags : keys.mirror_tags;
  for (const std::string& mirror : rule != nullptr ? rule->mirrors : keys.mirrors) {
    const std::size_t slash = std::min(mirror.find('/'), mirror.size());
    std::string path = mirror.substr(std::min(slash + 1, mirror.size()));
    if (!path.empty() && !rest.empty()) path += "/";
    mirrors.list.push_back({mirror, mirror.substr(0, slash), path + rest});
  }
  return mirrors;
}

Result<void> Config::check_registry(std::string_view host, std::string_view repository) const {
  const auto fits = [&](const std::string& one) {
    if (one.starts_with("*."))
      return host.ends_with(std::string_view(one).substr(1)) && host.size() >= one.size();
    const auto allowed = parse_registry(one);
    return allowed && *allowed == host;
  };
  const auto& allowed = allowed_registries;
  const RegistryRule* const rule = rule_of(host, repository);
  if (!registry(host).blocked && (rule == nullptr || !rule->blocked) &&
      (allowed.empty() || std::ranges::any_of(allowed, fits)))
    return {};
  return Error(ErrorKind::refused, "this site does not allow registry " + in_quotes(host))
      .hint("push the image to an allowed registry, or ask the administrator");
}

Result<void> Config::check_request(const std::vector<std::string>& options,
                                   const std::string& image) const {
  SPC_TRY(check_features(options, site.features_off));
  if (image.empty()) return {};  // a container given by its name
  const auto location = SPC_TRY(ImageLocation::parse(image, default_registry));
  const bool at_registry = location.kind == ImageLocation::Kind::registry;
  // The site's importer has its own registries.
  if (at_registry ? !site.importer.empty() : location.kind != ImageLocation::Kind::remote_file)
    return {};
  SPC_TRY_OR(.during_pull(location.canonical()),
             check_registry(location.name.registry, location.name.repository));
  return {};
}

}  // namespace spc
