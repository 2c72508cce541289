#include <algorithm>
#include <limits>

#include "image/config/config.hpp"
#include "image/reference/reference.hpp"

namespace spc {
namespace {

bool is_byte_size(const std::string& text) { return text == "0" || (is_upper_size(text) && !text.ends_with('%')); }

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

bool is_plain_host(const std::string& text) {
  return !text.empty() && text.find_first_of(", ") == std::string::npos;
}

bool is_absolute_path(const std::string& text) { return text.starts_with('/'); }

constexpr std::int64_t kYear = 366LL * 24 * 3600;

constexpr KeyRow<Config> kConfigKeys[] = {
    {"default_registry", "text", "docker.io",
     "registry of image names without one",
     &Config::default_registry, is_host,
     "expected HOST or HOST:PORT"},
    {"writable", "yes or no", "true",
     "make containers writable unless the job says otherwise",
     &Config::writable},
    {"mount_home", "yes or no", "false",
     "mount the user's home directory unless the job says otherwise",
     &Config::mount_home},
    {"upper_size", "size", "50%",
     "size limit of the writable tmpfs layer: a percentage of the memory, or bytes with K, M, G, T",
     &Config::upper_size, is_upper_size, kUpperSizeRule},
    {"squashfs", "auto, kernel, fuse", "auto",
     "how layers are read: by the kernel, by a process of the user, or by the kernel if it can",
     &Config::squashfs},
    {"pull", "newer, missing, always, never", "newer",
     "when to query the registry for an image that the node has",
     &Config::pull},
    {"public_ttl", "seconds", "3600",
     "how long an image pulled without credentials is public without asking again",
     &Config::public_ttl, nullptr, nullptr, nullptr, kYear},
    {"private_ttl", "seconds", "3600",
     "how long a user may start a private image after the registry last granted access",
     &Config::private_ttl, nullptr, nullptr, nullptr, kYear},
    {"tag_ttl", "seconds", "0",
     "how long a resolved tag is not resolved again",
     &Config::tag_ttl, nullptr, nullptr, nullptr,
     kYear},
    {"max_parallel_layers", "number", "0",
     "layers converted in parallel; 0: one per core, at most 4",
     &Config::max_parallel_layers, nullptr, nullptr, nullptr, 64},
    {"max_image_bytes", "bytes", "0",
     "size limit of a compressed image; 0: no limit",
     &Config::max_image_bytes, nullptr, nullptr, nullptr, std::numeric_limits<std::int64_t>::max()},
    {"stall_timeout", "seconds", "30",
     "abort a transfer that stays below 1 KiB/s for this long",
     &Config::stall_timeout, nullptr,
     nullptr, nullptr, 3600},
    {"https_proxy", "URL", "",
     "proxy for registries and their redirects over https",
     &Config::https_proxy, is_proxy,
     "expected http://HOST:PORT"},
    {"http_proxy", "URL", "",
     "proxy for plain HTTP",
     &Config::http_proxy, is_proxy, "expected http://HOST:PORT"},
    {"no_proxy", "list of hosts", "",
     "hosts and domains to contact without a proxy",
     &Config::no_proxy, is_plain_host,
     "expected one host or domain in each text"},
    {"allowed_registries", "list of hosts", "",
     "`HOST[:PORT]` or `*.DOMAIN` of registries that may be used; empty: all",
     &Config::allowed_registries, is_host_or_domain,
     "expected HOST[:PORT] or *.DOMAIN"},
};

constexpr KeyRow<StoreConfig> kStoreKeys[] = {
    {"max_size", "size", "0",
     "size limit of all images: bytes with K, M, G, T; 0: no limit",
     &StoreConfig::max_size, is_byte_size,
     "expected a number of bytes with K, M, G or T behind it"},
    {"high_watermark", "percent", "90",
     "evict images when the usage of the file system would exceed this",
     &StoreConfig::high_watermark, nullptr, nullptr, nullptr, 100},
    {"low_watermark", "percent", "80",
     "stop evicting at this usage",
     &StoreConfig::low_watermark, nullptr, nullptr, nullptr, 100},
    {"max_imports_per_user", "number", "4",
     "concurrent pulls per user on this node; further ones wait",
     &StoreConfig::max_imports_per_user, nullptr, nullptr, nullptr, 64},
};

constexpr KeyRow<RegistryConfig> kRegistryKeys[] = {
    {"insecure", "yes or no", "false", "use plain HTTP", &RegistryConfig::insecure},
    {"ca", "file", "",
     "CA certificates (PEM) trusted in addition to the system's",
     &RegistryConfig::ca, is_absolute_path,
     "expected an absolute path"},
    {"blocked", "yes or no", "false", "refuse this registry", &RegistryConfig::blocked},
    {"mirrors", "list of hosts", "",
     "`HOST[:PORT][/PREFIX]` to try before the registry, in this order, without credentials",
     &RegistryConfig::mirrors, is_mirror,
     "expected HOST[:PORT][/PREFIX]"},
    {"mirror_tags", "yes or no", "false", "let mirrors resolve tags", &RegistryConfig::mirror_tags},
    {"login_servers", "list of hosts", "",
     "`HOST[:PORT]` on other domains that may receive credentials",
     &RegistryConfig::login_servers, is_host,
     "expected HOST or HOST:PORT"},
    {"require_digest", "yes or no", "false",
     "refuse image names without a digest",
     &RegistryConfig::require_digest},
};

}  // namespace

std::span<const KeyRow<Config>> config_keys() { return kConfigKeys; }
std::span<const KeyRow<StoreConfig>> store_config_keys() { return kStoreKeys; }
std::span<const KeyRow<RegistryConfig>> registry_config_keys() { return kRegistryKeys; }

Config::Config() { set_defaults(config_keys(), *this); }
StoreConfig::StoreConfig() { set_defaults(store_config_keys(), *this); }

}  // namespace spc
