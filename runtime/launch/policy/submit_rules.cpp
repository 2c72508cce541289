#include "launch/policy/submit_rules.hpp"

#include <algorithm>
#include <charconv>

#include "base/format.hpp"
#include "image/reference/location.hpp"
#include "launch/policy/plain_toml.hpp"

namespace spc {
namespace {

using EntryKind = PlainEntry::Kind;

/// Each says whether the value is of its kind.
bool take(const PlainEntry& entry, std::string& into) {
  if (entry.kind == EntryKind::text) into = entry.texts.front();
  return entry.kind == EntryKind::text;
}
bool take(const PlainEntry& entry, std::vector<std::string>& into) {
  if (entry.kind == EntryKind::list) into = entry.texts;
  return entry.kind == EntryKind::list;
}
bool take(const PlainEntry& entry, bool& into) {
  const bool is_yes = entry.kind == EntryKind::word && entry.texts.front() == "true";
  into = is_yes;
  return is_yes || (entry.kind == EntryKind::word && entry.texts.front() == "false");
}

bool take(const PlainEntry& entry, PullPolicy& into) {
  const auto policy =
      entry.kind == EntryKind::text ? parse_pull_policy(entry.texts.front()) : std::nullopt;
  into = policy.value_or(into);
  return policy.has_value();
}

bool take(const PlainEntry& entry, PortRange& into) {
  const auto range =
      entry.kind == EntryKind::text ? PortRange::parse(entry.texts.front()) : std::nullopt;
  into = range.value_or(into);
  return range.has_value();
}

bool take(const PlainEntry& entry, std::uint32_t& into) {
  const std::string& word = entry.texts.front();
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), into);
  return entry.kind == EntryKind::word && error == std::errc{} && end == word.data() + word.size();
}

bool take_peers(const PlainEntry& entry, SubmitRules& rules) {
  if (entry.key == "srun_ports") return take(entry, rules.srun_ports);
  if (entry.key == "fanout") return take(entry, rules.fanout);
  return true;
}

bool take_registry(const PlainEntry& entry, std::vector<std::string>& blocked) {
  if (entry.table.size() != 2 || entry.table.front() != "registries" || entry.key != "blocked")
    return true;
  const auto host = parse_registry(entry.table.back());
  bool is_blocked = false;
  if (!host || !take(entry, is_blocked)) return false;
  std::erase(blocked, *host);
  if (is_blocked) blocked.push_back(*host);
  return true;
}

bool take_rule(const PlainEntry& entry, SubmitRules& rules) {
  if (entry.table == std::vector<std::string>{"shared"} && entry.key == "pull_at_submit")
    return take(entry, rules.pull_at_submit);
  if (entry.table == std::vector<std::string>{"peers"}) return take_peers(entry, rules);
  if (!entry.table.empty()) return take_registry(entry, rules.registries.blocked);
  if (entry.key == "default_registry") return take(entry, rules.default_registry);
  if (entry.key == "importer") return take(entry, rules.importer);
  if (entry.key == "check_at_submit") return take(entry, rules.check_at_submit);
  if (entry.key == "pull") return take(entry, rules.pull);
  if (entry.key == "features_off") return take(entry, rules.features_off);
  if (entry.key == "allowed_registries") return take(entry, rules.registries.allowed);
  return true;
}

}  // namespace

SubmitRules SubmitRules::read(const std::string& path, uid_t owner) {
  const auto files = read_config_files(path, owner);
  return files ? of(*files) : SubmitRules();
}

SubmitRules SubmitRules::of(const std::vector<ConfigFile>& files) {
  SubmitRules rules;
  for (const ConfigFile& file : files) {
    const auto entries = read_plain_toml(file.text);
    rules.known = Known::some;
    if (!entries) return rules;
    for (const PlainEntry& entry : *entries) {
      if (!take_rule(entry, rules)) return rules;
    }
    rules.known = Known::all;
  }
  return rules;
}

Result<void> RegistryRules::check(std::string_view registry) const {
  const auto fits = [&](const std::string& one) {
    if (one.starts_with("*."))
      return registry.ends_with(std::string_view(one).substr(1)) && registry.size() >= one.size();
    const auto host = parse_registry(one);
    return host && *host == registry;
  };
  const bool is_blocked = std::ranges::find(blocked, registry) != blocked.end();
  if (!is_blocked && (allowed.empty() || std::ranges::any_of(allowed, fits))) return {};
  return Error(ErrorKind::refused, "this site does not allow registry " + in_quotes(registry))
      .hint("push the image to an allowed registry, or ask the administrator");
}

Result<void> SubmitRules::check(const std::vector<std::string>& features,
                                const std::string& image) const {
  SPC_TRY(check_features(features, features_off));
  if (image.empty()) return {};  // a container by its name
  const auto location = SPC_TRY(ImageLocation::parse(image, default_registry));
  const bool at_registry = location.kind == ImageLocation::Kind::registry;
  // The site's importer knows registries of its own.
  if (at_registry ? !importer.empty() : location.kind != ImageLocation::Kind::remote_file)
    return {};
  SPC_TRY_DURING("pull image " + in_quotes(location.canonical()),
                 registries.check(location.name.registry));
  return {};
}

Result<void> check_features(const std::vector<std::string>& used,
                            const std::vector<std::string>& off) {
  for (const std::string& feature : used) {
    if (std::ranges::find(off, feature) == off.end()) continue;
    return Error(ErrorKind::refused, formatted("--{}: not allowed by this site", feature))
        .hint("drop it, or ask the administrator about features_off in config.toml");
  }
  return {};
}

}  // namespace spc
