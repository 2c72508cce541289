#pragma once

#include <string>

#include "base/result.hpp"

namespace spc::tool {

// What is done to a container of --container-name. Root does it in the store of this node, where
// the name is NAME or USER/NAME. To users the store is closed: theirs is done by a step of their
// own on the container's node, which asks its agent as any step does.

struct ContainerMeant {
  std::string name;
  std::string node;    ///< empty: where it is
  std::string job;     ///< whose it is; empty: any, or none
  bool force = false;  ///< although it is in use; although the file exists
};

/// One that is in use is no more under its name; its files go with the last step in it. The exit
/// status.
Result<int> remove_named(const ContainerMeant& meant);
/// Into a squashfs file.
Result<int> export_named(const ContainerMeant& meant, const std::string& file);

}  // namespace spc::tool
