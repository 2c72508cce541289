#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::tool {

// --- stored containers ---

/// A named container in the node's store (--container-name). Only root can see it.
struct StoredContainer {
  uid_t uid = 0;
  std::string key;  ///< name of its directory in that of its user
  std::string name;
  std::string image;
  std::string job;           ///< the job whose end removes it; empty: none
  std::int64_t used_at = 0;  ///< seconds since 1970: the start or end of its last use
  bool in_use = false;
};

/// Size of the container's writable layer.
struct ContainerSize {
  std::uint64_t bytes = 0;  ///< on disk, as counted by du
  bool complete = true;     ///< false if a directory is nested too deeply to be counted
};

/// Returns all containers of this node whose start was completed, unsorted.
Result<std::vector<StoredContainer>> stored_containers();

/// Adds up all files without following links.
ContainerSize size_of(const StoredContainer& container);

/// Returns the containers unused for that many seconds. Skips users who have a step in a container
/// on this node: tasks of a killed agent use a container without a lock.
Result<std::vector<StoredContainer>> unused_containers(std::int64_t seconds);

/// Removes the container. Returns false if it was used meanwhile. Its files are deleted by the next
/// remove_files_of() for its user. With `in_use`, removes it even if steps use it: their files are
/// deleted after the last has ended.
Result<bool> remove_container(const StoredContainer& container, bool in_use = false);
/// Deletes removed files in an unprivileged process that is not awaited.
Result<void> remove_files_of(uid_t uid);

// --- container verbs ---

// Operations on a container of --container-name. Root acts on this node's store, where the name is
// NAME or USER/NAME. Users cannot open the store: a step on the container's node asks its agent, as
// any step does.

struct ContainerMeant {
  std::string name;
  std::string node;    ///< empty: the container's node
  std::string job;     ///< the container's job; empty: any or none
  bool force = false;  ///< remove it even if it is in use; overwrite an existing file
};

/// Removes the container. One in use loses its name at once, and its files after its last step.
/// Returns the exit status.
Result<int> remove_named(const ContainerMeant& meant);
/// Exports the container to a squashfs file.
Result<int> export_named(const ContainerMeant& meant, const std::string& file);

}  // namespace spc::tool
