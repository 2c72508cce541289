#pragma once

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// In srun, sbatch and salloc, as the user: what the local configuration has against the request, and with `check_at_submit`
/// whether the registry has the image. Only then, or if the configuration is more than plain TOML, `scontainer submit-check` is
/// started. An Error is a refusal; what cannot be checked, or not within some seconds, is left to the nodes.
///
/// Where nothing is refused and a job begins, the site's `pull_at_submit` is started with the image's name, as the user: it may bring
/// the image into the shared store while the job waits. It goes on by itself, and nobody asks what becomes of it.
Result<void> check_at_submission(const LaunchRequest& request);

}  // namespace spc
