#include "tool/containers/job_step.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/format.hpp"
#include "base/text.hpp"
#include "tool/containers/own_containers.hpp"

namespace spc::tool {
namespace {

bool is_decimal(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The latest of those that a user started, but for those that only joined another: they end at any
/// time. Without one, what Slurm runs: the batch script, or the shell of salloc.
Result<std::string> step_of(const std::string& job) {
  if (job.find('.') != std::string::npos) return job;
  const RunEnd listed = SPC_TRY(ask_slurm({"squeue", "--steps", "--noheader", "--format=%i %j",
                                           "--jobs=" + job}));  // JOB.STEP NAME, one a line
  long latest = -1;
  std::string other;
  for (const std::string_view line : split(listed.output, '\n')) {
    const std::size_t space = std::min(line.find(' '), line.size());
    if (line.substr(space) == std::string(" ") + kStepName) continue;
    const std::string_view id = line.substr(0, space);
    const std::string_view step = id.substr(std::min(id.find('.') + 1, id.size()));
    if (is_decimal(step)) latest = std::max(latest, std::atol(std::string(step).c_str()));
    if (step == "batch" || step == "interactive") other = step;
  }
  if (latest >= 0) return formatted("{}.{}", job, latest);
  if (!other.empty()) return formatted("{}.{}", job, other);
  return Error(ErrorKind::not_found, formatted("job {} has no running step", job))
      .hint("squeue --steps --me lists them");
}

}  // namespace

bool names_job(const std::string& text) {
  const auto dot = text.find('.');
  if (!is_decimal(std::string_view(text).substr(0, dot))) return false;
  const std::string_view step =
      dot == std::string::npos ? "0" : std::string_view(text).substr(dot + 1);
  return is_decimal(step) || step == "batch" || step == "interactive";
}

Error become_step_in(const std::string& job, const std::vector<std::string>& command) {
  const auto step = step_of(job);
  if (!step) return step.error();
  StepOrder order{.node = {},
                  .job = step->substr(0, step->find('.')),
                  .options = {"--quiet", "--mpi=none", "--container-name=" + *step + ":exec"},
                  .command = command};
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1)
    order.options.emplace_back("--pty");
  return become_step(order);
}

}  // namespace spc::tool
