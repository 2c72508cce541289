#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::tool {

/// A container that --container-name keeps in the node's store. Only root can see it.
struct StoredContainer {
  uid_t uid = 0;
  std::string key;  ///< its directory in that of its user
  std::string name;
  std::string image;
  std::string job;           ///< whose it is, if it is removed with it
  std::int64_t used_at = 0;  ///< seconds since 1970: the start or end of its last use
  bool in_use = false;
};

/// How much its user has written in it.
struct ContainerSize {
  std::uint64_t bytes = 0;  ///< on the disk, as du counts them
  bool complete = true;     ///< nothing lies too deep
};

/// All of this node that a start has finished, in no order.
Result<std::vector<StoredContainer>> stored_containers();

/// Looks at every file, and follows no link.
ContainerSize size_of(const StoredContainer& container);

/// Those that nobody has used for so many seconds. Not of users who have a step in a container on
/// this node: tasks whose agent was killed use a container that nobody has locked any more.
Result<std::vector<StoredContainer>> unused_containers(std::int64_t seconds);

/// Removes the container unless it was used meanwhile: then false. Its files go with the next
/// remove_files_of() its user. With `in_use` although steps use it: what they write goes when the
/// last has ended.
Result<bool> remove_container(const StoredContainer& container, bool in_use = false);
/// By a process without privilege, which is not awaited.
Result<void> remove_files_of(uid_t uid);

}  // namespace spc::tool
