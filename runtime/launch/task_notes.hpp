#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// What the leading task writes down for all tasks of its node, in a memory file: first what the hooks said, before anybody is
/// let in; behind it, when that is known, how the entrypoint went.
Result<UniqueFd> make_task_notes();

/// Once, before anything else.
Result<void> write_hook_part(int notes, std::string_view records);
Result<std::string> read_hook_part(int notes);
/// All that is behind it by now; for the entrypoint, which knows when it is complete.
Result<std::string> read_entrypoint_part(int notes);

}  // namespace spc
