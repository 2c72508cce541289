#pragma once

namespace spc {

/// `scontainer submit-check IMAGE PULL PLATFORM PARTITIONS CONSTRAINT FEATURE...`: started by srun,
/// sbatch and salloc for checks that they cannot make by themselves (launch/site/submit.hpp).
/// PARTITIONS and CONSTRAINT are those of the Slurm request. Prints lines that begin with one of
/// these words: the reason of a refusal; a warning; the image's current digest.
inline constexpr char kSubmitCheck[] = "submit-check";
inline constexpr char kSubmitRefused[] = "refused: ";
inline constexpr char kSubmitWarning[] = "warning: ";
inline constexpr char kSubmitDigest[] = "digest: ";
/// Time limit of the registry query.
inline constexpr unsigned kSubmitSeconds = 10;

/// `scontainer read-environment NAME`: started by srun, sbatch and salloc for --environment. Prints
/// warnings, and the reason of a refusal or the environment: a value of
/// NamedEnvironment::kVariable.
inline constexpr char kReadEnvironment[] = "read-environment";
inline constexpr char kSubmitEnvironment[] = "environment: ";

/// `import resolve IMAGE PULL`: started by srun, as the user, while Slurm creates the step
/// (launch/site/submit.hpp). `PULL`: as typed, or empty. Writes one line to descriptor
/// kResolveAnswer: tag_ttl and job_tag_ttl of config.toml and `REGISTRY/NAME:TAG@DIGEST`. Writes no
/// line if there is no tag to resolve or no answer.
inline constexpr char kResolve[] = "resolve";
inline constexpr int kResolveAnswer = 3;
/// Time limit of this query.
inline constexpr unsigned kResolveSeconds = 5;

}  // namespace spc
