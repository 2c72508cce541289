#pragma once

namespace spc {

/// `scontainer submit-check IMAGE PULL PLATFORM PARTITIONS CONSTRAINT FEATURE...`: started by srun,
/// sbatch and salloc where what they can read by themselves does not do
/// (launch/site/submit_check.hpp). PARTITIONS and CONSTRAINT are what Slurm was asked for. Prints
/// lines that begin with one of these words: why the request is refused; what is doubtful; the
/// digest of the image now.
inline constexpr char kSubmitCheck[] = "submit-check";
inline constexpr char kSubmitRefused[] = "refused: ";
inline constexpr char kSubmitWarning[] = "warning: ";
inline constexpr char kSubmitDigest[] = "digest: ";
/// Time limit of the registry query.
inline constexpr unsigned kSubmitSeconds = 10;

/// `import resolve IMAGE PULL`: started by srun, as the user, while Slurm makes the step
/// (launch/site/tag_question.hpp). `PULL`: as typed, or empty. Writes one line to descriptor
/// kResolveAnswer: tag_ttl and job_tag_ttl of config.toml and `REGISTRY/NAME:TAG@DIGEST`; or
/// nothing, if there is nothing to ask or no answer.
inline constexpr char kResolve[] = "resolve";
inline constexpr int kResolveAnswer = 3;
/// Time limit of this query.
inline constexpr unsigned kResolveSeconds = 5;

}  // namespace spc
