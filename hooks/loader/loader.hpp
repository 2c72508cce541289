#pragma once

#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// Inside: what lies below was brought by a start of the container, and entries of the cache that lead there are ours.
constexpr char kNodeLibraries[] = "/usr/lib/spank-container/";

/// What it takes inside for the image's loader to find libraries that the host brings. In `create`; nothing of the image is
/// executed, and its files are only read.
///
/// - glibc: /etc/ld.so.cache with the image's entries and these, a file of the container's own that ldconfig can replace.
///   Variables of the loader and paths in programs (LD_LIBRARY_PATH, RPATH) go before it, as ever.
/// - musl: the same by directories, which is what /etc/ld-musl-MACHINE.path has.
/// - a loader elsewhere, or none: LD_LIBRARY_PATH.
///
/// So that directories of the image are not searched for more than these libraries, a link to each lies in a directory of ours,
/// which is also what a later ldconfig inside finds (/etc/ld.so.conf.d/*spank-container.conf). Of equal sonames those of
/// `directories` win over `libraries`, and earlier ones over later ones.
///
/// To be called for every container, also if there is nothing to be found: a container that is started again must lose what
/// it had.
Result<Edits> loader_edits(const HookContext& context, const std::vector<LibraryEdit>& libraries,
                           const std::vector<LibraryDirectoryEdit>& directories);

}  // namespace spc
