#include <algorithm>
#include <array>

#include "base/format.hpp"
#include "base/result.hpp"
#include "base/text.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/hook.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {

// --- requirement ---

namespace {

bool starts_with_digit(std::string_view text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9';
}

bool holds(std::string_view condition, const RequirementFacts& facts) {
  const auto begin = condition.find_first_of("=!<>");
  if (begin == std::string_view::npos) return true;
  const auto end = condition.find_first_not_of("=!<>", begin);
  if (end == std::string_view::npos) return true;
  const std::string_view relation = condition.substr(begin, end - begin);
  const std::string_view wanted = condition.substr(end);
  const auto fact = facts.find(condition.substr(0, begin));
  if (fact == facts.end()) return true;
  const int order = starts_with_digit(wanted) ? compare_versions(fact->second, wanted)
                                              : fact->second.compare(wanted);
  if (relation == "=") return order == 0;
  if (relation == "!=") return order != 0;
  if (relation == "<") return order < 0;
  if (relation == "<=") return order <= 0;
  if (relation == ">") return order > 0;
  return relation != ">=" || order >= 0;
}

/// Returns the first condition of an alternative that fails, or an empty text.
std::string_view failing(std::string_view alternative, const RequirementFacts& facts) {
  while (!alternative.empty()) {
    const std::string_view condition = next_part(alternative, ',');
    if (!condition.empty() && !holds(condition, facts)) return condition;
  }
  return {};
}

/// Returns every NVIDIA_REQUIRE_* of the image. The job's value replaces the image's.
std::map<std::string, std::string> requirements_of(const HookContext& context) {
  constexpr std::string_view kPrefix = "NVIDIA_REQUIRE_";
  std::map<std::string, std::string> found;
  for (const auto* variables : {&context.image, &context.job}) {
    for (const auto& [name, value] : *variables) {
      if (name.starts_with(kPrefix)) found[name] = value;
    }
  }
  return found;
}

bool are_disabled(const HookContext& context) {
  constexpr std::array<std::string_view, 6> kYes{"1", "t", "T", "TRUE", "true", "True"};
  const std::string* disabled = of_job_or_image(context, "NVIDIA_DISABLE_REQUIRE");
  return disabled != nullptr && std::ranges::find(kYes, *disabled) != kYes.end();
}

/// Returns 12.4 for 1204.
std::string version_text(unsigned cuda) {
  return std::to_string(cuda / 100) + "." + std::to_string(cuda % 100);
}

std::optional<std::uint32_t> major_of(std::string_view version) {
  return parse_number(version.substr(0, version.find('.')));
}

}  // namespace

std::string unsatisfied_condition(std::string_view requirement, const RequirementFacts& facts) {
  std::string failed;
  while (!requirement.empty()) {
    const std::string_view alternative = next_part(requirement, ' ');
    if (alternative.empty()) continue;
    const std::string_view condition = failing(alternative, facts);
    if (condition.empty()) return {};
    if (failed.empty() || (condition.starts_with("cuda") && !failed.starts_with("cuda")))
      failed = condition;
  }
  return failed;
}

void check_requirements(const HookContext& context, const NvidiaDriver& driver, bool own_libcuda,
                        Edits& edits) {
  if (are_disabled(context)) return;
  const unsigned cuda = cuda_version_of_driver(driver.version);
  RequirementFacts facts{{"driver", driver.version}};
  if (cuda != 0) facts["cuda"] = version_text(cuda);
  const auto requirements = requirements_of(context);
  for (const auto& [name, requirement] : requirements) {
    const std::string condition = unsatisfied_condition(requirement, facts);
    if (condition.empty()) continue;
    edits.refusal = formatted(
        "unsatisfied condition: {}, please update your driver to a newer version, or use an "
        "earlier cuda container"
        " (hint: the driver is {}{}; NVIDIA_DISABLE_REQUIRE=1 skips this check)",
        condition.substr(0, 200), driver.version, cuda != 0 ? ", for CUDA " + facts["cuda"] : "");
    return;
  }
  // Within a major version newer programs run with older drivers, so only warn.
  const std::string* made_for = context.of_image("CUDA_VERSION");
  if (made_for == nullptr || cuda == 0 || own_libcuda ||
      requirements.contains("NVIDIA_REQUIRE_CUDA"))
    return;
  if (major_of(*made_for) > cuda / 100) {
    edits.warnings.push_back(
        formatted("the image is built for CUDA {}, the node's driver {} is for CUDA {}",
                  made_for->substr(0, 200), driver.version, facts["cuda"]));
  }
}

// --- nvidia choice ---

namespace {

using Gpus = std::vector<const NvidiaGpu*>;

/// Returns "GPU 1 (/dev/nvidia1, GPU-5d...)", for messages.
std::string in_words(const NvidiaGpu& gpu, std::size_t index) {
  return formatted("{} ({}{})", index, gpu.node, gpu.uuid.empty() ? "" : ", " + gpu.uuid);
}

std::string in_words(const Gpus& gpus) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    text += (i == 0 ? "" : ", ") + in_words(*gpus[i], i);
  return text.empty() ? "none" : text;
}

/// Shortens texts of the image, which may be very long.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 200;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

/// Selected GPUs: whole ones, or parts of them.
struct Selection {
  std::set<const NvidiaGpu*> gpus;
  std::set<const NvidiaMig*> parts;    ///< of GPUs that are selected in part
  std::vector<std::string> not_found;  ///< requested names without a GPU
  /// parts named by a UUID that only the driver's library could resolve
  std::vector<std::string> not_understood;
};

/// Returns the instance at an index; nullptr if there is none.
const NvidiaMig* mig_at(const NvidiaGpu& gpu, std::optional<std::uint32_t> index) {
  return index && *index < gpu.migs.size() ? &gpu.migs[*index] : nullptr;
}

const NvidiaGpu* gpu_at(const Gpus& gpus, std::optional<std::uint32_t> index) {
  return index && *index < gpus.size() ? gpus[*index] : nullptr;
}

const NvidiaGpu* gpu_of_uuid(const Gpus& gpus, std::string_view uuid) {
  const auto found = std::ranges::find_if(
      gpus, [&](const NvidiaGpu* gpu) { return !uuid.empty() && gpu->uuid == uuid; });
  return found == gpus.end() ? nullptr : *found;
}

/// Selects by MIG-GPU-<uuid>/<gi>/<ci>, the names of drivers before 470.
bool select_old_mig(const Gpus& gpus, std::string_view word, Selection& selected) {
  const auto parts = parts_of(word.substr(4), '/');
  if (parts.size() != 3) return false;
  const NvidiaGpu* gpu = gpu_of_uuid(gpus, parts[0]);
  if (gpu == nullptr) return false;
  for (const NvidiaMig& mig : gpu->migs) {
    if (parse_number(parts[1]) != mig.gpu_instance ||
        parse_number(parts[2]) != mig.compute_instance)
      continue;
    selected.gpus.insert(gpu);
    selected.parts.insert(&mig);
    return true;
  }
  return false;
}

void select(const Gpus& gpus, const std::string& word, Selection& selected) {
  if (word == "all") return selected.gpus.insert(gpus.begin(), gpus.end());
  if (word.starts_with("MIG-GPU-")) {
    if (!select_old_mig(gpus, word, selected)) selected.not_found.push_back(word);
    return;
  }
  if (word.starts_with("MIG-")) {
    const auto before = selected.gpus.size();
    for (const NvidiaGpu* gpu : gpus) {
      if (gpu->mig_mode) selected.gpus.insert(gpu);
    }
    (selected.gpus.size() == before && before == 0 ? selected.not_found : selected.not_understood)
        .push_back(word);
    return;
  }
  const auto colon = word.find(':');
  const NvidiaGpu* gpu = word.starts_with("GPU-")
                             ? gpu_of_uuid(gpus, word)
                             : gpu_at(gpus, parse_number(std::string_view(word).substr(0, colon)));
  const NvidiaMig* part = nullptr;
  if (gpu != nullptr && colon != std::string::npos) {
    part = mig_at(*gpu, parse_number(std::string_view(word).substr(colon + 1)));
    if (part == nullptr) gpu = nullptr;
  }
  if (gpu == nullptr) return selected.not_found.push_back(word);
  selected.gpus.insert(gpu);
  if (part != nullptr) selected.parts.insert(part);
}

/// Denies the nodes of a GPU's parts that were not selected. Instances of one GPU instance share
/// its node.
void deny_other_parts(const NvidiaGpu& gpu, const std::set<const NvidiaMig*>& parts,
                      const std::set<std::string>& accessible, std::vector<std::string>& denied) {
  const auto is_part = [&](const NvidiaMig& mig) { return parts.contains(&mig); };
  if (std::ranges::none_of(gpu.migs, is_part)) return;
  std::set<std::string> kept, others;
  for (const NvidiaMig& mig : gpu.migs)
    (is_part(mig) ? kept : others).insert({mig.gpu_instance_node, mig.compute_instance_node});
  for (const std::string& node : others) {
    if (!kept.contains(node) && accessible.contains(node)) denied.push_back(node);
  }
}

std::vector<std::string> nodes_of(const NvidiaGpu& gpu) {
  std::vector<std::string> nodes{gpu.node};
  nodes.insert(nodes.end(), gpu.dri.begin(), gpu.dri.end());
  return nodes;
}

std::uint32_t uses_of(const HookContext& context, NvidiaChoice& choice) {
  const std::string* words = of_job_or_image(context, "NVIDIA_DRIVER_CAPABILITIES");
  if (words == nullptr || words->empty()) return for_utility | for_compute;
  std::uint32_t uses = 0;
  for (const std::string& word : parts_of(*words)) {
    if (const auto use = nvidia_use_of(word)) {
      uses |= *use;
      if (word != "all") choice.named |= *use;
    } else {
      choice.warnings.push_back("NVIDIA_DRIVER_CAPABILITIES: unknown capability " +
                                in_quotes(shortened(word)));
    }
  }
  return uses;
}

/// Adds nodes that are not a GPU's own, if they exist, may be opened and serve the requested uses.
void add_shared_devices(const NvidiaNode& node, NvidiaChoice& choice) {
  const auto add = [&](const std::string& path) {
    if (!path.empty() && node.accessible.contains(path)) choice.devices.push_back(path);
  };
  for (const NvidiaFile& control : node.driver.control_nodes) {
    if ((control.uses & choice.uses) != 0) add(control.path);
  }
  for (const std::string& path : node.driver.nvswitch_nodes) add(path);
  if ((choice.uses & for_compute) == 0) return;
  for (const std::string& path : node.driver.imex_channels) add(path);
  for (const std::string& path : node.driver.fs_nodes) add(path);
  add(node.driver.gdrcopy_node);
}

void add_gpu_devices(const NvidiaGpu& gpu, const Selection& selected, const NvidiaNode& node,
                     NvidiaChoice& choice) {
  choice.devices.push_back(gpu.node);
  if ((choice.uses & (for_graphics | for_display)) != 0)
    choice.devices.insert(choice.devices.end(), gpu.dri.begin(), gpu.dri.end());
  deny_other_parts(gpu, selected.parts, node.accessible, choice.denied);
  for (const NvidiaMig& mig : gpu.migs) {
    for (const std::string& path : {mig.gpu_instance_node, mig.compute_instance_node}) {
      if (node.accessible.contains(path) &&
          std::ranges::find(choice.denied, path) == choice.denied.end() &&
          std::ranges::find(choice.devices, path) == choice.devices.end())
        choice.devices.push_back(path);
    }
  }
}

Gpus accessible_gpus(const NvidiaNode& node) {
  Gpus accessible;
  for (const NvidiaGpu& gpu : node.driver.gpus) {
    if (node.accessible.contains(gpu.node)) accessible.push_back(&gpu);
  }
  return accessible;
}

Gpus those_at(const Gpus& gpus, const std::set<std::size_t>& indices) {
  Gpus chosen;
  for (const std::size_t index : indices) {
    if (index < gpus.size()) chosen.push_back(gpus[index]);
  }
  return chosen;
}

/// Returns the indices of the UUIDs in CUDA_VISIBLE_DEVICES, as Slurm 25.11 can set it. Empty
/// unless the list has `count` of them, because it is not the step's then.
std::optional<std::set<std::size_t>> allocated_by_uuid(const HookContext& context,
                                                       const Gpus& accessible, std::size_t count) {
  const std::string* visible = context.of_job("CUDA_VISIBLE_DEVICES");
  std::set<std::size_t> indices;
  for (const std::string& word : parts_of(visible == nullptr ? "" : *visible)) {
    const auto found = std::ranges::find(accessible, gpu_of_uuid(accessible, word));
    if (found == accessible.end()) return std::nullopt;
    indices.insert(static_cast<std::size_t>(found - accessible.begin()));
  }
  return indices.size() == count ? std::optional(std::move(indices)) : std::nullopt;
}

/// Returns the allocation. Empty with MIG partitions, which have numbers of their own.
GpuAllocation allocation_of(const HookContext& context, const Gpus& accessible) {
  if (has_mig_parts(context)) return {};
  const auto numbers = allocated_of(context, accessible.size());
  if (!numbers) return {};
  if (auto by_uuid = allocated_by_uuid(context, accessible, numbers->size()))
    return {.gpus = std::move(by_uuid), .doubt = {}};
  std::vector<unsigned> minors;
  for (const NvidiaGpu* gpu : accessible) minors.push_back(gpu->minor);
  return allocated_among(context, minors);
}

/// Returns the value of NVIDIA_VISIBLE_DEVICES. With --container-gpu an image cannot select none.
std::string visible_devices(const HookContext& context) {
  if (const std::string* of_job = context.of_job("NVIDIA_VISIBLE_DEVICES")) return *of_job;
  const std::string* of_image = context.of_image("NVIDIA_VISIBLE_DEVICES");
  const std::string wanted = of_image == nullptr ? "all" : *of_image;
  const bool is_none = wanted.empty() || wanted == "void" || wanted == "none";
  return is_none && context.gpu.value_or(false) ? "all" : wanted;
}

/// Refuses a selection in which nothing that `asks` requests was found, and reports the unknown
/// names.
void judge(const Selection& selected, const std::string& asks, const Gpus& of_step,
           NvidiaChoice& choice) {
  if (!selected.not_found.empty()) {
    std::string words;
    for (const std::string& word : selected.not_found) words += (words.empty() ? "" : ", ") + word;
    const std::string why =
        formatted("{} requests {}, which this step does not have; available: {}", asks,
                  shortened(words), in_words(of_step));
    if (selected.gpus.empty()) {
      const auto is_unknown = [](const NvidiaGpu* gpu) { return gpu->uuid.empty(); };
      const auto is_uuid = [](const std::string& word) { return word.starts_with("GPU-"); };
      const bool may_be_there = std::ranges::any_of(selected.not_found, is_uuid) &&
                                std::ranges::any_of(of_step, is_unknown);
      choice.refusal =
          why + (may_be_there ? " (hint: UUIDs are unknown before the first use: run "
                                "nvidia-persistenced on the node)"
                              : " (hint: leave it at \"all\": Slurm selects the GPUs of a step)");
      return;
    }
    choice.warnings.push_back(why);
  }
  for (const std::string& word : selected.not_understood) {
    choice.notes.push_back(
        shortened(word) +
        ": only the driver's library can resolve this MIG device; all of the step's are injected");
  }
}

void deny_gpu(const NvidiaGpu& gpu, const NvidiaNode& node, NvidiaChoice& choice) {
  for (const std::string& path : nodes_of(gpu)) {
    if (node.accessible.contains(path)) choice.denied.push_back(path);
  }
}

}  // namespace

const std::string* of_job_or_image(const HookContext& context, std::string_view name) {
  const std::string* value = context.of_job(name);
  return value != nullptr ? value : context.of_image(name);
}

std::vector<std::string> deniable_nodes(const NvidiaNode& node) {
  std::vector<std::string> nodes;
  const auto add = [&](const std::string& path) {
    if (node.accessible.contains(path) && std::ranges::find(nodes, path) == nodes.end())
      nodes.push_back(path);
  };
  for (const NvidiaGpu& gpu : node.driver.gpus) {
    for (const std::string& path : nodes_of(gpu)) add(path);
    for (const NvidiaMig& mig : gpu.migs) {
      add(mig.gpu_instance_node);
      add(mig.compute_instance_node);
    }
  }
  return nodes;
}

NvidiaChoice choose_nvidia(const HookContext& context, const NvidiaNode& node) {
  NvidiaChoice choice;
  const Gpus accessible = accessible_gpus(node);
  const GpuAllocation allocation = allocation_of(context, accessible);
  if (!allocation.doubt.empty()) choice.warnings.push_back(allocation.doubt);
  const Gpus of_step = allocation.gpus ? those_at(accessible, *allocation.gpus) : accessible;

  const std::string wanted = visible_devices(context);
  const std::string asks = "NVIDIA_VISIBLE_DEVICES=" + shortened(wanted);
  choice.nothing = wanted.empty() || wanted == "void";
  Selection selected;
  if (!choice.nothing && wanted != "none") {
    for (const std::string& word : parts_of(wanted)) select(of_step, word, selected);
  }
  judge(selected, asks, of_step, choice);
  if (!choice.refusal.empty()) return choice;

  choice.uses = uses_of(context, choice);
  for (const NvidiaGpu* gpu : accessible) {
    if (!selected.gpus.contains(gpu)) deny_gpu(*gpu, node, choice);
  }
  if (choice.nothing) {
    choice.notes.push_back(asks + ": the driver is not injected");
    return choice;
  }
  add_shared_devices(node, choice);
  Gpus shown;
  std::ranges::copy_if(of_step, std::back_inserter(shown),
                       [&](const NvidiaGpu* gpu) { return selected.gpus.contains(gpu); });
  for (const NvidiaGpu* gpu : shown) add_gpu_devices(*gpu, selected, node, choice);
  choice.notes.push_back("GPUs: " + in_words(shown));
  if (allocation.gpus)
    choice.notes.push_back("more GPUs are accessible than Slurm allocated: the others are masked");
  return choice;
}

}  // namespace spc
