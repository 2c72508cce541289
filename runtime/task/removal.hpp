#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A place inside where nothing shall be mounted any more.
struct Removal {
  std::string target;
  std::size_t after = 0;  ///< so many mounts come before it
  bool optional = false;  ///< that there is nothing is no error
  std::string shown_as;   ///< what the user typed, for errors
};

/// Which of the mounts at `targets`, in this order, are to be made: a removal takes the last one away that is mounted at its
/// target by then, and what lies below that. `resolve` makes a path comparable. Nothing is ever unmounted: that takes no
/// privilege, and cannot uncover what the host hides under a mount of its own. An Error if there is nothing to remove.
Result<std::vector<bool>> mounts_to_make(const std::vector<std::string>& targets, const std::vector<Removal>& removals,
                                         const std::function<std::string(const std::string&)>& resolve);

/// The path without links, dots and empty parts, as far as it exists. To be asked before anything is mounted, so that no link
/// of /proc is in the way.
std::string without_links(const std::string& path);

}  // namespace spc
