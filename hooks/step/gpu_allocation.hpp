#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

/// Whether GPUs are wanted at all: by the option or the site.
bool wants_gpus(const HookContext& context);

/// Whether the step may open any GPU device node, of any vendor; true if that was not determined.
bool step_has_gpus(const HookContext& context);

/// Which of the GPUs that the step can open, counted in PCI order from 0, Slurm has allocated to it; empty if all of them
/// count as its own. Slurm numbers them like this in SLURM_STEP_GPUS, and AutoDetect lists them so. If Slurm constrains
/// devices, the accessible GPUs are those listed, and there is nothing to select; if it binds GPUs to tasks, its list is that of
/// one task and cannot be used. `gpu_devices` in config.toml can disable this.
std::optional<std::set<std::size_t>> allocated_of(const HookContext& context, std::size_t accessible);

/// /dev/nvidia0 and so on among the granted nodes; empty if not determined.
std::size_t granted_nvidia_gpus(const HookContext& context);
/// Whether some are MIG partitions, which Slurm numbers differently.
bool has_mig_parts(const HookContext& context);

/// GPU numbers that count all GPUs of the node, renumbered for a program that can open only those listed in
/// `step_gpus`. Empty if it is not a list of such numbers.
std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus);

/// If others' GPUs are masked, a program counts only those it can open, as if Slurm had constrained devices: so
/// these variables of the task are renumbered. Nothing is done if the GPUs may come from a CDI file, which masks none.
void renumber_variables(const HookContext& context, std::size_t accessible, std::initializer_list<const char*> names,
                        Edits& edits);

}  // namespace spc
