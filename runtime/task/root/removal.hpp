#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// A path in the container where mounts are dropped.
struct Removal {
  std::string target;
  std::size_t after = 0;  ///< number of mounts before it
  bool optional = false;  ///< no error if there is no mount
  std::string shown_as;   ///< as given by the user, for errors
};

/// Which of the mounts at `targets`, in this order, are made: a removal drops the last preceding
/// mount at its target, and everything below it. `resolve` makes a path comparable. Nothing is ever
/// unmounted: that needs no privilege, and cannot uncover what the host hides under its own mounts.
/// An Error if there is nothing to drop.
Result<std::vector<bool>> mounts_to_make(
    const std::vector<std::string>& targets, const std::vector<Removal>& removals,
    const std::function<std::string(const std::string&)>& resolve);

/// The path without links, dots and empty components, as far as it exists. Call before anything is
/// mounted, so that no /proc link interferes.
std::string without_links(const std::string& path);

}  // namespace spc
