#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// Adds the site's fabric_libraries to `edits`: each is mounted and found by its soname and by the name of its file, as NCCL looks
/// for libnccl-net.so. A provider of libibverbs (libmlx5-rdmav34.so) also gets the file by which libibverbs finds it. What is not
/// on the node is a warning.
void add_fabric_libraries(const HookContext& context, Edits& edits);

/// The libraries that the image's loader finds, or the ones that `edits` brings.
class LibrariesInside {
 public:
  LibrariesInside(const HookContext& context, const Edits& edits);
  [[nodiscard]] bool have(const std::string& soname) const;
  /// Whether libibverbs can use adapters of this provider.
  [[nodiscard]] bool have_provider(const std::string& provider) const;
  /// Whether the image has what programs on several nodes talk by: MPI, NCCL, UCX, libfabric.
  [[nodiscard]] bool can_talk() const;

 private:
  [[nodiscard]] bool image_has(const std::string& soname) const;

  const HookContext& context_;
  const Edits& edits_;
  std::string cache_;  ///< the bytes of the image's ld.so.cache, in which the names of libraries stand
};

}  // namespace spc
