#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Where things are for this user on this machine.
struct Places {
  std::string home;     ///< empty: the user has none
  std::string store;    ///< root: the node's store; others: $XDG_DATA_HOME/spank-container, ~/.local/share/spank-container
  std::string config;   ///< config.toml of the user if there is one, else of the site
  std::string running;  ///< one file for each container that `run` has made and that still runs
  /// A directory to mount things on, where only the caller sees them.
  [[nodiscard]] std::string workspace() const { return own_store ? store + "/workspace" : SPC_RUN_DIR "/workspace"; }
  bool own_store = true;  ///< the store belongs to the caller alone: layers are served by FUSE, nobody else is asked

  /// Only looks; makes nothing. Without a home and without XDG_DATA_HOME there is no place for a store: an error that says so.
  static Result<Places> find();
};

/// Path of one of our programs: beside this one (PREFIX/libexec/spank-container) or where it is installed.
std::string helper_program(const char* name);

/// The store's directory, made if it is not there, with everything `import` expects in it. For an own store only.
Result<UniqueFd> make_own_store(const Places& places);
/// The store's directory; ErrorKind::not_found if there is none yet.
Result<UniqueFd> open_store(const std::string& path);

/// `path` from the root; nothing is followed.
Result<std::string> absolute_path(const std::string& path);

/// Makes a directory with its parents, 0700.
Result<void> make_directories(const std::string& path);

}  // namespace spc
