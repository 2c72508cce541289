#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// Adds the site's fabric_libraries to `edits`: each is mounted and found by its soname and by its file name, as NCCL looks
/// for libnccl-net.so. A libibverbs provider (libmlx5-rdmav34.so) also gets the file by which libibverbs finds it. A file missing
/// on the node causes a warning.
void add_fabric_libraries(const HookContext& context, Edits& edits);

/// In `create`: an image that sets LD_LIBRARY_PATH has its own libraries found first, so ours go before.
void prefer_fabric_libraries(const HookContext& context, Edits& edits);

/// The libraries that the image's loader finds, or that `edits` adds.
class LibrariesInside {
 public:
  LibrariesInside(const HookContext& context, const Edits& edits);
  [[nodiscard]] bool have(const std::string& soname) const;
  /// Whether libibverbs supports adapters of this provider.
  [[nodiscard]] bool have_provider(const std::string& provider) const;
  /// Whether the image has a multi-node communication library: MPI, NCCL, UCX, libfabric.
  [[nodiscard]] bool can_talk() const;
  [[nodiscard]] bool uses_nccl() const;

 private:
  [[nodiscard]] bool image_has(const std::string& soname) const;

  const HookContext& context_;
  const Edits& edits_;
  std::string cache_;  ///< the image's ld.so.cache, which contains the library names
};

}  // namespace spc
