#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::tool {

/// A container shared by several processes of this machine: its namespaces, and what is needed to
/// join it.
struct SharedContainer {
  UniqueFd user, mounts;        ///< namespaces
  std::string image, settings;  ///< its name; its record, as ImageSettings::parse takes it
  std::string edits;            ///< TaskEdits
  std::shared_ptr<void> alive;  ///< creator only: must not end before the container
  UniqueFd place;               ///< joining process: keeps the container while it is open
  bool failed = false;          ///< joining process: set-up failed, as reported by another process
};

/// The container for `key`, shared by this user's processes. The first one to ask starts a separate
/// process that sets it up, passes it to everyone who asks, and exits after the last of them: none
/// depends on another, and one that is killed counts as gone. `make` runs there; its error is
/// reported to the first one only.
///
/// They meet at a socket in the abstract namespace, which the kernel grants to one process at a
/// time and releases itself.
Result<SharedContainer> join_shared_container(const std::string& key,
                                              const std::function<Result<SharedContainer>()>& make);

}  // namespace spc::tool
