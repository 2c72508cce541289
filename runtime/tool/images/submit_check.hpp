#pragma once

#include <span>

namespace spc {

/// The command `submit-check` (base/submit_protocol.hpp), not for people. `words`: behind its name. The exit status.
int run_submit_check(std::span<char*> words);

}  // namespace spc
