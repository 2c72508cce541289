#pragma once

#include <unistd.h>

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/process/kernel.hpp"
#include "base/result.hpp"
#include "image/config/config_checks.hpp"
#include "image/reference/request.hpp"
#include "launch/policy/site_policy.hpp"
#include "launch/policy/submit_rules.hpp"

namespace spc {

/// Configuration of one registry: `[registries."HOST[:PORT]"]`.
struct RegistryConfig {
  bool insecure = false;  ///< use plain HTTP
  std::string ca;         ///< CA certificates trusted in addition to the system's; empty: none
  bool blocked = false;   ///< nobody may use it
  std::vector<std::string> mirrors;  ///< HOST[:PORT][/PREFIX] to try before it, without credentials
  bool mirror_tags = false;          ///< mirrors may resolve tags
  std::vector<std::string> login_servers;  ///< HOST[:PORT] that may receive its users' credentials
  bool require_digest = false;             ///< only references with a digest
};

inline constexpr KeyRow<RegistryConfig> kRegistryKeys[] = {
    {"insecure", "yes or no", "false", "use plain HTTP", &RegistryConfig::insecure},
    {"ca", "file", "", "CA certificates (PEM) trusted in addition to the system's",
     &RegistryConfig::ca, key::is_absolute_or_none, "expected an absolute path"},
    {"blocked", "yes or no", "false", "refuse this registry", &RegistryConfig::blocked},
    {"mirrors", "list of hosts", "",
     "`HOST[:PORT][/PREFIX]` to try before the registry, in this order, without credentials",
     &RegistryConfig::mirrors, key::is_mirror, "expected HOST[:PORT][/PREFIX]"},
    {"mirror_tags", "yes or no", "false", "let mirrors resolve tags", &RegistryConfig::mirror_tags},
    {"login_servers", "list of hosts", "",
     "`HOST[:PORT]` on other domains that may receive credentials", &RegistryConfig::login_servers,
     key::is_host, "expected HOST or HOST:PORT"},
    {"require_digest", "yes or no", "false", "refuse image names without a digest",
     &RegistryConfig::require_digest},
};

/// Limits of the image store: `[store]`.
struct StoreConfig {
  std::uint64_t max_size{};
  std::uint32_t high_watermark{}, low_watermark{}, max_imports_per_user{},
      max_containers_per_user{};
  std::int64_t container_ttl{};  ///< seconds

  StoreConfig();
};

inline constexpr KeyRow<StoreConfig> kStoreKeys[] = {
    {"max_size", "size", "0", "size limit of all images: bytes with K, M, G, T; 0: no limit",
     &StoreConfig::max_size, key::is_byte_size,
     "expected a number of bytes with K, M, G or T behind it"},
    {"high_watermark", "percent", "90",
     "evict images when the usage of the file system would exceed this",
     &StoreConfig::high_watermark, nullptr, nullptr, nullptr, 100},
    {"low_watermark", "percent", "80", "stop evicting at this usage", &StoreConfig::low_watermark,
     nullptr, nullptr, nullptr, 100},
    {"max_imports_per_user", "number", "4",
     "concurrent pulls per user on this node; further ones wait",
     &StoreConfig::max_imports_per_user, nullptr, nullptr, nullptr, 64},
    {"max_containers_per_user", "number", "100",
     "containers with a name that a user can have on this node; 0: no limit",
     &StoreConfig::max_containers_per_user, nullptr, nullptr, nullptr, 100000},
    {"container_ttl", "seconds", "0",
     "how long a container with a name is kept after its last use; 0: no limit",
     &StoreConfig::container_ttl, nullptr, nullptr, nullptr, key::kYear},
};

/// The store of blobs that all nodes see: `[shared]`.
struct SharedConfig {
  std::string directory;
  std::string keep;            ///< blobs or layers
  std::string pull_at_submit;  ///< a program
  std::uint64_t max_size{};

  SharedConfig();
};

inline constexpr KeyRow<SharedConfig> kSharedKeys[] = {
    {"directory", "directory", "",
     "on a file system that all nodes see: what one node pulls, the others take from there; empty: "
     "none",
     &SharedConfig::directory, key::is_absolute_or_none, "expected an absolute path"},
    {"keep", "blobs, layers", "blobs",
     "what is kept there: blobs as registries gave them, which each node converts and checks; or "
     "converted layers, too, about which nodes then believe each other",
     &SharedConfig::keep},
    {"max_size", "size", "0", "size limit of what is in it: bytes with K, M, G, T; 0: no limit",
     &SharedConfig::max_size, key::is_byte_size,
     "expected a number of bytes with K, M, G or T behind it"},
    {"pull_at_submit", "program", "",
     "what sbatch, salloc and srun start when a job is submitted, as its user and in the "
     "background, with the image's name: to bring it there while the job waits",
     &SharedConfig::pull_at_submit, key::is_absolute_or_none,
     "expected the absolute path of a program"},
};

/// How the nodes of a step take an image from each other: `[peers]`.
struct PeersConfig {
  bool enabled{};
  std::uint32_t fanout{};
  std::vector<std::string> networks;  ///< ADDRESS/BITS
  std::string ports, srun_ports;      ///< FIRST-LAST

  PeersConfig();
};

inline constexpr KeyRow<PeersConfig> kPeersKeys[] = {
    {"enabled", "yes or no", "true",
     "let the nodes of a step take an image's blobs from each other: one node pulls from the "
     "registry",
     &PeersConfig::enabled},
    {"fanout", "number", "2", "how many nodes one node serves; two more while theirs has failed",
     &PeersConfig::fanout, nullptr, nullptr, nullptr, 16},
    {"networks", "list of networks", "",
     "`ADDRESS/BITS` of networks whose nodes may be asked; empty: those that the node itself is in",
     &PeersConfig::networks, key::is_network, "expected ADDRESS/BITS"},
    {"ports", "port range", "", "`FIRST-LAST`, where nodes answer each other; empty: any free port",
     &PeersConfig::ports, key::is_port_range_or_none, "expected FIRST-LAST, from 1024 to 65535"},
    {"srun_ports", "port range", "",
     "`FIRST-LAST`, where srun answers the nodes of its step: two are needed, for errors and for "
     "images; empty: any free port",
     &PeersConfig::srun_ports, key::is_port_range_or_none,
     "expected FIRST-LAST, from 1024 to 65535"},
};

/// What nodes have, for the check of an image before its job is submitted: `[nodes]` says so of all
/// nodes, `[partitions."NAME"]` and `[features."NAME"]` of some. Empty, or any: not known.
struct NodesConfig {
  std::string arch, gpu, driver, glibc;
  std::vector<std::string> pmi;

  NodesConfig();
};

inline constexpr KeyRow<NodesConfig> kNodesKeys[] = {
    {"arch", "architecture", "",
     "architecture of the nodes as images name it: amd64, arm64; other images are refused",
     &NodesConfig::arch, key::is_architecture_or_none,
     "expected an architecture such as amd64 or arm64"},
    {"gpu", "any, nvidia, amd, intel, none", "any",
     "vendor of their GPUs: images for another vendor's are refused", &NodesConfig::gpu},
    {"driver", "version", "",
     "version of the NVIDIA driver: images whose NVIDIA_REQUIRE_* it does not satisfy are refused",
     &NodesConfig::driver, key::is_version_or_none, "expected a version such as 550.54.15"},
    {"glibc", "version", "",
     "oldest glibc that works with what the nodes add to containers: images with an older one are "
     "refused",
     &NodesConfig::glibc, key::is_version_or_none, "expected a version such as 2.28"},
    {"pmi", "list of names", "",
     "types that `srun --mpi` takes there: a warning for images whose MPI speaks none of them",
     &NodesConfig::pmi, key::is_mpi_type, "expected a type as srun --mpi=list prints them"},
};

/// config.toml, checked. Each key is a member and a row of a table; those of SitePolicy are keys,
/// too.
struct Config {
  std::string default_registry;
  bool writable{}, mount_home{};
  std::string upper_size;    ///< a percentage of the job's memory, or bytes with K, M, G or T, as
                             ///< tmpfs takes it
  std::string squashfs;      ///< auto, kernel, copy or fuse
  std::string layer_memory;  ///< a percentage of the node's memory, or bytes with K, M, G or T
  PullPolicy pull{};
  std::int64_t public_ttl{}, private_ttl{}, tag_ttl{}, job_tag_ttl{};  ///< seconds
  std::uint32_t max_parallel_layers{};
  std::uint32_t import_cpus{};
  std::uint64_t import_memory{};
  std::string layer_compression;  ///< of layers that are still to be converted
  std::string layer_format;
  /// Whether the kernel may read squashfs layers from copies, where the store allows it.
  [[nodiscard]] bool wants_copies() const {
    return squashfs == "copy" || (squashfs == "auto" && running_kernel() < kMapsSquashfs);
  }
  /// Whatever the kernel is.
  [[nodiscard]] bool wants_squashfs() const {
    return layer_compression == "zstd" || layer_format == "squashfs";
  }
  std::uint64_t max_image_bytes{};
  std::int64_t stall_timeout{};  ///< seconds
  std::string https_proxy;       ///< URL; for the site's store, where users' proxies are not used
  std::string http_proxy;
  std::vector<std::string> no_proxy;            ///< hosts and domains to contact directly
  std::vector<std::string> allowed_registries;  ///< HOST[:PORT] or *.DOMAIN; empty: all
  StoreConfig store;
  SharedConfig shared;
  PeersConfig peers;
  NodesConfig nodes;  ///< all of them
  std::map<std::string, NodesConfig, std::less<>> partitions, features;
  SitePolicy site;  ///< for the user's side of a start
  std::map<std::string, RegistryConfig, std::less<>> registries;

  Config();

  /// The configuration of HOST[:PORT], or the defaults.
  [[nodiscard]] const RegistryConfig& registry(std::string_view host) const;
  /// What srun reads by itself.
  [[nodiscard]] SubmitRules submit_rules() const;
};

/// The keys at the top of the file, besides those of SitePolicy.
inline constexpr KeyRow<Config> kConfigKeys[] = {
    {"default_registry", "text", "docker.io", "registry of image names without one",
     &Config::default_registry, key::is_host, "expected HOST or HOST:PORT"},
    {"writable", "yes or no", "true", "make containers writable unless the job says otherwise",
     &Config::writable},
    {"mount_home", "yes or no", "false",
     "mount the user's home directory unless the job says otherwise", &Config::mount_home},
    {"upper_size", "size", "50%",
     "size limit of the writable tmpfs layer: a percentage of the job's memory, or bytes with K, "
     "M, G, T",
     &Config::upper_size, key::is_upper_size, key::kUpperSizeRule},
    {"squashfs", "auto, kernel, copy, fuse", "auto",
     "who reads layers: the kernel, the kernel from a copy for each user, or a FUSE process of the "
     "user; auto: the first of them that works",
     &Config::squashfs},
    {"layer_memory", "size", "2%",
     "limit of the kernel's own memory for a job's layers: a percentage of the node's memory, or "
     "bytes with K, M, G, T; more is served by FUSE",
     &Config::layer_memory, key::is_upper_size, key::kUpperSizeRule},
    {"pull", "newer, missing, always, never", "newer",
     "when to query the registry for an image that the node has", &Config::pull},
    {"public_ttl", "seconds", "3600",
     "how long an image pulled without credentials is public without asking again",
     &Config::public_ttl, nullptr, nullptr, nullptr, key::kYear},
    {"private_ttl", "seconds", "3600",
     "how long a user may start a private image after the registry last granted access",
     &Config::private_ttl, nullptr, nullptr, nullptr, key::kYear},
    {"tag_ttl", "seconds", "0", "how long a resolved tag is not resolved again", &Config::tag_ttl,
     nullptr, nullptr, nullptr, key::kYear},
    {"job_tag_ttl", "seconds", "60", "the same for a tag resolved since the job was submitted",
     &Config::job_tag_ttl, nullptr, nullptr, nullptr, key::kYear},
    {"max_parallel_layers", "number", "0",
     "layers converted in parallel; 0: one per processor of the job, at most 4",
     &Config::max_parallel_layers, nullptr, nullptr, nullptr, 64},
    {"import_cpus", "number", "0",
     "processors that an image's import may use on a node; 0: those of the job",
     &Config::import_cpus, nullptr, nullptr, nullptr, 1024},
    {"import_memory", "size", "0",
     "memory budget of an import, bytes with K, M, G, T: with less, fewer layers are converted in "
     "parallel; 0: none",
     &Config::import_memory, key::is_byte_size,
     "expected a number of bytes with K, M, G or T behind it"},
    {"layer_compression", "auto, lz4, zstd, none", "auto",
     "how new layers are compressed: lz4 is read faster, zstd takes least room; auto: lz4 if the "
     "kernel reads it, else zstd",
     &Config::layer_compression},
    {"layer_format", "auto, erofs, squashfs", "auto",
     "file system of new layers; auto: erofs if the kernel can map its owners alone (Linux 5.19 to "
     "6.1), else squashfs, as with zstd",
     &Config::layer_format},
    {"max_image_bytes", "bytes", "0", "size limit of a compressed image; 0: no limit",
     &Config::max_image_bytes, nullptr, nullptr, nullptr, std::numeric_limits<std::int64_t>::max()},
    {"stall_timeout", "seconds", "30", "abort a transfer that stays below 1 KiB/s for this long",
     &Config::stall_timeout, nullptr, nullptr, nullptr, 3600},
    {"https_proxy", "URL", "", "proxy for registries and their redirects over https",
     &Config::https_proxy, key::is_proxy_or_none, "expected http://HOST:PORT"},
    {"http_proxy", "URL", "", "proxy for plain HTTP", &Config::http_proxy, key::is_proxy_or_none,
     "expected http://HOST:PORT"},
    {"no_proxy", "list of hosts", "", "hosts and domains to contact without a proxy",
     &Config::no_proxy, key::is_plain_host, "expected one host or domain in each text"},
    {"allowed_registries", "list of hosts", "",
     "`HOST[:PORT]` or `*.DOMAIN` of registries that may be used; empty: all",
     &Config::allowed_registries, key::is_host_or_domain, "expected HOST[:PORT] or *.DOMAIN"},
};

/// Reads `config.toml` and the files of config.d (launch/policy/config_files.hpp): a key or list in
/// a later file replaces that of an earlier one, tables are merged. Missing keys have their
/// defaults. An unknown key, a wrong type or a value out of range is an error with its line.
Result<Config> read_config(const std::string& path, uid_t owner = ::geteuid());

/// The same for text; `name` names the file in messages.
Result<Config> parse_config(const std::string& text, const std::string& name);
/// Values in the text replace existing ones.
Result<void> add_config(Config& config, const std::string& text, const std::string& name);

}  // namespace spc
