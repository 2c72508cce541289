#include "hooks/step/gpu_allocation.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/format.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

/// Global numbers of the step's GPUs in ascending order; empty if Slurm says nothing that can be
/// understood.
std::set<std::uint32_t> numbers_in(std::string_view list) {
  std::set<std::uint32_t> numbers;
  for (const std::string& part : parts_of(list)) {
    const auto number = decimal(part);
    if (!number) return {};
    numbers.insert(*number);
  }
  return numbers;
}

}  // namespace

std::optional<std::uint32_t> number_behind(std::string_view prefix, std::string_view node) {
  return node.starts_with(prefix) ? decimal(node.substr(prefix.size())) : std::nullopt;
}

const std::string* list_of_slurm(const HookContext& context) {
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  return list != nullptr ? list : context.of_job("SLURM_JOB_GPUS");
}

bool slurm_gave_gpus(const HookContext& context) {
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  if (list == nullptr && context.of_job("SLURM_STEP_ID") == nullptr)
    list = context.of_job("SLURM_JOB_GPUS");
  return list != nullptr && !list->empty();
}

bool wants_gpus(const HookContext& context) {
  return context.gpu.value_or(context.setting("gpu", "auto") != "off");
}

bool step_has_gpus(const HookContext& context) {
  if (!context.granted_devices) return true;
  return granted_nvidia_gpus(context) > 0 ||
         std::ranges::any_of(*context.granted_devices, [](const std::string& node) {
           return node.starts_with("/dev/dri/renderD");
         });
}

std::optional<std::set<std::size_t>> allocated_of(const HookContext& context,
                                                  std::size_t accessible) {
  if (context.setting("gpu_devices", "allocated") != "allocated") return std::nullopt;
  const std::string* list = list_of_slurm(context);
  if (list == nullptr) return std::nullopt;
  const auto numbers = numbers_in(*list);
  // With --gpus-per-task or --gpu-bind the list is this task's, and the container is the step's.
  const std::string* count = context.of_job("SLURM_GPUS_ON_NODE");
  if (count != nullptr && decimal(*count) != numbers.size()) return std::nullopt;
  if (numbers.empty() || numbers.size() >= accessible || *numbers.rbegin() >= accessible)
    return std::nullopt;
  return std::set<std::size_t>(numbers.begin(), numbers.end());
}

std::optional<std::vector<std::size_t>> order_of_slurm(const HookContext& context,
                                                       const std::vector<unsigned>& minors) {
  std::vector<std::size_t> order(minors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::string by = context.setting("gpu_numbers", "auto");
  if (by == "pci" || std::ranges::is_sorted(minors)) return order;
  if (by != "file") return std::nullopt;
  std::ranges::sort(order, {}, [&](std::size_t gpu) { return minors[gpu]; });
  return order;
}

GpuAllocation allocated_among(const HookContext& context, const std::vector<unsigned>& minors) {
  GpuAllocation allocation;
  const auto numbers = allocated_of(context, minors.size());
  if (!numbers) return allocation;
  const auto order = order_of_slurm(context, minors);
  if (!order) {
    allocation.doubt = formatted(
        "Slurm allocated the GPUs {}, but device files are not in PCI order on this node, so these "
        "numbers are ambiguous and"
        " all GPUs that can be opened are used (hint: set ConstrainDevices=yes in cgroup.conf, or "
        "gpu_numbers in config.toml)",
        *list_of_slurm(context));
    return allocation;
  }
  allocation.gpus.emplace();
  for (const std::size_t number : *numbers) allocation.gpus->insert((*order)[number]);
  return allocation;
}

std::size_t granted_nvidia_gpus(const HookContext& context) {
  if (!context.granted_devices) return 0;
  const auto is_gpu = [](const std::string& node) {
    return number_behind("/dev/nvidia", node).has_value();
  };
  return static_cast<std::size_t>(std::ranges::count_if(*context.granted_devices, is_gpu));
}

bool has_mig_parts(const HookContext& context) {
  // 1 and 2 are mig/config and mig/monitor.
  const auto is_part = [](const std::string& node) {
    return number_behind("/dev/nvidia-caps/nvidia-cap", node) > 2U;
  };
  return context.granted_devices && std::ranges::any_of(*context.granted_devices, is_part);
}

std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus,
                                      const std::vector<std::size_t>& order) {
  std::set<std::size_t> of_step;
  for (const std::uint32_t number : numbers_in(step_gpus)) {
    if (number < order.size()) of_step.insert(order[number]);
  }
  std::string local;
  for (const std::string& part : parts_of(visible)) {
    const auto number = decimal(part);
    const auto found =
        number && *number < order.size() ? of_step.find(order[*number]) : of_step.end();
    if (found == of_step.end()) return std::nullopt;
    local += (local.empty() ? "" : ",") + std::to_string(std::distance(of_step.begin(), found));
  }
  return local.empty() ? std::nullopt : std::optional(local);
}

void renumber_variables(const HookContext& context, const std::vector<unsigned>& minors,
                        std::initializer_list<const char*> names, Edits& edits) {
  if (context.flag("prefer_cdi", false) || !context.devices.empty() ||
      !allocated_of(context, minors.size()))
    return;
  const auto order = order_of_slurm(context, minors);
  if (!order) return;
  for (const char* name : names) {
    const std::string* visible = context.of_job(name);
    const auto local =
        visible == nullptr ? std::nullopt : renumbered(*visible, *list_of_slurm(context), *order);
    if (!local || *local == *visible) continue;
    edits.environment.set[name] = *local;
    edits.notes.push_back(formatted(
        "{}={}: numbered among the GPUs accessible in the container; on the host it is {}", name,
        *local, *visible));
  }
}

}  // namespace spc
