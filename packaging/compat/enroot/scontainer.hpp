#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::enroot {

/// Executes `scontainer` with these arguments and this environment; returns only on failure.
Error become_scontainer(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment);
/// The same with our environment.
Error become_scontainer(const std::vector<std::string>& arguments);

/// Runs it and returns its standard output. Its messages go to standard error; when it fails, it
/// has reported the reason, and the Error's message is empty.
Result<std::string> output_of_scontainer(const std::vector<std::string>& arguments);

}  // namespace spc::enroot
