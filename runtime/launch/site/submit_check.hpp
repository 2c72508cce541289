#pragma once

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// In srun, sbatch and salloc: what the configuration there says against the request, and with `check_at_submit` whether the
/// registry has the image. `scontainer submit-check` finds out, as the user; nothing is started where there is no
/// configuration. An Error is a refusal; what cannot be found out, or not within some seconds, is left to the nodes.
Result<void> check_at_submission(const LaunchRequest& request);

}  // namespace spc
