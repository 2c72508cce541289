#pragma once

namespace spc {

/// Programs executed by the calling process keep its capabilities, which execve(2) otherwise drops
/// for non-root users. For a process in a user namespace of its own.
void keep_capabilities_when_executing();

}  // namespace spc
