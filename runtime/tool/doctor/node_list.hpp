#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spc::tool {

/// The first of the nodes that Slurm writes as "node[01-03,7],login": enough to find another one
/// than this. Nothing of what is not understood.
std::vector<std::string> nodes_of_list(std::string_view list);

}  // namespace spc::tool
