#pragma once

namespace spc {

/// What the calling process executes keeps its capabilities, which execve(2) else takes from whoever is not root. For a
/// process in a user namespace of its own.
void keep_capabilities_when_executing();

}  // namespace spc
