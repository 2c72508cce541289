#pragma once

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// In srun, sbatch and salloc: what the local configuration has against the request, and with `check_at_submit` whether the
/// registry has the image. `scontainer submit-check` checks it, as the user; without a configuration nothing is
/// started. An Error is a refusal; what cannot be checked, or not within some seconds, is left to the nodes.
Result<void> check_at_submission(const LaunchRequest& request);

}  // namespace spc
