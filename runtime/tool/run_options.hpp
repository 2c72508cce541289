#pragma once

#include <span>
#include <string>

#include "launch/request/options.hpp"
#include "tool/command.hpp"

namespace spc::tool {

/// The name of a job's option in `scontainer run`, without dashes: `mounts` for `container-mounts`.
std::string name_of_run(const ContainerOption& option);

/// The options of `scontainer run` and `shell`: those of a job that apply without Slurm, and their
/// own.
std::span<const OptionRow> run_options();

}  // namespace spc::tool
