#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"

namespace spc::tool {

/// JOB or JOB.STEP.
bool names_job(const std::string& text);

/// Becomes srun, which runs the command in the container of this step, beside its tasks; of a job
/// alone: its latest step. With a terminal of its own if we have one. Returns an Error only.
Error become_step_in(const std::string& job, const std::vector<std::string>& command);

}  // namespace spc::tool
