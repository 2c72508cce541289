#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

enum class MakeTarget { no, file, directory };

/// Opens (O_PATH) `path` in the tree below `root`, whose links cannot lead out of it; with `make`,
/// missing components and the targets of dangling links are created. Going above `root` is EXDEV.
Result<UniqueFd> open_in_root(int root, const std::string& path, MakeTarget make);

}  // namespace spc
