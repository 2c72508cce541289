#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc::enroot {

// --- arguments ---

/// An option of enroot: `-o FILE`, `--output FILE`, `--output=FILE`.
struct EnrootOption {
  char letter;  ///< 0: none
  const char* name;
  bool takes_value;
};

/// Arguments of an enroot command: options first, then words.
struct EnrootArguments {
  std::map<std::string, std::vector<std::string>, std::less<>> options;  ///< values by long name
  std::vector<std::string> words;

  [[nodiscard]] bool has(std::string_view option) const {
    return options.find(option) != options.end();
  }
  /// Returns the last value of the option, empty if it was not given.
  [[nodiscard]] std::string value(std::string_view option) const;
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const;
};

/// Parses the arguments. Options end at the first word or at `--`, as in enroot. The error names
/// the option that is not in `known`.
Result<EnrootArguments> parse_arguments(std::span<const std::string> words,
                                        std::initializer_list<EnrootOption> known);

// --- settings ---

/// enroot's settings from the environment, with its names and defaults.
struct EnrootSettings {
  std::string data_path;  ///< ENROOT_DATA_PATH: one directory per container
  /// ENROOT_CONFIG_PATH: directory of `.credentials`, read by user-source
  std::string config_path;
  /// ENROOT_CACHE_PATH: parent of the image store; empty: scontainer's default
  std::string cache_path;
  bool writable = false;    ///< ENROOT_ROOTFS_WRITABLE
  bool remap_root = false;  ///< ENROOT_REMAP_ROOT
  bool mount_home = false;  ///< ENROOT_MOUNT_HOME

  /// Reads the environment and sets scontainer's variables so that its store is in `cache_path`.
  static Result<EnrootSettings> take_from_environment();
};

// --- URI ---

/// Checks the scheme of `docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]`, `dockerd://IMAGE[:TAG]`
/// or `podman://IMAGE[:TAG]`. scontainer accepts the rest unchanged.
Result<void> check_uri(const std::string& uri);

/// Returns the default output file of `import`: `nvidia+pytorch+24.03-py3.sqsh`, without registry,
/// user and digest.
std::string default_file_name(const std::string& uri);

// --- start ---

/// Arguments and environment of the `scontainer run` that implements this `enroot start`.
struct StartCommand {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
};
/// Translates the arguments of `enroot start`.
Result<StartCommand> start_command(const EnrootSettings& settings,
                                   const EnrootArguments& arguments);

/// Returns KEY=VALUE for `-e KEY` (with the value in the environment) and `-e KEY=VALUE`.
Result<std::string> variable_for(const std::string& text);

/// Returns `SRC:DST[:FLAGS]` of --mounts for an fstab entry with ':' between its fields:
/// SRC:DST[:TYPE[:OPTIONS]]. Returns an empty string if there is nothing to mount (`nofail`, and
/// the source is missing).
Result<std::string> mount_for(const std::string& entry);

}  // namespace spc::enroot
