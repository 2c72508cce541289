#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// A container that several processes of this machine are in: its namespaces, and what each needs to know to join.
struct SharedContainer {
  UniqueFd user, mounts;        ///< namespaces
  std::string image, settings;  ///< its name; its record, as ImageSettings::parse takes it
  std::string edits;            ///< TaskEdits
  std::shared_ptr<void> alive;  ///< of who made it: what must not end before the container does
  UniqueFd place;               ///< of who joins: as long as it is open the container is kept
  bool failed = false;          ///< of who joins: it could not be made, which another one has said
};

/// The container that belongs to `key`, which this user's processes share. The first one to ask starts a keeper, a process of
/// its own that makes it, hands it to everyone who asks, and ends when the last of them has: none depends on another, and
/// whoever is killed has left. `make` runs in the keeper; its error is told to the first one alone.
///
/// They meet at a socket in the abstract name space, which the kernel gives to one at a time and takes back by itself.
Result<SharedContainer> join_shared_container(const std::string& key, const std::function<Result<SharedContainer>()>& make);

}  // namespace spc
