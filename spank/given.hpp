#pragma once

#include <span>
#include <string>
#include <vector>

#include "options.hpp"

namespace spank_container {

/// What Slurm does not tell about the options that it hands over:
///
/// - Whether a value is from the command line or was an option of the sbatch or salloc around this srun, which Slurm keeps in
///   the environment for all steps of the job. The former beats the latter; two of the former contradict each other.
/// - All the values of an option that was given several times: only the last one reaches the node. And those that were beaten
///   by an opposite reach it, too.
///
/// So what the node must know besides travels in variables of the step. Their names begin with SLURM_SPANK_ because
/// --export=NONE removes most others.

/// In srun, sbatch and salloc, of what was given for one component: without the values of the environment that the command
/// line beats.
std::vector<GivenOption> without_beaten(std::span<const GivenOption> given, GetVariable get, void* arg);

/// In srun, sbatch and salloc, as soon as all is checked: sets the variables by which whole_given() on the node makes `counts`
/// of what Slurm has handed over and will send.
void send_beside(std::span<const GivenOption> counts, std::span<const GivenOption> handed_over);

/// In a task, of what Slurm hands over there.
std::vector<GivenOption> whole_given(std::span<const GivenOption> given, GetVariable get, void* arg);

}  // namespace spank_container
