#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// Becomes `scontainer` with these arguments and this environment; comes back only with an error.
Error become_scontainer(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);
/// The same with our environment.
Error become_scontainer(const std::vector<std::string>& arguments);

/// Runs it to its end; gives what it wrote to standard output. Its own messages go to standard error; when it fails, it has
/// said why, and the Error's message is empty.
Result<std::string> output_of_scontainer(const std::vector<std::string>& arguments);

}  // namespace spc
