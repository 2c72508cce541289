#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spc {

/// The first host of a Slurm host list (hostlist, src/common/hostlist.c): `gpu[08-11,20]-ib,login1`
/// is gpu08-ib. Empty for a text that is not such a list.
std::optional<std::string> first_host(std::string_view list);

/// Number of tasks on node `index` of the step, from SLURM_STEP_TASKS_PER_NODE: `2(x3),1`.
std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index);

}  // namespace spc
