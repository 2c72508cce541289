#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

// --- started by enroot ---

/// Variable that marks `scontainer run` as started by this project's `enroot` command. Hooks of
/// /etc/enroot and of the user then run and see the whole environment. The container sees only
/// HOME, XDG_DATA_HOME, XDG_CONFIG_HOME and TERM.
inline constexpr char kStartedByEnroot[] = "SPANK_CONTAINER_STARTED_BY_ENROOT";

// --- images program ---

/// The program of the commands that start no container, with the clients of registries and the
/// archive formats. `scontainer` executes it.
inline constexpr char kImagesProgram[] = "scontainer-images";

// --- arguments ---

/// The command line after a command's name.
struct Arguments {
  std::map<std::string, std::vector<std::string>, std::less<>>
      options;                                          ///< by long name, without dashes
  std::vector<std::string> words;                       ///< positional arguments
  std::vector<std::string> rest;                        ///< the command to run, unchanged
  std::map<std::string, std::string> annotations = {};  ///< of an environment file
  /// FILE:LINE of options that an environment file set, by `--NAME=VALUE`
  std::map<std::string, std::string, std::less<>> origins = {};

  [[nodiscard]] bool has(std::string_view option) const {
    return options.find(option) != options.end();
  }
  /// Returns the last value of the option, empty if there is none.
  [[nodiscard]] std::string value(std::string_view option) const {
    const auto found = options.find(option);
    return found == options.end() || found->second.empty() ? std::string() : found->second.back();
  }
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const {
    const auto found = options.find(option);
    return found == options.end() ? std::vector<std::string>() : found->second;
  }
};

// --- places ---

/// Paths for this user on this machine.
struct Places {
  std::string home;        ///< empty if the user has none
  std::string store;       ///< root: the node's store; others: $XDG_DATA_HOME/spank-container,
                           ///< ~/.local/share/spank-container
  std::string config;      ///< the user's config.toml if there is one, otherwise the site's
  std::string containers;  ///< $XDG_CONFIG_HOME/containers, ~/.config/containers: the user's
                           ///< registries.conf and certs.d; empty for root
  std::string running;     ///< one file per running container started by `run`
  /// Returns a directory for mounts that only the caller sees.
  [[nodiscard]] std::string workspace() const {
    return own_store ? store + "/workspace" : SPC_RUN_DIR "/workspace";
  }
  bool own_store = true;  ///< the store is the caller's own; its layers are served by FUSE

  /// Determines the paths without creating them. Returns an error if the user has neither a home
  /// directory nor XDG_DATA_HOME.
  static Result<Places> find();
};

/// Opens an own store's directory. Creates it, with everything that `import` expects in it, if
/// necessary.
Result<UniqueFd> make_own_store(const Places& places);
/// Opens the store's directory. Returns ErrorKind::not_found if there is none.
Result<UniqueFd> open_store(const std::string& path);

/// Returns the absolute form of `path` without following links.
Result<std::string> absolute_path(const std::string& path);

/// Creates a directory with its parents, mode 0700.
Result<void> make_directories(const std::string& path);

// --- commands on top of scontainer ---

/// Executes the `scontainer` of this program's directory with these arguments and this environment.
/// Returns only on failure.
Error become_scontainer(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment);
/// Does the same with this process's environment.
Error become_scontainer(const std::vector<std::string>& arguments);

/// Runs `scontainer` and returns its standard output, without white space around it. Its messages
/// go to standard error. If it fails, it has reported the reason, and the Error's message is empty.
Result<std::string> output_of_scontainer(const std::vector<std::string>& arguments);

}  // namespace spc::tool
