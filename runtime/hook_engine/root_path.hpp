#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

enum class MakeTarget { no, file, directory };

/// Opens (O_PATH) `path` in the tree below `root`, links of which lead nowhere else; with `make` what is missing is made, with
/// its parents, and a dangling link is completed at the place it points to. Going above `root` is EXDEV.
Result<UniqueFd> open_in_root(int root, const std::string& path, MakeTarget make);

}  // namespace spc
