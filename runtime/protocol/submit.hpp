#pragma once

namespace spc {

/// `scontainer submit-check IMAGE PULL PLATFORM FEATURE...`: started by srun, sbatch and salloc where what they can read by
/// themselves does not do (launch/site/submit_check.hpp).
/// Prints one line if the request is refused, and nothing otherwise.
inline constexpr char kSubmitCheck[] = "submit-check";
/// Time limit of the registry query.
inline constexpr unsigned kSubmitSeconds = 10;

}  // namespace spc
