#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/hook.hpp"

namespace spc {

// --- host list ---

/// Returns the first host of a Slurm host list (hostlist, src/common/hostlist.c): gpu08-ib for
/// `gpu[08-11,20]-ib,login1`. Empty for a text that is not such a list.
std::optional<std::string> first_host(std::string_view list);

/// Returns the number of tasks on node `index` of the step, from SLURM_STEP_TASKS_PER_NODE:
/// `2(x3),1`.
std::optional<std::uint32_t> tasks_on_node(std::string_view counts, std::uint32_t index);

// --- slurm conf ---

/// Returns the value of a key in a text like slurm.conf: `Key=Value`, several per line, keys in any
/// case, `#` starts a comment. If a key is set several times, the last value is returned. Values
/// end at a blank. Empty if the key is not set.
std::string slurm_setting(std::string_view text, std::string_view key);

/// Returns the text of slurm.conf, mpi.conf and so on, with the files that it includes. Reads it in
/// the job's Slurm configuration directory or, if that is not set, in the distributions'
/// directories. Empty if it cannot be read. The text only gives paths to look at: all files there
/// are opened with the user's rights.
std::string slurm_file(const HookContext& context, std::string_view name);

// --- step size ---

/// The size of a step according to Slurm; a batch script is one task.
struct StepSize {
  std::uint32_t tasks = 1, nodes = 1;
  std::uint32_t tasks_here = 1;  ///< on this node
  std::uint32_t gpus = 0;        ///< on this node

  static StepSize of(const HookContext& context);
  /// Returns whether there is more than one process to communicate.
  [[nodiscard]] bool is_several() const { return tasks > 1 || gpus > 1; }
  [[nodiscard]] bool has_neighbours() const { return tasks_here > 1 || gpus > 1; }
};

// --- gpu allocation ---

/// Returns whether the option or the site requests GPUs at all.
bool wants_gpus(const HookContext& context);

/// Returns whether the step may open any GPU device node, of any vendor; true if that was not
/// determined.
bool step_has_gpus(const HookContext& context);

/// Returns the list of GPUs that Slurm has allocated to the step: SLURM_STEP_GPUS, or
/// SLURM_JOB_GPUS, or nullptr.
const std::string* list_of_slurm(const HookContext& context);

/// Returns whether Slurm has allocated any GPU to this step. srun passes on the list of the job to
/// steps without GPUs.
bool slurm_gave_gpus(const HookContext& context);

/// Returns the numbers in that list, if they select among the GPUs that the step can open. Empty if
/// the step may use all GPUs that it can open. If Slurm constrains devices, these are exactly the
/// listed GPUs, and no selection is needed. If Slurm binds GPUs to tasks, its list is that of one
/// task and cannot be used. `gpu_devices` in config.toml can disable this.
std::optional<std::set<std::size_t>> allocated_of(const HookContext& context,
                                                  std::size_t accessible);

/// Returns, for each of Slurm's GPU numbers, the index of the GPU in a list in PCI order with these
/// minor numbers. With AutoDetect Slurm counts in PCI order, otherwise in the order of the files in
/// gres.conf. Both are the same if minor numbers follow the bus. If they do not, `gpu_numbers` in
/// config.toml decides; empty if it is not set.
std::optional<std::vector<std::size_t>> order_of_slurm(const HookContext& context,
                                                       const std::vector<unsigned>& minors);

/// The GPUs, of those that the step can open, that are allocated to it.
struct GpuAllocation {
  /// indices in PCI order; empty: all that the step can open
  std::optional<std::set<std::size_t>> gpus;
  std::string doubt;  ///< a warning: why Slurm's numbers could not be used
};
/// Returns the allocation by Slurm's numbers. `minors`: of the accessible GPUs, in PCI order.
GpuAllocation allocated_among(const HookContext& context, const std::vector<unsigned>& minors);

/// Returns the number of /dev/nvidia0 and so on among the granted nodes; 0 if not determined.
std::size_t granted_nvidia_gpus(const HookContext& context);
/// Returns whether some of them are MIG partitions, which Slurm numbers differently.
bool has_mig_parts(const HookContext& context);

/// Renumbers GPU numbers that count all GPUs of the node, for a program that can open only those
/// listed in `step_gpus` and counts them in PCI order. `order`: order_of_slurm(). Empty if
/// `visible` is not a list of such numbers.
std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus,
                                      const std::vector<std::size_t>& order);

/// Renumbers these variables of the task if other GPUs are masked: a program then counts only those
/// that it can open, as if Slurm had constrained devices. Has no effect if the GPUs may come from a
/// CDI file, which masks none. `minors`: of the GPUs that the step can open, in PCI order.
void renumber_variables(const HookContext& context, const std::vector<unsigned>& minors,
                        std::initializer_list<const char*> names, Edits& edits);

/// Returns N of /dev/nvidiaN and similar nodes; empty for other names.
std::optional<std::uint32_t> number_behind(std::string_view prefix, std::string_view node);

}  // namespace spc
