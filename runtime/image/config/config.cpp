#include "image/config/config.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <toml.hpp>

#include "base/format.hpp"
#include "base/text.hpp"
#include "image/config/config_table.hpp"
#include "image/reference/reference.hpp"
#include "launch/policy/config_files.hpp"

namespace spc {
namespace {

std::vector<std::string_view> names_of(const auto& rows) {
  std::vector<std::string_view> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

Result<void> read_registries(Config& config, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find("registries");
  if (found == root.as_table().end()) return {};
  const auto wrong = [&](const toml::value& value, const std::string& why) {
    return config_error(file, value, why);
  };
  std::set<std::string> here;
  if (!found->second.is_table())
    return wrong(found->second, "registries: expected tables [registries.\"HOST:PORT\"]");
  for (const auto& [host, value] : found->second.as_table()) {
    if (!value.is_table())
      return wrong(value,
                   formatted("registries.{}: expected to be a table (hint: put the host in quotes)",
                             printable(host)));
    auto name = parse_registry(host);
    if (!name)
      return wrong(value, formatted("registries.{}: is not HOST or HOST:PORT", in_quotes(host)));
    if (!here.insert(*name).second) {
      return wrong(value, formatted("registries.{}: duplicate entry under different names",
                                    in_quotes(host)));
    }
    RegistryConfig& registry = config.registries[*name];
    const TableReader reader(file, value, "registries." + in_quotes(host) + ".");
    SPC_TRY(reader.check_keys(names_of(kRegistryKeys)));
    SPC_TRY(reader.read_all(kRegistryKeys, registry));
  }
  return {};
}

Result<void> read_store(StoreConfig& store, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find("store");
  if (found == root.as_table().end()) return {};
  const auto wrong = [&](const std::string& why) {
    return config_error(file, found->second, "store: " + why);
  };
  if (!found->second.is_table()) return wrong("expected to be a table [store]");
  const TableReader reader(file, found->second, "store.");
  SPC_TRY(reader.check_keys(names_of(kStoreKeys)));
  SPC_TRY(reader.read_all(kStoreKeys, store));
  if (store.low_watermark > store.high_watermark)
    return wrong("low_watermark is above high_watermark");
  if (store.max_imports_per_user == 0)
    return wrong("max_imports_per_user: expected a number from 1 to 64");
  return {};
}

/// A table of the file, whose keys have nothing to do with each other.
Result<void> read_table(auto& into, const auto& rows, const std::string& name,
                        const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find(name);
  if (found == root.as_table().end()) return {};
  if (!found->second.is_table()) {
    return config_error(file, found->second,
                        formatted("{}: expected to be a table [{}]", name, name));
  }
  const TableReader reader(file, found->second, name + ".");
  SPC_TRY(reader.check_keys(names_of(rows)));
  return reader.read_all(rows, into);
}

/// Tables with names of the site's choice.
Result<void> read_nodes(std::map<std::string, NodesConfig, std::less<>>& into,
                        const std::string& what, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find(what);
  if (found == root.as_table().end()) return {};
  if (!found->second.is_table())
    return config_error(file, found->second,
                        formatted("{}: expected tables [{}.\"NAME\"]", what, what));
  for (const auto& [name, value] : found->second.as_table()) {
    if (!value.is_table())
      return config_error(file, value,
                          formatted("{}.{}: expected to be a table", what, printable(name)));
    const TableReader reader(file, value, what + "." + in_quotes(name) + ".");
    SPC_TRY(reader.check_keys(names_of(kNodesKeys)));
    SPC_TRY(reader.read_all(kNodesKeys, into[name]));
  }
  return {};
}

/// What a file says takes the place of what is there.
Result<void> add_to(Config& config, const toml::value& root, const std::string& file) {
  const TableReader reader(file, root, "");
  auto known = names_of(kConfigKeys);
  for (const std::string_view name : names_of(kSiteKeys)) known.push_back(name);
  known.insert(known.end(),
               {"registries", "store", "shared", "peers", "nodes", "partitions", "features"});
  SPC_TRY(reader.check_keys(known));
  SPC_TRY(reader.read_all(kConfigKeys, config));
  SPC_TRY(read_store(config.store, root, file));
  SPC_TRY(read_table(config.shared, kSharedKeys, "shared", root, file));
  SPC_TRY(read_table(config.peers, kPeersKeys, "peers", root, file));
  SPC_TRY(read_table(config.nodes, kNodesKeys, "nodes", root, file));
  SPC_TRY(read_nodes(config.partitions, "partitions", root, file));
  SPC_TRY(read_nodes(config.features, "features", root, file));
  SPC_TRY(reader.read_all(kSiteKeys, config.site));
  return read_registries(config, root, file);
}

/// toml11 draws the place of a syntax error over several lines; the line's number and the reason
/// are enough. Some versions name a function before the reason.
std::string not_valid(std::string_view what) {
  const auto skip = [&](std::size_t length) { what.remove_prefix(std::min(length, what.size())); };
  what = what.substr(0, what.find('\n'));
  if (what.starts_with("[error] ")) skip(8);
  if (what.starts_with("toml::")) skip(what.find(": ") + 2);
  return what.empty() ? "not valid TOML" : "not valid TOML: " + printable(what);
}

}  // namespace

Config::Config() { set_defaults<Config>(kConfigKeys, *this); }
StoreConfig::StoreConfig() { set_defaults<StoreConfig>(kStoreKeys, *this); }
NodesConfig::NodesConfig() { set_defaults<NodesConfig>(kNodesKeys, *this); }
PeersConfig::PeersConfig() { set_defaults<PeersConfig>(kPeersKeys, *this); }
SharedConfig::SharedConfig() { set_defaults<SharedConfig>(kSharedKeys, *this); }

const RegistryConfig& Config::registry(std::string_view host) const {
  static const RegistryConfig kDefault;
  const auto found = registries.find(host);
  return found == registries.end() ? kDefault : found->second;
}

SubmitRules Config::submit_rules() const {
  SubmitRules rules{.known = SubmitRules::Known::all,
                    .default_registry = default_registry,
                    .importer = site.importer,
                    .check_at_submit = site.check_at_submit,
                    .pull = pull,
                    .features_off = site.features_off,
                    .registries = {.allowed = allowed_registries, .blocked = {}},
                    .pull_at_submit = shared.pull_at_submit,
                    .srun_ports = PortRange::parse(peers.srun_ports).value_or(PortRange()),
                    .fanout = peers.fanout};
  for (const auto& [host, registry] : registries) {
    if (registry.blocked) rules.registries.blocked.push_back(host);
  }
  return rules;
}

Result<void> add_config(Config& config, const std::string& text, const std::string& name) {
  // toml11 3.7 reads beyond its memory to name other bytes in a string.
  if (const std::size_t good = utf8_bytes(text); good != text.size()) {
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(good), '\n') + 1;
    return Error(ErrorKind::invalid,
                 formatted("configuration {}, line {}: not UTF-8", in_quotes(name), line));
  }
  try {
    std::istringstream stream(text);
    return add_to(config, toml::parse(stream, name), name);
  } catch (const toml::syntax_error& error) {
    // `--> name` and ` 3 | key = ` follow the reason.
    const std::string what = error.what();
    std::string line;
    if (const std::size_t bar = what.find(" | "); bar != std::string::npos) {
      const std::size_t start = what.find_last_of("\n ", bar - 1);
      if (start != std::string::npos) line = ", line " + what.substr(start + 1, bar - start - 1);
    }
    return Error(ErrorKind::invalid,
                 formatted("configuration {}{}: {}", in_quotes(name), line, not_valid(what)));
  } catch (const std::exception& error) {
    return Error(ErrorKind::invalid,
                 formatted("configuration {}: {}", in_quotes(name), not_valid(error.what())));
  }
}

Result<Config> parse_config(const std::string& text, const std::string& name) {
  Config config;
  SPC_TRY(add_config(config, text, name));
  return config;
}

Result<Config> read_config(const std::string& path, uid_t owner) {
  Config config;
  for (const ConfigFile& file : SPC_TRY(read_config_files(path, owner)))
    SPC_TRY(add_config(config, file.text, file.path));
  return config;
}

}  // namespace spc
