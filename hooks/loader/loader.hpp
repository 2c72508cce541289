#pragma once

#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// What it takes inside for the image's loader to find libraries that the host brings: an /etc/ld.so.cache made of the image's
/// and these, the links beside the files, and what makes a later ldconfig inside find them again. In `create`; nothing of the
/// image is executed, and its files are only read. For an image whose loader is not glibc's: what that loader understands.
Result<Edits> loader_edits(const HookContext& context, const std::vector<LibraryEdit>& libraries,
                           const std::vector<LibraryDirectoryEdit>& directories);

}  // namespace spc
