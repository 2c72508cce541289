#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

/// Paths for this user on this machine.
struct Places {
  std::string home;     ///< empty: the user has none
  std::string store;    ///< root: the node's store; others: $XDG_DATA_HOME/spank-container,
                        ///< ~/.local/share/spank-container
  std::string config;   ///< the user's config.toml if there is one, otherwise the site's
  std::string running;  ///< one file per running container started by `run`
  /// A directory for mounts that only the caller sees.
  [[nodiscard]] std::string workspace() const {
    return own_store ? store + "/workspace" : SPC_RUN_DIR "/workspace";
  }
  bool own_store = true;  ///< the store is the caller's own: layers are served by FUSE

  /// Read-only. Without a home and XDG_DATA_HOME there is no place for a store: an error.
  static Result<Places> find();
};

/// The store's directory, created if necessary with everything `import` expects in it. For an own
/// store only.
Result<UniqueFd> make_own_store(const Places& places);
/// The store's directory; ErrorKind::not_found if there is none.
Result<UniqueFd> open_store(const std::string& path);

/// The absolute form of `path`; links are not followed.
Result<std::string> absolute_path(const std::string& path);

/// Creates a directory with its parents, mode 0700.
Result<void> make_directories(const std::string& path);

}  // namespace spc::tool
