#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launch/request/launch_request.hpp"

namespace spc {

/// Where a job is to run, in Slurm's words; empty: not said, or not known.
struct Destination {
  std::string partitions;  ///< `a,b`
  std::string constraint;  ///< `a100&nvme`
};

/// What is known of a request that is not refused.
struct SubmitAnswer {
  std::vector<std::string> warnings;
  std::string digest;  ///< of the image; empty: nobody has asked
};

/// In srun, sbatch and salloc: refuses what this machine's config.toml does not allow and, with
/// check_at_submit, an image that its registry does not have or that does not fit the nodes. What
/// cannot be found out is not refused: the nodes decide anyway.
///
/// Where nothing is refused and a job begins, the site's `pull_at_submit` is started with the
/// image's name, as the user: it may bring the image into the shared store while the job waits. It
/// goes on by itself, and nobody asks what becomes of it.
Result<SubmitAnswer> check_at_submission(const LaunchRequest& request,
                                         const Destination& destination);

}  // namespace spc
