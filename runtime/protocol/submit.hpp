#pragma once

namespace spc {

/// `scontainer submit-check IMAGE PULL PLATFORM FEATURE...`: started by srun, sbatch and salloc (launch/submit_check.hpp). It
/// prints one line if the request is to be refused, and nothing otherwise.
inline constexpr char kSubmitCheck[] = "submit-check";
/// For so long it asks a registry.
inline constexpr unsigned kSubmitSeconds = 10;

}  // namespace spc
