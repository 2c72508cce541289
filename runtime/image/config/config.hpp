#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/config/site_config.hpp"
#include "image/reference/request.hpp"

namespace spc {

/// What the site says about one registry: `[registries."HOST[:PORT]"]`.
struct RegistryConfig {
  bool insecure = false;                   ///< spoken to by plain HTTP
  std::string ca;                          ///< file of certificates trusted besides the system's; empty: none
  bool blocked = false;                    ///< nobody may use it here
  std::vector<std::string> mirrors;        ///< HOST[:PORT][/PREFIX], asked before it, without credentials
  bool mirror_tags = false;                ///< they may say what a tag stands for
  std::vector<std::string> login_servers;  ///< HOST[:PORT] that may see its users' credentials
  bool require_digest = false;             ///< only references with a digest
};

/// How the image store keeps itself in bounds: `[store]`.
struct StoreConfig {
  std::uint64_t max_size = 0;
  std::uint32_t high_watermark = 90;
  std::uint32_t low_watermark = 80;
  std::uint32_t max_imports_per_user = 4;
};

/// config.toml, checked. CONFIG.md explains the keys; config_keys() is the list both are tested against.
struct Config {
  std::string default_registry = "docker.io";
  bool writable = true;
  bool mount_home = false;
  std::string upper_size = "50%";  ///< a percentage of the memory, or bytes with K, M, G or T: tmpfs takes it as it is
  std::string squashfs = "auto";   ///< auto, kernel or fuse
  PullPolicy pull = PullPolicy::newer;
  std::int64_t public_ttl = 3600;
  std::int64_t private_ttl = 3600;
  std::int64_t tag_ttl = 0;
  std::uint32_t max_parallel_layers = 0;
  std::uint64_t max_image_bytes = 0;
  std::int64_t stall_timeout = 30;
  std::string https_proxy;  ///< URL; for the site's store, where users' proxies do not count
  std::string http_proxy;
  std::vector<std::string> no_proxy;            ///< hosts and domains that are spoken to without
  std::vector<std::string> allowed_registries;  ///< HOST[:PORT] or *.DOMAIN; empty: all
  StoreConfig store;
  SiteConfig site;  ///< for the user's side of a start
  std::map<std::string, RegistryConfig, std::less<>> registries;

  /// What was said about HOST[:PORT], or the defaults.
  [[nodiscard]] const RegistryConfig& registry(std::string_view host) const;
  /// Whether anybody may use this registry here.
  [[nodiscard]] bool allows(std::string_view host) const;
};

/// Refuses a registry that this site does not allow.
Result<void> check_allowed(const Config& config, std::string_view registry);

/// Reads a configuration file, `config.toml`, and after it the files `*.toml` of the directory `config.d` beside it in the
/// order of their names: a key or a list in a later file replaces that of an earlier one, tables are joined. What is missing
/// has its default. Files and directories must belong to root (or to `owner`) and nobody else may be able to write them or
/// what they lie in (base/trusted_file.hpp); an unknown key, a wrong type or a value out of range is an error with its line.
Result<Config> read_config(const std::string& path, uid_t owner = ::geteuid());

/// The same for text; `name` stands for the file in messages.
Result<Config> parse_config(const std::string& text, const std::string& name);
/// What the text says takes the place of what is there.
Result<void> add_config(Config& config, const std::string& text, const std::string& name);

struct ConfigKey {
  const char* name;
  const char* type;
  const char* default_text;
  const char* meaning;
};
/// Keys at the top of the file.
std::span<const ConfigKey> config_keys();
/// Keys of the table [store].
std::span<const ConfigKey> store_config_keys();
/// Keys of a [registries."HOST[:PORT]"] table.
std::span<const ConfigKey> registry_config_keys();

}  // namespace spc
