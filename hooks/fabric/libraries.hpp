#pragma once

#include <string>
#include <vector>

#include "hooks/hook.hpp"
#include "hooks/libraries/host_library.hpp"
#include "hooks/libraries/library_fit.hpp"

namespace spc {

/// A library of fabric_libraries or fallback_libraries, as read on the node.
struct OfferedLibrary {
  std::string path;  ///< as the site names it
  HostLibrary library;
  std::string target;  ///< in the container
};

/// One of the node, of fabric_libraries or fallback_libraries, with what LibraryFit compares.
[[gnu::cold]] Result<HostLibrary> read_fabric_library(const HookContext& context,
                                                      const std::string& path, bool fallback);

/// In `prepare`: has the site's fabric_libraries, and fallback_libraries that they may need,
/// mounted, each under its file name. One that is missing on the node, or is none, causes a
/// warning; two different files of one soname a refusal.
[[gnu::cold]] std::vector<OfferedLibrary> offer_fabric_libraries(const HookContext& context,
                                                                 Edits& edits);

/// In `create`: gives the image those that can be loaded in it and break nothing there, before its
/// own, found by soname and by file name, as NCCL looks for libnccl-net.so. A libibverbs provider
/// (libmlx5-rdmav34.so) also gets the file by which libibverbs finds it. Returns warnings: why
/// others were left out, and what might break.
[[gnu::cold]] std::vector<std::string> give_fabric_libraries(
    const HookContext& context, const std::vector<OfferedLibrary>& offered, Edits& edits);

/// What a site can do about it: behind a message. Empty: nothing.
[[gnu::cold]] const char* hint_for(const Misfit& misfit);

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
