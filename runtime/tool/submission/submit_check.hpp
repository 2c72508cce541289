#pragma once

#include <span>

namespace spc::tool {

/// The internal command `submit-check` (protocol/submit.hpp). `words`: after its name. Returns the
/// exit status.
int run_submit_check(std::span<char*> words);

}  // namespace spc::tool
