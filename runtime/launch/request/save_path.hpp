#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace spc {

/// `oci-layer:FILE`: only what the tasks have changed is written.
inline constexpr char kSaveLayer[] = "oci-layer:";
bool saves_layer(const std::string& path);

/// Refuses what cannot be a file, by its form alone.
Result<void> check_save_path(const std::string& path);

/// The file that this node writes: %j and %A are the job, %J job.step, %s the step, %N the node, %n
/// its number in the job, %u the user, %a the array task, %x the job's name, with a width before
/// the letter to fill numbers up (%4n), as in Slurm's file names; %% is a percent sign. Nothing:
/// another node writes it, since the name does not tell the nodes apart. `job`: the task's
/// environment.
std::optional<std::string> save_path_here(const std::string& path,
                                          const std::map<std::string, std::string>& job);

/// Slurm's name of the step: `123.0`, `123.batch`.
std::string step_name(const std::map<std::string, std::string>& job);

}  // namespace spc
