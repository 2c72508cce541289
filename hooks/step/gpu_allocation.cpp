#include "hooks/step/gpu_allocation.hpp"

#include <algorithm>
#include <iterator>

#include "base/format.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

/// Global numbers of the step's GPUs in ascending order; empty if Slurm says nothing that can be understood.
std::set<std::uint32_t> numbers_in(std::string_view list) {
  std::set<std::uint32_t> numbers;
  for (const std::string& part : parts_of(list)) {
    const auto number = decimal(part);
    if (!number) return {};
    numbers.insert(*number);
  }
  return numbers;
}

/// N of /dev/nvidiaN and its like; nothing for a node that is not called so.
std::optional<std::uint32_t> number_behind(std::string_view prefix, std::string_view node) {
  return node.starts_with(prefix) ? decimal(node.substr(prefix.size())) : std::nullopt;
}

const std::string* list_of_slurm(const HookContext& context) {
  const std::string* list = context.of_job("SLURM_STEP_GPUS");
  return list != nullptr ? list : context.of_job("SLURM_JOB_GPUS");
}

}  // namespace

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

std::optional<std::string> renumbered(std::string_view visible, std::string_view step_gpus) {
  const auto of_step = numbers_in(step_gpus);
  std::string local;
  for (const std::string& part : parts_of(visible)) {
    const auto number = decimal(part);
    const auto found = number ? of_step.find(*number) : of_step.end();
    if (found == of_step.end()) return std::nullopt;
    local += (local.empty() ? "" : ",") + std::to_string(std::distance(of_step.begin(), found));
  }
  return local.empty() ? std::nullopt : std::optional(local);
}

void renumber_variables(const HookContext& context, std::size_t accessible,
                        std::initializer_list<const char*> names, Edits& edits) {
  if (context.flag("prefer_cdi", false) || !context.devices.empty() ||
      !allocated_of(context, accessible))
    return;
  for (const char* name : names) {
    const std::string* visible = context.of_job(name);
    const auto local =
        visible == nullptr ? std::nullopt : renumbered(*visible, *list_of_slurm(context));
    if (!local || *local == *visible) continue;
    edits.environment.set[name] = *local;
    edits.notes.push_back(formatted(
        "{}={}: numbered among the GPUs accessible in the container; on the host it is {}", name,
        *local, *visible));
  }
}

}  // namespace spc
