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

/// What Slurm has allocated to the step: SLURM_STEP_GPUS, or SLURM_JOB_GPUS, or nullptr.
const std::string* list_of_slurm(const HookContext& context);

/// Whether it has allocated any to this step. The list of the job is passed on by srun to steps
/// without GPUs.
bool slurm_gave_gpus(const HookContext& context);

/// The numbers in that list, if they select among the GPUs that the step can open; empty if all of
/// them count as its own. If Slurm constrains devices, the accessible GPUs are those listed, and
/// there is nothing to select; if it binds GPUs to tasks, its list is that of one task and cannot
/// be used. `gpu_devices` in config.toml can disable this.
std::optional<std::set<std::size_t>> allocated_of(const HookContext& context,
                                                  std::size_t accessible);

/// Where in a list of GPUs in PCI order, with these minor numbers, the GPU of each of Slurm's
/// numbers is. With AutoDetect Slurm counts in PCI order, otherwise in the order of the files in
/// gres.conf. Where minor numbers follow the bus that is the same; where they do not, `gpu_numbers`
/// in config.toml says which: nothing if it does not.
std::optional<std::vector<std::size_t>> order_of_slurm(const HookContext& context,
                                                       const std::vector<unsigned>& minors);

/// Which of the GPUs that the step can open are allocated to it.
struct GpuAllocation {
  std::optional<std::set<std::size_t>> gpus;  ///< counted in PCI order; empty: all count as its own
  std::string doubt;                          ///< a warning: why Slurm's numbers could not be used
};
/// By Slurm's numbers. `minors`: of the accessible GPUs, in PCI order.
GpuAllocation allocated_among(const HookContext& context, const std::vector<unsigned>& minors);

/// /dev/nvidia0 and so on among the granted nodes; empty if not determined.
std::size_t granted_nvidia_gpus(const HookContext& context);
/// Whether some are MIG partitions, which Slurm numbers differently.
bool has_mig_parts(const HookContext& context);

/// GPU numbers that count all GPUs of the node, renumbered for a program that can open only those
/// listed in `step_gpus` and counts them in PCI order. `order`: order_of_slurm(). Empty if it is
/// not a list of such numbers.
std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus,
                                      const std::vector<std::size_t>& order);

/// If others' GPUs are masked, a program counts only those it can open, as if Slurm had constrained
/// devices: so these variables of the task are renumbered. Nothing is done if the GPUs may come
/// from a CDI file, which masks none. `minors`: of the GPUs that the step can open, in PCI order.
void renumber_variables(const HookContext& context, const std::vector<unsigned>& minors,
                        std::initializer_list<const char*> names, Edits& edits);

/// N of /dev/nvidiaN and its like; nothing for a node that is not called so.
std::optional<std::uint32_t> number_behind(std::string_view prefix, std::string_view node);

}  // namespace spc
