#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/net/listener.hpp"
#include "base/result.hpp"
#include "image/reference/request.hpp"
#include "launch/policy/config_files.hpp"

namespace spc {

/// `allowed_registries`, and which tables of registries say `blocked`.
struct RegistryRules {
  std::vector<std::string> allowed;  ///< HOST[:PORT] or *.DOMAIN; empty: all
  std::vector<std::string> blocked;  ///< in normal form

  /// Refuses a registry, in normal form, that this site does not allow.
  [[nodiscard]] Result<void> check(std::string_view registry) const;

  bool operator==(const RegistryRules&) const = default;
};

/// What of config.toml can refuse a request before it is submitted, says whether srun asks a
/// registry and how it listens, or what is begun at submission: srun, sbatch and salloc read this
/// much of it themselves.
struct SubmitRules {
  enum class Known {
    none,  ///< there is no configuration here, or not one to be trusted: the nodes have files of
           ///< their own
    all,   ///< these are the rules
    some,  ///< a file has more than plain TOML, so `scontainer submit-check` has to read it
  };

  Known known = Known::none;
  std::string default_registry = "docker.io";
  std::string importer;
  bool check_at_submit = false;
  PullPolicy pull = PullPolicy::newer;
  std::vector<std::string> features_off;
  RegistryRules registries;
  std::string pull_at_submit;  ///< `[shared]`: started with the image of a job that is submitted
  PortRange srun_ports;        ///< `[peers]`: where srun listens for the nodes of its step
  std::uint32_t fanout = 2;    ///< and to how many nodes it sends each

  /// As read_config() in image/config would read it, but for what is wrong with other keys.
  static SubmitRules read(const std::string& path, uid_t owner);
  /// The same of what read_config_files() found.
  static SubmitRules of(const std::vector<ConfigFile>& files);

  /// `features`: options in use. `image`: as typed; empty: none.
  [[nodiscard]] Result<void> check(const std::vector<std::string>& features,
                                   const std::string& image) const;

  bool operator==(const SubmitRules&) const = default;
};

/// `features_off`: no option in use may be in it.
Result<void> check_features(const std::vector<std::string>& used,
                            const std::vector<std::string>& off);

}  // namespace spc
