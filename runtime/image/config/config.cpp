#include "image/config/config.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <toml.hpp>

#include "image/config/config_table.hpp"
#include "image/reference/reference.hpp"

namespace spc {
namespace {

bool is_byte_size(const std::string& text) { return text == "0" || (is_upper_size(text) && !text.ends_with('%')); }

/// Of a text that is_byte_size().
std::uint64_t bytes_in(const std::string& text) {
  const std::size_t unit = std::string_view("KMGTkmgt").find(text.back());
  const std::uint64_t number = std::stoull(text);
  return unit == std::string_view::npos ? number : number << (10 * (unit % 4 + 1));
}

bool is_host(const std::string& text) { return parse_registry(text).has_value(); }

bool is_mirror(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (!is_host(text.substr(0, slash))) return false;
  return slash == std::string::npos || ImageReference::parse("registry.invalid/" + text.substr(slash + 1)).has_value();
}

bool is_host_or_domain(const std::string& text) { return is_host(text.starts_with("*.") ? text.substr(2) : text); }

/// A proxy with a port; without a scheme http is meant.
bool is_proxy(const std::string& text) {
  std::string_view rest = text;
  for (const std::string_view scheme : {"http://", "https://", "socks5h://", "socks5://"}) {
    if (!rest.starts_with(scheme)) continue;
    rest.remove_prefix(scheme.size());
    break;
  }
  const auto plain = [](char c) { return c > 0x20 && c < 0x7f; };
  return !rest.empty() && rest.find("://") == std::string_view::npos && std::all_of(rest.begin(), rest.end(), plain);
}

constexpr std::int64_t kYear = 366LL * 24 * 3600;

Result<void> read_registries(Config& config, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find("registries");
  if (found == root.as_table().end()) return {};
  const auto wrong = [&](const toml::value& value, const std::string& why) { return config_error(file, value, why); };
  std::set<std::string> here;
  if (!found->second.is_table()) return wrong(found->second, "registries: expected tables [registries.\"HOST:PORT\"]");
  for (const auto& [host, value] : found->second.as_table()) {
    if (!value.is_table())
      return wrong(value, "registries." + printable(host) + ": expected to be a table (hint: put the host in quotes)");
    auto name = parse_registry(host);
    if (!name) return wrong(value, "registries." + in_quotes(host) + ": is not HOST or HOST:PORT");
    if (!here.insert(*name).second) {
      return wrong(value, "registries." + in_quotes(host) + ": duplicate entry under different names");
    }
    RegistryConfig& registry = config.registries[*name];
    const TableReader reader(file, value, "registries." + in_quotes(host) + ".", registry_config_keys());
    SPC_TRY(reader.check_keys());
    SPC_TRY(reader.read("insecure", registry.insecure));
    SPC_TRY(reader.read("blocked", registry.blocked));
    SPC_TRY(reader.read("mirrors", registry.mirrors, is_mirror, "expected HOST[:PORT][/PREFIX]"));
    SPC_TRY(reader.read("mirror_tags", registry.mirror_tags));
    SPC_TRY(reader.read("login_servers", registry.login_servers, is_host, "expected HOST or HOST:PORT"));
    SPC_TRY(reader.read("require_digest", registry.require_digest));
    SPC_TRY(reader.read(
        "ca", registry.ca, [](const std::string& text) { return text.starts_with('/'); }, "expected an absolute path"));
  }
  return {};
}

Result<void> read_store(StoreConfig& store, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find("store");
  if (found == root.as_table().end()) return {};
  const auto wrong = [&](const std::string& why) { return config_error(file, found->second, "store: " + why); };
  if (!found->second.is_table()) return wrong("expected to be a table [store]");
  const TableReader reader(file, found->second, "store.", store_config_keys());
  SPC_TRY(reader.check_keys());
  std::string max_size = std::to_string(store.max_size);
  SPC_TRY(reader.read("max_size", max_size, is_byte_size, "expected a number of bytes with suffix K, M, G or T"));
  store.max_size = bytes_in(max_size);
  SPC_TRY(reader.read("high_watermark", store.high_watermark, 100));
  SPC_TRY(reader.read("low_watermark", store.low_watermark, 100));
  if (store.low_watermark > store.high_watermark) return wrong("low_watermark is above high_watermark");
  SPC_TRY(reader.read("max_imports_per_user", store.max_imports_per_user, 64));
  if (store.max_imports_per_user == 0) return wrong("max_imports_per_user: expected a number from 1 to 64");
  return {};
}

constexpr std::array<std::string_view, 3> kSquashfs{"auto", "kernel", "fuse"};
constexpr std::array<std::string_view, 4> kPull{"newer", "missing", "always", "never"};

/// What a file says takes the place of what is there.
Result<void> add_to(Config& config, const toml::value& root, const std::string& file) {
  const TableReader reader(file, root, "", config_keys());
  SPC_TRY(reader.check_keys({"registries", "store"}));
  SPC_TRY(reader.read("default_registry", config.default_registry, is_host, "expected HOST or HOST:PORT"));
  SPC_TRY(reader.read("writable", config.writable));
  SPC_TRY(reader.read("mount_home", config.mount_home));
  SPC_TRY(reader.read("upper_size", config.upper_size, is_upper_size, kUpperSizeRule));
  SPC_TRY(reader.read_word("squashfs", config.squashfs, kSquashfs));
  std::string pull = name_of(config.pull);
  SPC_TRY(reader.read_word("pull", pull, kPull));
  config.pull = *parse_pull_policy(pull);
  SPC_TRY(reader.read("public_ttl", config.public_ttl, kYear));
  SPC_TRY(reader.read("private_ttl", config.private_ttl, kYear));
  SPC_TRY(reader.read("tag_ttl", config.tag_ttl, kYear));
  SPC_TRY(reader.read("max_parallel_layers", config.max_parallel_layers, 64));
  SPC_TRY(reader.read("max_image_bytes", config.max_image_bytes, std::numeric_limits<std::int64_t>::max()));
  SPC_TRY(reader.read("stall_timeout", config.stall_timeout, 3600));
  SPC_TRY(reader.read("https_proxy", config.https_proxy, is_proxy, "expected http://HOST:PORT"));
  SPC_TRY(reader.read("http_proxy", config.http_proxy, is_proxy, "expected http://HOST:PORT"));
  SPC_TRY(reader.read(
      "no_proxy", config.no_proxy,
      [](const std::string& text) { return !text.empty() && text.find_first_of(", ") == std::string::npos; },
      "expected one host or domain in each text"));
  SPC_TRY(reader.read("allowed_registries", config.allowed_registries, is_host_or_domain, "expected HOST[:PORT] or *.DOMAIN"));
  SPC_TRY(read_store(config.store, root, file));
  SPC_TRY(read_site(reader, config.site));
  return read_registries(config, root, file);
}

/// toml11 draws the place of a syntax error over several lines; the line's number and the reason are enough.
std::string first_reason(std::string_view what) {
  const auto skip = [&](std::string_view prefix) {
    if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
  };
  skip("[error] ");
  const std::string_view reason = what.substr(0, what.find('\n'));
  return reason.ends_with(": ") ? "not a TOML value" : printable(reason);
}

}  // namespace

const RegistryConfig& Config::registry(std::string_view host) const {
  static const RegistryConfig kDefault;
  const auto found = registries.find(host);
  return found == registries.end() ? kDefault : found->second;
}

bool Config::allows(std::string_view host) const {
  if (registry(host).blocked) return false;
  const auto fits = [&](const std::string& allowed) {
    if (allowed.starts_with("*.")) return host.ends_with(std::string_view(allowed).substr(1)) && host.size() >= allowed.size();
    return parse_registry(allowed).value() == host;
  };
  return allowed_registries.empty() || std::any_of(allowed_registries.begin(), allowed_registries.end(), fits);
}

Result<void> check_allowed(const Config& config, std::string_view registry) {
  if (config.allows(registry)) return {};
  return Error(ErrorKind::refused, "this site does not allow registry " + in_quotes(registry))
      .hint("push the image to an allowed registry, or ask the administrator");
}

Result<void> add_config(Config& config, const std::string& text, const std::string& name) {
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
    return Error(ErrorKind::invalid, "configuration " + in_quotes(name) + line + ": " + first_reason(what));
  } catch (const std::exception& error) {
    return Error(ErrorKind::invalid, "configuration " + in_quotes(name) + ": " + first_reason(error.what()));
  }
}

Result<Config> parse_config(const std::string& text, const std::string& name) {
  Config config;
  SPC_TRY(add_config(config, text, name));
  return config;
}

}  // namespace spc
