#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace spc::tool {

/// What a store holds, and the file system that it is on. Nothing of users is looked into.
struct StoreState {
  std::uint64_t size = 0, used = 0, free = 0;  ///< of the file system, bytes
  std::uint64_t inodes = 0, free_inodes = 0;   ///< 0 inodes: it has no limit
  std::optional<std::uint64_t> images;         ///< nothing: the caller may not read them
  std::optional<std::uint64_t> layers;
  std::optional<std::uint64_t> containers;  ///< with a name, of all users
  std::uint64_t layer_bytes = 0;            ///< of their files
  std::uint64_t spool_bytes =
      0;  ///< of blobs that relays keep for other nodes, in nameless files; root alone sees them
};

Result<StoreState> state_of_store(const std::string& path);

/// How many of its layers are squashfs, not erofs, and cannot be copied for a user; nothing if the
/// caller may not read them.
std::optional<std::uint64_t> squashfs_layers(const std::string& path);

}  // namespace spc::tool
