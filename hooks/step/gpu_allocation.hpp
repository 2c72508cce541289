#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// The parts of a comma-separated list, without empty ones.
std::vector<std::string> parts_of(std::string_view list, char separator = ',');

/// Whether GPUs are wanted at all: the option, or what the site says.
bool wants_gpus(const HookContext& context);

/// Whether the step may open anything that a GPU is used by, of whatever vendor; true where nobody has looked.
bool step_has_gpus(const HookContext& context);

/// Which of the GPUs that the step can open, counted in PCI order from 0, Slurm has allocated to it; nothing if all of them have
/// to be taken for its own. Slurm numbers them so in SLURM_STEP_GPUS, and AutoDetect lists them so. Where Slurm constrains
/// devices, as many can be opened as are listed, and nothing has to be cut; where it binds GPUs to tasks, its list is that of one task
/// and cannot be used. `gpu_devices` of config.toml can turn it off.
std::optional<std::set<std::size_t>> allocated_of(const HookContext& context, std::size_t accessible);

/// /dev/nvidia0 and so on among the nodes that were found granted; empty where nobody has looked.
std::size_t granted_nvidia_gpus(const HookContext& context);
/// Whether some are parts of GPUs (MIG), which Slurm numbers in a way of its own.
bool has_mig_parts(const HookContext& context);

/// Numbers of GPUs that count all of the node's, as the program must see them when it can open only those that Slurm lists in
/// `step_gpus`. Nothing if it is no list of such numbers.
std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus);

/// Where others' GPUs are covered, a program counts only those that it can open, as it would if Slurm had constrained devices: so
/// these variables of the task are counted anew. Nothing happens where a CDI file can have brought the GPUs: it covers none.
void renumber_variables(const HookContext& context, std::size_t accessible, std::initializer_list<const char*> names,
                        Edits& edits);

}  // namespace spc
