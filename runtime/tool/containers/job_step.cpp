#include "tool/containers/job_step.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/pipe.hpp"
#include "base/text.hpp"

namespace spc::tool {
namespace {

bool is_decimal(std::string_view text) {
  return !text.empty() && text.size() < 10 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Result<std::string> slurm_program(const char* name) {
  const char* path = std::getenv("PATH");
  auto found = find_program(name, path != nullptr ? path : "/usr/bin:/bin");
  if (found) return found;
  return Error(ErrorKind::not_found, formatted("there is no {} along PATH", name)).hint("run it where jobs are submitted");
}

/// `4711.0`, `4711.batch`, one a line.
Result<std::string> running_steps(const std::string& job) {
  const std::string squeue = SPC_TRY(slurm_program("squeue"));
  auto [reading, writing] = SPC_TRY(make_pipe());
  auto child = SPC_TRY(Child::start({.path = squeue,
                                     .arguments = {"squeue", "--steps", "--noheader", "--format=%i", "--jobs=" + job},
                                     .descriptors = {{writing.get(), 1}}}));
  writing.reset();
  auto text = read_pipe(reading.get(), 1 << 20);
  child.wait();
  return text;
}

/// The latest of those that a user started; without one, what Slurm runs: the batch script, or the shell of salloc.
Result<std::string> step_of(const std::string& job) {
  if (job.find('.') != std::string::npos) return job;
  const std::string listed = SPC_TRY(running_steps(job));
  long latest = -1;
  std::string other;
  for (const std::string_view line : split(listed, '\n')) {
    const std::string_view step = line.substr(std::min(line.find('.') + 1, line.size()));
    if (is_decimal(step)) latest = std::max(latest, std::atol(std::string(step).c_str()));
    if (step == "batch" || step == "interactive") other = step;
  }
  if (latest >= 0) return formatted("{}.{}", job, latest);
  if (!other.empty()) return formatted("{}.{}", job, other);
  return Error(ErrorKind::not_found, formatted("job {} has no running step", job)).hint("squeue --steps --me lists them");
}

}  // namespace

bool names_job(const std::string& text) {
  const auto dot = text.find('.');
  if (!is_decimal(std::string_view(text).substr(0, dot))) return false;
  const std::string_view step = dot == std::string::npos ? "0" : std::string_view(text).substr(dot + 1);
  return is_decimal(step) || step == "batch" || step == "interactive";
}

Error become_step_in(const std::string& job, const std::vector<std::string>& command) {
  const auto srun = slurm_program("srun");
  if (!srun) return srun.error();
  const auto step = step_of(job);
  if (!step) return step.error();
  std::vector<std::string> words{"srun",      "--quiet",    "--overlap",  "--jobid=" + step->substr(0, step->find('.')),
                                 "--nodes=1", "--ntasks=1", "--mpi=none", "--container-name=" + *step + ":exec"};
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) words.emplace_back("--pty");
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(srun->c_str(), arguments.data());
  return Error::from_errno(errno, "execute " + in_quotes(*srun));
}

}  // namespace spc::tool
