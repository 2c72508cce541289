#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "launch/policy/key_row.hpp"

namespace spc {

/// What config.toml says to the user's side of a start. `import policy` checks it and writes it as
/// `key=value\0` behind the PolicyRecord in /run/spank-container/policy. spank-container.conf(5)
/// explains the keys; site_keys() has a row for each.
struct SitePolicy {
  bool remap_root{}, slurm{}, error_report{}, task_prolog_on_host{}, prefer_cdi{}, frameworks{};
  bool python_user_base{}, user_hooks{}, enroot_compat{}, check_at_submit{};
  std::int64_t entrypoint_timeout{}, hook_timeout{};  ///< seconds
  std::string entrypoint, batch, container_scope, messages, max_tmpfs_size, importer;
  std::string gpu, gpu_devices, driver_root, mpi, mpi_abi, fabric;
  std::vector<std::string> mounts, env, keep_env, allowed_paths, features_off, hooks_off;
  std::vector<std::string> mpi_libraries, mpi_dependencies, mpi_mounts, fabric_libraries;

  /// Not of config.toml, but of enroot's files.
  std::optional<bool> writable, mount_home;  ///< they win over the PolicyRecord's
  std::vector<std::string> unshare;          ///< names of namespaces
  std::vector<std::string> enroot_mounts, enroot_mounts_of_user;  ///< `FILE, line N`, a tab, the mount

  /// The defaults.
  SitePolicy();
  /// From the file that the agent hands to the leader: the texts belong to the record that it has sent.
  static Result<SitePolicy> of(int policy_file);
  /// For the other tasks and for whoever only wants to know: as the policy is now. Nothing, or the
  /// defaults, if it cannot be read.
  static std::optional<SitePolicy> read_if_any();
  static SitePolicy read() { return read_if_any().value_or(SitePolicy()); }
  static SitePolicy parse(std::string_view records);

  /// A record; of a list: one more element. Unknown keys count for nothing.
  void set(std::string_view key, std::string_view value);
  /// What plugstack.conf sets: KEY=VALUE texts, which win.
  void override_with(const std::vector<std::string>& settings);
  /// All keys that have a value, with it, and one more for each further element of a list.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> records() const;
  /// Nothing: it is no boolean key.
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;

  bool operator==(const SitePolicy&) const = default;
};

/// The keys of config.toml that SitePolicy has.
std::span<const KeyRow<SitePolicy>> site_keys();

/// The records as they lie behind the PolicyRecord.
std::string site_records(const SitePolicy& site);

/// 1% to 100%, or a number of bytes with K, M, G or T behind it: tmpfs takes it as it is.
bool is_upper_size(const std::string& text);
inline constexpr char kUpperSizeRule[] = "expected 1% to 100%, or a number of bytes with K, M, G or T behind it";

}  // namespace spc
