#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/process/kernel.hpp"
#include "base/result.hpp"
#include "reference/location.hpp"
#include "reference/request.hpp"

// --- allowed values ---

namespace spc::key {

/// The valid values of a key, beside its type. A text, or each element of a list, has either a
/// check or words.
struct Allowed {
  bool (*check)(const std::string&) = nullptr;
  const char* rule = nullptr;                          ///< the check as stated in the error message
  std::vector<std::string_view> (*words)() = nullptr;  ///< null: those that the type lists
  std::int64_t most = 24 * 3600;                       ///< limits of a number
  std::int64_t least = 0;
  Result<void> (*parse)(const std::string&) = nullptr;  ///< for texts that pass the check
};

/// Numbers from `least` on.
constexpr Allowed up_to(std::int64_t most, std::int64_t least = 0) {
  return {.most = most, .least = least};
}
inline constexpr std::int64_t kYear = 366LL * 24 * 3600;  // seconds

extern const Allowed kPath,  ///< absolute, or empty for none, as the next four
    kFile, kDirectory, kProgram,
    kPaths,  ///< absolute ones
    kLibraries,
    kMount,            ///< SRC[:DST[:FLAGS]] with an absolute path, as for request/mount_spec
    kAssignment,       ///< NAME=VALUE
    kVariable,         ///< the name of a variable, or a pattern with * and ?
    kSeccomp,          ///< off, default, or an absolute path
    kProfile, kLabel,  ///< names without blanks by which the kernel knows them, or empty for none
    kImageRule,        ///< an ImageRule
    kFeature,          ///< an option that can be off
    kNamespace,
    kAdapter,    ///< the name of an adapter, its PCI address, or a pattern of fnmatch(3)
    kHook,       ///< the name of a hook, not a path
    kUpperSize,  ///< 1% to 100%, or a number of bytes with suffix K, M, G or T as in tmpfs options
    kUpperSizeOrNone,
    kByteSize,      ///< a number of bytes with suffix K, M, G or T, or 0
    kHost,          ///< HOST or HOST:PORT
    kHostOrDomain,  ///< HOST[:PORT] or *.DOMAIN
    kPlainHost,     ///< a host or domain in the form that curl compares
    kMirror,        ///< HOST[:PORT][/PREFIX]
    kProxy,         ///< a proxy with a port; without a scheme, http is the default; or empty
    kNetwork,       ///< ADDRESS/BITS, of IPv4 or IPv6
    kPortRange,     ///< FIRST-LAST, a range of unprivileged ports, or empty for any
    kArchitecture,  ///< ARCHITECTURE[/VARIANT], as in image indexes; empty: unknown, as for the
                    ///< next
    kDriverVersion, kLibraryVersion,  ///< numbers separated by dots
    kMpiType,                         ///< a value of srun's --mpi
    kAnyText;

}  // namespace spc::key

namespace spc {

// --- key ---

/// A key of config.toml: its name, its valid values, and the member that it sets.
struct Key {
  enum class Kind { flag, number, text, list };

  const char* name;
  const char* type;  ///< as in the manual page; for a text without a check: the allowed words
  const char* default_text;
  const char* meaning;
  std::variant<bool*, std::optional<bool>*, std::string*, std::int64_t*, std::uint32_t*,
               std::uint64_t*, PullPolicy*, std::vector<std::string>*>
      member;
  key::Allowed allowed = {};

  /// Returns the type of the value in TOML. A size is a text, even if its member is a number.
  [[nodiscard]] Kind kind() const;
  /// Sets the member to a valid text; appends to it if it is a list.
  void set(std::string_view text) const;
  /// Returns the texts that set() makes the member's value of.
  [[nodiscard]] std::vector<std::string> texts() const;
};

using Keys = std::vector<Key>;

/// Sets the members to their defaults.
void set_defaults(const Keys& keys);
/// Sets the member of this name, or appends an element to its list. Ignores unknown names.
void set_member(const Keys& keys, std::string_view name, std::string_view value);

// --- the table ---

/// The keys of a step: of config.toml's top level, those that the user's side of a start enforces.
/// `import policy` writes them as `key=value\0` after the PolicyRecord in
/// /run/spank-container/policy. spank-container.conf(5) explains all keys.
struct SitePolicy {
  bool remap_root{}, entrypoint_log{}, slurm{}, error_report{}, task_prolog_on_host{}, prefer_cdi{},
      cuda_compat{}, frameworks{};
  bool python_user_base{}, user_hooks{}, enroot_compat{}, check_at_submit{}, failure_hints{},
      mount_cwd{}, keep_last_valid{};
  std::uint64_t discarded_files{};                    ///< bytes
  std::int64_t entrypoint_timeout{}, hook_timeout{};  ///< seconds
  std::string entrypoint, batch, container_scope, messages, seccomp, apparmor_profile,
      selinux_label;
  std::string max_tmpfs_size, importer, signature_policy;
  std::string gpu, gpu_devices, gpu_numbers, driver_root, mpi, mpi_abi, fabric, sshd;
  std::vector<std::string> mounts, env, keep_env, unsetenv, unshare, allowed_paths, allowed_images,
      fuse_filesystems, features_off, mounts_off, hooks_off;
  std::vector<std::string> mpi_libraries, mpi_dependencies, mpi_mounts, mpi_env, fabric_libraries,
      fabric_devices, fallback_libraries;

  /// The error of the current files; empty: they are in use. Not a key.
  std::string config_error;

  Keys keys() {
    Keys all = container_keys();
    for (const Key& key : hook_keys()) all.push_back(key);
    return all;
  }
  Keys container_keys() {
    return {
        {"remap_root", "yes or no", "false",
         "run as root in the container unless the job says otherwise", &remap_root},
        {"entrypoint", "no, node, task", "no",
         "run the image's entrypoint, once per node or task, unless the job says otherwise",
         &entrypoint},
        {"entrypoint_timeout", "seconds", "60", "time limit of an entrypoint", &entrypoint_timeout},
        {"entrypoint_log", "yes or no", "false",
         "print an entrypoint's output, as with `--container-entrypoint-log`", &entrypoint_log},
        {"slurm", "yes or no", "false",
         "make Slurm's commands work in the container unless the job says otherwise", &slurm},
        {"batch", "script, steps", "script",
         "what an image given to sbatch applies to unless the job says otherwise", &batch},
        {"container_scope", "global, job", "global",
         "lifetime of named containers; job: removed by the epilog", &container_scope},
        {"messages", "own, pyxis", "own", "message texts", &messages},
        {"error_report", "yes or no", "true", "let srun collect the errors of all nodes",
         &error_report},
        {"mount_cwd", "yes or no", "false",
         "mount the job's work directory and start in it unless the job says otherwise",
         &mount_cwd},
        {"failure_hints", "yes or no", "true",
         "print a line at the end of a failed step if its cause is known", &failure_hints},
        {"discarded_files", "size", "1M",
         "print a line at the end of a step that discards files of this size in all; 0: never",
         &discarded_files, key::kByteSize},
        {"keep_last_valid", "yes or no", "true",
         "use the last valid configuration while the current one has an error", &keep_last_valid},
        {"task_prolog_on_host", "yes or no", "false",
         "run TaskProlog on the host instead of in the container", &task_prolog_on_host},
        {"mounts", "list of mounts", "", "mounts for every container, as for `--container-mounts`",
         &mounts, key::kMount},
        {"env", "list of NAME=VALUE", "",
         "variables for every container; they override image and job, except variables that are "
         "kept",
         &env, key::kAssignment},
        {"keep_env", "list of names", "",
         "variables or patterns that keep the job's value, as with `--container-env`", &keep_env,
         key::kVariable},
        {"unsetenv", "list of names", "",
         "variables or patterns that no container gets, unless the job keeps or sets them",
         &unsetenv, key::kVariable},
        {"unshare", "list of namespaces", "",
         "namespaces that no container shares with the host: net, ipc, uts, pid, cgroup", &unshare,
         key::kNamespace},
        {"seccomp", "off, default or file", "off",
         "seccomp profile of every container, as for `--container-security=seccomp`", &seccomp,
         key::kSeccomp},
        {"apparmor_profile", "profile", "",
         "AppArmor profile of every container, on nodes with AppArmor", &apparmor_profile,
         key::kProfile},
        {"selinux_label", "context", "",
         "SELinux context of every container, on nodes with SELinux", &selinux_label, key::kLabel},
        {"allowed_paths", "list of directories", "",
         "where image files and directories may be; empty: anywhere", &allowed_paths, key::kPaths},
        {"allowed_images", "list of rules", "",
         "who may use which registry images: PATTERN [user=NAME,...] [group=NAME,...] "
         "[partition=NAME,...]; empty: all may use all",
         &allowed_images, key::kImageRule},
        {"fuse_filesystems", "list of types", "",
         "FUSE file systems mounted by root that may hold image files, by type or source",
         &fuse_filesystems, key::kAnyText},
        {"features_off", "list of options", "", "options that may not be used, without their `--`",
         &features_off, key::kFeature},
        {"mounts_off", "list of paths", "",
         "host paths that jobs may not mount, including what is below and above them", &mounts_off,
         key::kPaths},
        {"max_tmpfs_size", "size", "", "maximum of `--container-tmpfs-size`; empty: no limit",
         &max_tmpfs_size, key::kUpperSizeOrNone},
        {"importer", "program", "", "external importer (same contract as pyxis's importer)",
         &importer, key::kProgram},
        {"signature_policy", "file", "",
         "policy.json of podman and skopeo that decides which signatures images must have",
         &signature_policy, key::kFile},
    };
  }
  /// Includes the submit check's.
  Keys hook_keys() {
    return {
        {"gpu", "auto, off", "auto",
         "inject the GPU driver and the step's GPUs unless the job says otherwise", &gpu},
        {"gpu_devices", "allocated, accessible", "allocated",
         "GPUs of a step: those allocated by Slurm that its device cgroup allows, or all that it "
         "allows",
         &gpu_devices},
        {"gpu_numbers", "auto, pci, file", "auto",
         "what Slurm's GPU numbers count: GPUs in PCI order, or files in gres.conf; auto: only "
         "where both are the same",
         &gpu_numbers},
        {"driver_root", "directory", "",
         "location of the GPU driver's files, if not in the system directories", &driver_root,
         key::kDirectory},
        {"prefer_cdi", "yes or no", "false", "use a CDI file for GPUs instead of driver discovery",
         &prefer_cdi},
        {"cuda_compat", "yes or no", "true",
         "let an image's newer libcuda (forward compatibility) replace the driver's", &cuda_compat},
        {"mpi", "image, host", "image", "MPI to use unless the job says otherwise", &mpi},
        {"mpi_abi", "major, full, strict", "full",
         "how closely the node's MPI must match the image's to replace it", &mpi_abi},
        {"mpi_libraries", "list of files", "", "the node's MPI libraries that replace the image's",
         &mpi_libraries, key::kLibraries},
        {"mpi_dependencies", "list of files", "", "libraries of the node that these need",
         &mpi_dependencies, key::kLibraries},
        {"mpi_mounts", "list of mounts", "", "other paths of the node that they need", &mpi_mounts,
         key::kMount},
        {"mpi_env", "list of NAME=VALUE", "",
         "variables of containers in which the node's MPI replaces the image's", &mpi_env,
         key::kAssignment},
        {"fabric", "auto, off, require", "auto",
         "inject fabric devices and libraries; require: fail a multi-node step that would use TCP",
         &fabric},
        {"fabric_libraries", "list of files", "",
         "libraries of the node for the fabric: NCCL network plugins, providers", &fabric_libraries,
         key::kLibraries},
        {"fabric_devices", "list of names", "",
         "fabric adapters that steps may use: names, PCI addresses, or patterns with * and ?; "
         "empty: all",
         &fabric_devices, key::kAdapter},
        {"fallback_libraries", "list of files", "",
         "libraries of the node that the ones above need, added only where the image has none",
         &fallback_libraries, key::kLibraries},
        {"frameworks", "yes or no", "true",
         "set the variables of PyTorch and similar frameworks unless they are set", &frameworks},
        {"python_user_base", "yes or no", "true", "give `pip install --user` a directory per image",
         &python_user_base},
        {"sshd", "file", "/usr/sbin/sshd", "the node's ssh server, for --container-ssh", &sshd,
         key::kFile},
        {"hooks_off", "list of names", "", "hooks to disable, such as 50-nccl", &hooks_off,
         key::kHook},
        {"hook_timeout", "seconds", "30", "time limit of a site hook", &hook_timeout},
        {"user_hooks", "yes or no", "false",
         "run hooks in ~/.config/enroot/hooks.d if enroot_compat is set", &user_hooks},
        {"enroot_compat", "yes or no", "false",
         "read enroot.conf, mounts.d, environ.d and hooks.d in /etc/enroot and ~/.config/enroot",
         &enroot_compat},
        {"check_at_submit", "yes or no", "false",
         "let srun, sbatch and salloc ask the registry for the image", &check_at_submit},
    };
  }

  /// Settings from enroot's files instead of config.toml.
  std::optional<bool> writable, mount_home;  ///< override the PolicyRecord's
  std::vector<std::string> enroot_mounts,
      enroot_mounts_of_user;  ///< `FILE, line N`, a tab, the mount
  /// Options that variables or files of the user's enroot set, with the name of that source.
  std::vector<std::pair<std::string, std::string>> options_of_user;

  /// Constructs the defaults.
  SitePolicy();
  /// Reads the file that the agent passes to the leader; its texts belong to the record in the
  /// agent's message.
  static Result<SitePolicy> of(int policy_file);
  /// Reads the current policy, for the other tasks and for programs that only display it.
  /// read_if_any() returns an empty optional if it cannot be read, read() the defaults.
  static std::optional<SitePolicy> read_if_any();
  static SitePolicy read() { return read_if_any().value_or(SitePolicy()); }

  /// Returns the keys of records, which refer to this object: those of config.toml, and the
  /// settings from enroot's files. To set many, make them once, for set_member().
  Keys record_keys();
  /// Sets the value of a record, or appends an element to a list. Ignores unknown keys.
  void set(std::string_view key, std::string_view value);
  /// Applies KEY=VALUE texts of plugstack.conf, which override config.toml.
  void override_with(const std::vector<std::string>& settings);
  /// Returns all keys that have a value, with a further pair for each further element of a list.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> records() const;
  /// Returns the value of a boolean key; empty if `key` is not one.
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;

  bool operator==(const SitePolicy&) const = default;
};

/// Returns the records in the form stored after the PolicyRecord.
std::string site_records(const SitePolicy& site);

/// Limits of the image store: `[store]`.
struct StoreConfig {
  std::uint64_t max_size{};
  std::uint32_t high_watermark{}, low_watermark{}, max_imports_per_user{},
      max_containers_per_user{};
  std::int64_t container_ttl{};  ///< seconds

  StoreConfig();
  Keys keys() {
    return {
        {"max_size", "size", "0", "size limit of all images: bytes with K, M, G, T; 0: no limit",
         &max_size, key::kByteSize},
        {"high_watermark", "percent", "90",
         "evict images when the usage of the file system would exceed this", &high_watermark,
         key::up_to(100)},
        {"low_watermark", "percent", "80", "stop evicting at this usage", &low_watermark,
         key::up_to(100)},
        {"max_imports_per_user", "number", "4",
         "concurrent pulls per user on this node; further ones wait", &max_imports_per_user,
         key::up_to(64, 1)},
        {"max_containers_per_user", "number", "100",
         "containers with a name that a user can have on this node; 0: no limit",
         &max_containers_per_user, key::up_to(100000)},
        {"container_ttl", "seconds", "0",
         "how long a container with a name is kept after its last use; 0: no limit", &container_ttl,
         key::up_to(key::kYear)},
    };
  }
};

/// The blob store shared by all nodes: `[shared]`.
struct SharedConfig {
  std::string directory, keep, use, in_place_key, in_place_signing_key, pull_at_submit;
  std::uint64_t max_size{};
  std::int64_t in_place_grace{};  ///< seconds

  [[nodiscard]] bool uses_in_place() const { return !directory.empty() && use == "in-place"; }
  /// Returns how long removed layers stay, in seconds.
  [[nodiscard]] std::int64_t grace() const { return use == "in-place" ? in_place_grace : 0; }

  SharedConfig();
  Keys keys() {
    return {
        {"directory", "directory", "",
         "on a file system that all nodes see: what one node pulls, the others take from there; "
         "empty: none",
         &directory, key::kPath},
        {"keep", "blobs, layers", "blobs",
         "what is kept there: blobs as registries gave them, which each node converts and checks; "
         "or converted layers, too, about which nodes then believe each other",
         &keep},
        {"use", "copy, in-place", "copy",
         "how a node uses an image that another one has converted: copy it into its own store, or "
         "read it where it is, verified, without keeping anything of it",
         &use},
        {"in_place_key", "file", "",
         "public key (PEM) of the site's signature of images in place; empty: nodes believe each "
         "other",
         &in_place_key, key::kPath},
        {"in_place_signing_key", "file", "",
         "private key (PEM) for these signatures, only on nodes that convert for all others",
         &in_place_signing_key, key::kPath},
        {"in_place_grace", "seconds", "604800",
         "how long removed layers stay readable for jobs that use them in place", &in_place_grace,
         key::up_to(key::kYear)},
        {"max_size", "size", "0", "size limit of what is in it: bytes with K, M, G, T; 0: no limit",
         &max_size, key::kByteSize},
        {"pull_at_submit", "program", "",
         "what sbatch, salloc and srun start when a job is submitted, as its user and in the "
         "background, with the image's name: to bring it there while the job waits",
         &pull_at_submit, key::kProgram},
    };
  }
};

/// Image exchange between the nodes of a step: `[peers]`.
struct PeersConfig {
  bool enabled{};
  std::uint32_t fanout{};
  std::vector<std::string> networks;
  std::string ports, srun_ports;

  PeersConfig();
  Keys keys() {
    return {
        {"enabled", "yes or no", "true",
         "let the nodes of a step take an image's blobs from each other: one node pulls from the "
         "registry",
         &enabled},
        {"fanout", "number", "2",
         "how many nodes one node serves; two more while theirs has failed", &fanout,
         key::up_to(16)},
        {"networks", "list of networks", "",
         "`ADDRESS/BITS` of networks whose nodes may be asked; empty: those that the node itself "
         "is in",
         &networks, key::kNetwork},
        {"ports", "port range", "",
         "`FIRST-LAST`, where nodes answer each other; empty: any free port", &ports,
         key::kPortRange},
        {"srun_ports", "port range", "",
         "`FIRST-LAST`, where srun answers the nodes of its step: two are needed, for errors and "
         "for images; empty: any free port",
         &srun_ports, key::kPortRange},
    };
  }
};

/// Hardware and software of nodes, for checking an image before its job is submitted: `[nodes]`
/// describes all nodes, `[partitions."NAME"]` and `[features."NAME"]` some. Empty, or any: unknown.
struct NodesConfig {
  std::string arch, gpu, driver, glibc;
  std::vector<std::string> pmi;

  NodesConfig();
  Keys keys() {
    return {
        {"arch", "architecture", "",
         "architecture of the nodes as images name it: amd64, arm64; other images are refused",
         &arch, key::kArchitecture},
        {"gpu", "any, nvidia, amd, intel, none", "any",
         "vendor of their GPUs: images for another vendor's are refused", &gpu},
        {"driver", "version", "",
         "version of the NVIDIA driver: images whose NVIDIA_REQUIRE_* it does not satisfy are "
         "refused",
         &driver, key::kDriverVersion},
        {"glibc", "version", "",
         "oldest glibc that works with what the nodes add to containers: images with an older one "
         "are refused",
         &glibc, key::kLibraryVersion},
        {"pmi", "list of names", "",
         "types that `srun --mpi` takes there: a warning for images whose MPI speaks none of them",
         &pmi, key::kMpiType},
    };
  }
};

/// Configuration of one registry: `[registries."HOST[:PORT]"]`.
struct RegistryConfig {
  bool insecure{}, blocked{}, mirror_tags{}, require_digest{};
  std::string ca, client_cert, client_key;
  std::vector<std::string> mirrors, login_servers;

  Keys keys() {
    return {
        {"insecure", "yes or no", "false", "use plain HTTP", &insecure},
        {"ca", "file", "", "CA certificates (PEM) trusted in addition to the system's", &ca,
         key::kPath},
        {"client_cert", "file", "", "certificate (PEM) by which this node logs in", &client_cert,
         key::kPath},
        {"client_key", "file", "", "private key (PEM) of client_cert", &client_key, key::kPath},
        {"blocked", "yes or no", "false", "refuse this registry", &blocked},
        {"mirrors", "list of hosts", "",
         "`HOST[:PORT][/PREFIX]` to try before the registry, in this order, without credentials",
         &mirrors, key::kMirror},
        {"mirror_tags", "yes or no", "false", "let mirrors resolve tags", &mirror_tags},
        {"login_servers", "list of hosts", "",
         "`HOST[:PORT]` on other domains that may receive credentials", &login_servers, key::kHost},
        {"require_digest", "yes or no", "false", "refuse image names without a digest",
         &require_digest},
    };
  }
};

/// One [[registry]] of registries.conf(5): images whose REGISTRY/REPOSITORY begins with `prefix`.
struct RegistryRule {
  std::string prefix;                ///< HOST[:PORT][/PATH], or *.DOMAIN for its hosts
  std::vector<std::string> mirrors;  ///< HOST[:PORT][/PATH], which replaces the prefix
  bool blocked = false;
  bool mirror_tags = true;  ///< mirrors resolve tags

  /// Returns the part of the name behind the prefix, without a slash. Empty if it does not match.
  [[nodiscard]] std::optional<std::string_view> rest_of(std::string_view name) const;
};

/// The servers to try before an image's registry.
struct Mirrors {
  struct Mirror {
    std::string name;        ///< HOST[:PORT][/PATH], for messages
    std::string host;        ///< HOST[:PORT]
    std::string repository;  ///< the repository's name there
  };
  std::vector<Mirror> list;
  bool resolve_tags = false;
};

/// One table of config.toml.
struct KeyTable {
  std::string name;     ///< empty: the top level
  const char* comment;  ///< above it in the installed example
  Keys keys;
};

/// config.toml, checked. Its tables have their own types; the keys of a step are `site`'s.
struct Config {
  std::string default_registry;
  bool writable{}, mount_home{};
  std::string upper_size, squashfs, layer_memory, layer_compression, layer_format;
  PullPolicy pull{};
  std::int64_t public_ttl{}, private_ttl{}, tag_ttl{}, job_tag_ttl{}, stall_timeout{};  ///< seconds
  std::uint32_t max_parallel_layers{}, import_cpus{};
  std::uint64_t import_memory{}, max_image_bytes{};
  std::string https_proxy, http_proxy, containers_config;
  std::vector<std::string> no_proxy, allowed_registries, environments;

  Keys keys() {
    return {
        {"default_registry", "text", "docker.io", "registry of image names without one",
         &default_registry, key::kHost},
        {"writable", "yes or no", "true", "make containers writable unless the job says otherwise",
         &writable},
        {"mount_home", "yes or no", "false",
         "mount the user's home directory unless the job says otherwise", &mount_home},
        {"upper_size", "size", "50%",
         "size limit of the writable tmpfs layer: a percentage of the job's memory, or bytes with "
         "K, M, G, T",
         &upper_size, key::kUpperSize},
        {"squashfs", "auto, kernel, copy, fuse", "auto",
         "who reads layers: the kernel, the kernel from a copy for each user, or a FUSE process of "
         "the user; auto: the first of them that works",
         &squashfs},
        {"layer_memory", "size", "2%",
         "limit of the kernel's own memory for a job's layers: a percentage of the node's memory, "
         "or bytes with K, M, G, T; more is served by FUSE",
         &layer_memory, key::kUpperSize},
        {"pull", "newer, missing, always, never", "newer",
         "when to query the registry for an image that the node has", &pull},
        {"public_ttl", "seconds", "3600",
         "how long an image pulled without credentials is public without asking again", &public_ttl,
         key::up_to(key::kYear)},
        {"private_ttl", "seconds", "3600",
         "how long a user may start a private image after the registry last granted access",
         &private_ttl, key::up_to(key::kYear)},
        {"tag_ttl", "seconds", "0", "how long a resolved tag is not resolved again", &tag_ttl,
         key::up_to(key::kYear)},
        {"job_tag_ttl", "seconds", "60", "the same for a tag resolved since the job was submitted",
         &job_tag_ttl, key::up_to(key::kYear)},
        {"max_parallel_layers", "number", "0",
         "layers converted in parallel; 0: one per processor of the job, at most 4",
         &max_parallel_layers, key::up_to(64)},
        {"import_cpus", "number", "0",
         "processors that an image's import may use on a node; 0: those of the job", &import_cpus,
         key::up_to(1024)},
        {"import_memory", "size", "0",
         "memory budget of an import, bytes with K, M, G, T: with less, fewer layers are converted "
         "in parallel; 0: none",
         &import_memory, key::kByteSize},
        {"layer_compression", "auto, lz4, zstd, none", "auto",
         "how new layers are compressed: lz4 is read faster, zstd takes least room; auto: lz4 if "
         "the kernel reads it, else zstd",
         &layer_compression},
        {"layer_format", "auto, erofs, squashfs", "auto",
         "file system of new layers; auto: erofs if the kernel can map its owners alone (Linux "
         "5.19 to 6.1), else squashfs, as with zstd",
         &layer_format},
        {"max_image_bytes", "bytes", "0", "size limit of a compressed image; 0: no limit",
         &max_image_bytes, key::up_to(std::numeric_limits<std::int64_t>::max())},
        {"stall_timeout", "seconds", "30",
         "abort a transfer that stays below 1 KiB/s for this long", &stall_timeout,
         key::up_to(3600)},
        {"https_proxy", "URL", "", "proxy for registries and their redirects over https",
         &https_proxy, key::kProxy},
        {"http_proxy", "URL", "", "proxy for plain HTTP", &http_proxy, key::kProxy},
        {"no_proxy", "list of hosts", "", "hosts and domains to contact without a proxy", &no_proxy,
         key::kPlainHost},
        {"allowed_registries", "list of hosts", "",
         "`HOST[:PORT]` or `*.DOMAIN` of registries that may be used; empty: all",
         &allowed_registries, key::kHostOrDomain},
        {"containers_config", "directory", "/etc/containers",
         "where registries.conf and certs.d of podman are: defaults of the tables of registries; "
         "empty: not read",
         &containers_config, key::kDirectory},
        {"environments", "list of directories", "",
         "where environment files of the site are, for `--environment=NAME`", &environments,
         key::kPaths},
    };
  }

  SitePolicy site;
  StoreConfig store;
  SharedConfig shared;
  PeersConfig peers;
  NodesConfig nodes;
  std::map<std::string, NodesConfig, std::less<>> partitions, features;
  std::map<std::string, RegistryConfig, std::less<>> registries;
  std::vector<RegistryRule> registry_rules;  ///< of registries.conf

  Config();
  /// Returns the tables whose names are fixed, bound to this object.
  std::vector<KeyTable> tables();

  /// Returns whether the kernel may read squashfs layers from copies if the store allows it.
  [[nodiscard]] bool wants_copies() const {
    return squashfs == "copy" || (squashfs == "auto" && running_kernel() < kMapsSquashfs);
  }
  /// Returns whether layers are converted to squashfs, regardless of the kernel.
  [[nodiscard]] bool wants_squashfs() const {
    return layer_compression == "zstd" || layer_format == "squashfs";
  }
  /// Returns the configuration of HOST[:PORT], or the defaults.
  [[nodiscard]] const RegistryConfig& registry(std::string_view host) const;
  /// Returns the mirrors of an image, in the order in which they are tried. Those of config.toml
  /// replace those of registries.conf.
  [[nodiscard]] Mirrors mirrors_of(const std::string& registry,
                                   const std::string& repository) const;
  /// Returns the longest rule of registries.conf that matches, nullptr if none does.
  [[nodiscard]] const RegistryRule* rule_of(std::string_view registry,
                                            std::string_view repository) const;
  /// Returns an Error for a registry, in normal form, that this site does not allow. `repository`:
  /// empty if only the host is known.
  [[nodiscard]] Result<void> check_registry(std::string_view registry,
                                            std::string_view repository = {}) const;
  /// Checks what can be refused before submission. `options`: those in use. `image`: as typed;
  /// empty: none.
  [[nodiscard]] Result<void> check_request(const std::vector<std::string>& options,
                                           const std::string& image) const;
};

// --- reading ---

/// Reads `config.toml`, if it exists, and the files `*.toml` of the directory `config.d` beside it,
/// in the order of their names: a key or list in a later file replaces that of an earlier one,
/// tables are merged. Missing keys have their defaults. An unknown key, a wrong type or a value out
/// of range is an Error with its line. Files and directories must be owned by root (or `owner`) and
/// writable by the owner only, including parents. Below config.toml are the defaults of
/// `containers_config`, and above them those of `user_containers`, a directory of the same form
/// (empty: none).
///
/// If the site's files (SPC_CONFIG_FILE) have an error, and the policy record of this boot keeps
/// the last valid ones (keep_last_valid), returns these with the error in `site.config_error`.
/// Stores the files that it returns in `records`, an empty text, for the policy record.
Result<Config> read_config(const std::string& path, uid_t owner = ::geteuid(),
                           const std::string& user_containers = {}, std::string* records = nullptr);

/// Reads the same files for srun, which leaves errors to the nodes: without last valid files, keys
/// with an error keep their value. `site.config_error` has the error. Returns an empty optional if
/// there is no file or one is not to be trusted: the nodes have their own.
std::optional<Config> read_valid_config(const std::string& path, uid_t owner = ::geteuid());

/// Parses a configuration text; `name` names the file in messages.
Result<Config> parse_config(const std::string& text, const std::string& name);
/// Adds registries.conf, registries.conf.d/*.conf and certs.d of a directory, with the rules of
/// containers-registries.conf(5) and containers-certs.d(5). Files that do not exist are no error.
/// Unknown keys are ignored, as by podman. Replaced values are those of earlier files.
/// `owner`: as for read_config; empty: the directory is the user's own and is not checked.
Result<void> add_containers_config(Config& config, const std::string& directory,
                                   std::optional<uid_t> owner);
/// Adds a configuration text; its values replace existing ones. Returns the first error of the
/// text, and sets all other keys. Appends the errors of keys to `all`, in no order, unless it is
/// null.
Result<void> add_config(Config& config, const std::string& text, const std::string& name,
                        std::vector<Error>* all = nullptr);

/// Reads another file of the site that has only these keys, and `others`, which are not read.
/// `what` precedes messages: `catalogue "FILE"`.
Result<void> read_keys(const std::string& text, const std::string& what, const Keys& keys,
                       const std::vector<std::string_view>& others = {});

/// A key of a TOML file: `env.PATH` for PATH in the table [env].
struct TomlEntry {
  enum class Kind { text, flag, number, list, other };

  std::string key;
  Kind kind = Kind::other;
  std::vector<std::string> texts;   ///< one, or the elements of a list of texts
  std::vector<std::int64_t> lines;  ///< of each text; at least one
};

/// Reads a file in the order of its lines, for a reader that checks the keys.
Result<std::vector<TomlEntry>> read_entries(const std::string& text, const std::string& what);

// --- catalogue ---

/// An image that the site recommends. It is read from `NAME.toml` in the directory catalogue.d
/// beside the site's config.toml. The keys are `image`, a value of --container-image, and
/// `description`, one line. Those of environment files are for --environment only.
struct CatalogueEntry {
  std::string name;
  std::string image;
  std::string description;
};

/// Returns the directory of the catalogue.
std::string directory_of_catalogue();
/// Reads one entry, whose file exists.
Result<CatalogueEntry> read_catalogue_entry(const std::string& name);
/// Returns the image that the catalogue has under the name `text`, or else `text`.
Result<std::string> image_of_catalogue(const std::string& text);

// --- environments ---

/// A value of an environment file.
struct EnvironmentValue {
  std::string key;     ///< as in the file: `mounts`, `env.PATH`
  std::string text;    ///< with the variables' values
  std::string option;  ///< the option that it stands for, without dashes; empty: none
  std::string value;   ///< as on a command line; empty for a switch
  std::string origin;  ///< FILE:LINE
};

/// An environment: what --environment stands for. It is read from TOML files with the keys of
/// CSCS's Container Engine (EDF). Base environments come first; a later value of a key replaces an
/// earlier one, lists are joined.
struct NamedEnvironment {
  std::string name;  ///< as typed
  std::string file;
  std::vector<EnvironmentValue> values;  ///< in the order in which they apply

  /// Returns the names of annotations that only hooks of the site can read.
  [[nodiscard]] std::vector<std::string> foreign_annotations() const;

  /// Variable in which srun, sbatch and salloc pass environments to the nodes and to the job's
  /// steps: the nodes never read the user's file. --export=NONE keeps it.
  static constexpr char kVariable[] = "SLURM_SPANK_SCONTAINER_ENVIRONMENT";
  /// In place of an option: the value is an annotation, NAME=VALUE.
  static constexpr char kAnnotation[] = "annotation";
  static constexpr std::size_t kMostVariable = 100'000;  // of the kernel's 128 KiB
  /// Returns a value of the variable. Several are joined by ;, of which the first counts.
  [[nodiscard]] Result<std::string> record() const;
  /// Returns the environment of that name in the variable's value; option, value and origin only.
  static std::optional<NamedEnvironment> find(std::string_view variable, std::string_view name);
};

/// Where environments are searched and what their variables are.
struct EnvironmentPlaces {
  std::map<std::string, std::string> variables;
  UserPaths paths;
  /// in this order: EDF_PATH or ~/.edf, the site's `environments`, its catalogue
  std::vector<std::string> directories;

  /// Takes the variables of this process.
  static EnvironmentPlaces of_this_process(UserPaths paths);
  /// Returns names and files, sorted. A directory hides names of later ones.
  [[nodiscard]] std::map<std::string, std::string> list() const;
  /// Reads the environment NAME, or that of a file if `name` is a path.
  [[nodiscard]] Result<NamedEnvironment> read(const std::string& name) const;
};

/// Returns the warning about annotations that only a hook of the site could read.
std::string warning_about(const std::vector<std::string>& annotations, const std::string& file);

/// Returns `environment "FILE", line N` for FILE:LINE.
std::string in_environment(std::string_view origin);

// --- rules ---

/// One entry of `allowed_images`: which users may use which images of registries.
///
///     PATTERN [user=NAME|UID[,...]] [group=NAME|GID[,...]] [partition=NAME[,...]]
///
/// PATTERN is an fnmatch(3) pattern in which * matches slashes as well. It is compared with
/// REGISTRY/REPOSITORY. All given conditions must hold.
struct ImageRule {
  std::string pattern;
  std::vector<std::string> users, groups, partitions;

  static Result<ImageRule> parse(std::string_view text);
  [[nodiscard]] bool fits(const std::string& repository) const;

  bool operator==(const ImageRule&) const = default;
};

/// Checks `features_off`: returns an Error if an option in use is in it.
Result<void> check_features(const std::vector<std::string>& used,
                            const std::vector<std::string>& off);

}  // namespace spc
