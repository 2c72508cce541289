#pragma once

#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// In the container: files below come from a start of the container, and cache entries that point
/// there are ours.
constexpr char kNodeLibraries[] = "/usr/lib/spank-container/";

/// The edits with which the image's loader finds libraries of the host. In `create`; nothing in the
/// image is executed, its files are only read.
///
/// - glibc: /etc/ld.so.cache with the image's entries and these, a file in the writable layer that
/// ldconfig can replace.
///   Loader variables and paths in programs (LD_LIBRARY_PATH, RPATH) take precedence, as usual.
/// - musl: the same with directories, listed in /etc/ld-musl-MACHINE.path.
/// - a loader elsewhere, or none: LD_LIBRARY_PATH.
///
/// So that directories of the image are not searched for other libraries, links to these libraries
/// are put into our own directory, which a later ldconfig in the container also finds
/// (/etc/ld.so.conf.d/*spank-container.conf). Of equal sonames those of `directories` precede
/// `libraries`, and earlier ones later ones.
///
/// Call it for every container, even without libraries: a container that is started again must lose
/// those of its last start.
Result<Edits> loader_edits(const HookContext& context, const std::vector<LibraryEdit>& libraries,
                           const std::vector<LibraryDirectoryEdit>& directories);

}  // namespace spc
