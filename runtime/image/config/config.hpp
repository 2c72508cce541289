#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/reference/request.hpp"
#include "launch/policy/site_policy.hpp"

namespace spc {

/// Configuration of one registry: `[registries."HOST[:PORT]"]`.
struct RegistryConfig {
  bool insecure = false;                   ///< use plain HTTP
  std::string ca;                          ///< CA certificates trusted in addition to the system's; empty: none
  bool blocked = false;                    ///< nobody may use it
  std::vector<std::string> mirrors;        ///< HOST[:PORT][/PREFIX] to try before it, without credentials
  bool mirror_tags = false;                ///< mirrors may resolve tags
  std::vector<std::string> login_servers;  ///< HOST[:PORT] that may receive its users' credentials
  bool require_digest = false;             ///< only references with a digest
};

/// Limits of the image store: `[store]`.
struct StoreConfig {
  std::uint64_t max_size{};
  std::uint32_t high_watermark{}, low_watermark{}, max_imports_per_user{};

  StoreConfig();
};

/// config.toml, checked. Its rows, and those of SitePolicy, say what each key is.
struct Config {
  std::string default_registry;
  bool writable{}, mount_home{};
  std::string upper_size;  ///< a percentage of the memory, or bytes with K, M, G or T, as tmpfs takes it
  std::string squashfs;   ///< auto, kernel or fuse
  PullPolicy pull{};
  std::int64_t public_ttl{}, private_ttl{}, tag_ttl{};  ///< seconds
  std::uint32_t max_parallel_layers{};
  std::uint64_t max_image_bytes{};
  std::int64_t stall_timeout{};  ///< seconds
  std::string https_proxy;  ///< URL; for the site's store, where users' proxies are not used
  std::string http_proxy;
  std::vector<std::string> no_proxy;            ///< hosts and domains to contact directly
  std::vector<std::string> allowed_registries;  ///< HOST[:PORT] or *.DOMAIN; empty: all
  StoreConfig store;
  SitePolicy site;  ///< for the user's side of a start
  std::map<std::string, RegistryConfig, std::less<>> registries;

  Config();

  /// The configuration of HOST[:PORT], or the defaults.
  [[nodiscard]] const RegistryConfig& registry(std::string_view host) const;
  /// Whether this registry may be used.
  [[nodiscard]] bool allows(std::string_view host) const;
};

/// Refuses a registry that this site does not allow.
Result<void> check_allowed(const Config& config, std::string_view registry);

/// Reads the configuration file `config.toml` and then the files `*.toml` in the directory `config.d` beside it, in
/// order of their names: a key or list in a later file replaces that of an earlier one, tables are merged. Missing keys have
/// their defaults. Files and directories must be owned by root (or `owner`) and writable by the owner only, including parents
/// (base/trusted_file.hpp); an unknown key, a wrong type or a value out of range is an error with its line.
Result<Config> read_config(const std::string& path, uid_t owner = ::geteuid());

/// The same for text; `name` names the file in messages.
Result<Config> parse_config(const std::string& text, const std::string& name);
/// Values in the text replace existing ones.
Result<void> add_config(Config& config, const std::string& text, const std::string& name);

/// Keys at the top of the file, besides those of SitePolicy.
std::span<const KeyRow<Config>> config_keys();
/// Keys of the table [store].
std::span<const KeyRow<StoreConfig>> store_config_keys();
/// Keys of a [registries."HOST[:PORT]"] table.
std::span<const KeyRow<RegistryConfig>> registry_config_keys();

}  // namespace spc
