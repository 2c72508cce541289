#pragma once

#include <span>
#include <string>

#include "launch/request/options.hpp"
#include "tool/command.hpp"

namespace spc {

/// As `scontainer run` calls an option of a job, without dashes: `mounts` for `container-mounts`.
std::string name_of_run(const ContainerOption& option);

/// The options of `scontainer run` and `shell`: those of a job that make sense without Slurm, and their own.
std::span<const OptionRow> run_options();

}  // namespace spc
