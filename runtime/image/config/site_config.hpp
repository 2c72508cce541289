#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

class TableReader;

/// What config.toml says to the user's side of a start, where launch/policy/site.hpp reads it. `import` checks it, as far as text can
/// be checked, and does nothing with it.
struct SiteConfig {
  bool remap_root = false;
  std::string entrypoint = "no";
  std::int64_t entrypoint_timeout = 60;
  bool slurm = false;
  std::string batch = "script";
  std::string container_scope = "global";
  std::string messages = "own";
  bool error_report = true;
  bool task_prolog_on_host = false;
  std::vector<std::string> mounts;
  std::vector<std::string> env;
  std::vector<std::string> keep_env;
  std::vector<std::string> allowed_paths;
  std::vector<std::string> features_off;
  std::string max_tmpfs_size;
  std::string importer;
  std::string gpu = "auto";
  std::string gpu_devices = "allocated";
  std::string driver_root;
  bool prefer_cdi = false;
  std::string mpi = "image";
  std::string mpi_abi = "full";
  std::vector<std::string> mpi_libraries;
  std::vector<std::string> mpi_dependencies;
  std::vector<std::string> mpi_mounts;
  std::string fabric = "auto";
  std::vector<std::string> fabric_libraries;
  bool frameworks = true;
  bool python_user_base = true;
  std::vector<std::string> hooks_off;
  std::int64_t hook_timeout = 30;
  bool user_hooks = false;
  bool enroot_compat = false;
  bool check_at_submit = false;
};

/// Reads those keys that `reader`'s table has.
Result<void> read_site(const TableReader& reader, SiteConfig& site);

/// The records `key=value\0`, one for each element of a list.
std::string site_records(const SiteConfig& site);

/// 1% to 100%, or a number of bytes with K, M, G or T behind it: tmpfs takes it as it is.
bool is_upper_size(const std::string& text);
inline constexpr char kUpperSizeRule[] = "expected 1% to 100%, or a number of bytes with suffix K, M, G or T";

}  // namespace spc
