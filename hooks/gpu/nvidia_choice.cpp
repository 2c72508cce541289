#include "hooks/gpu/nvidia_choice.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"
#include "hooks/step/gpu_allocation.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

using Gpus = std::vector<const NvidiaGpu*>;

/// GPU 1 (/dev/nvidia1, GPU-5d...), for people.
std::string in_words(const NvidiaGpu& gpu, std::size_t index) {
  return formatted("{} ({}{})", index, gpu.node, gpu.uuid.empty() ? "" : ", " + gpu.uuid);
}

std::string in_words(const Gpus& gpus) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    text += (i == 0 ? "" : ", ") + in_words(*gpus[i], i);
  return text.empty() ? "none" : text;
}

/// An image can say very much.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 200;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

/// What was selected of the GPUs: a whole one, or parts of it.
struct Selection {
  std::set<const NvidiaGpu*> gpus;
  std::set<const NvidiaMig*> parts;    ///< of those GPUs of which not all is selected
  std::vector<std::string> not_found;  ///< words that name none of them
  std::vector<std::string>
      not_understood;  ///< parts by a UUID that only the driver's library could resolve
};

/// The instance of GI and CI, or the one at an index.
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

/// MIG-GPU-<uuid>/<gi>/<ci>, the names of drivers before 470.
bool select_old_mig(const Gpus& gpus, std::string_view word, Selection& selected) {
  const auto parts = parts_of(word.substr(4), '/');
  if (parts.size() != 3) return false;
  const NvidiaGpu* gpu = gpu_of_uuid(gpus, parts[0]);
  if (gpu == nullptr) return false;
  for (const NvidiaMig& mig : gpu->migs) {
    if (decimal(parts[1]) != mig.gpu_instance || decimal(parts[2]) != mig.compute_instance)
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
                             : gpu_at(gpus, decimal(std::string_view(word).substr(0, colon)));
  const NvidiaMig* part = nullptr;
  if (gpu != nullptr && colon != std::string::npos) {
    part = mig_at(*gpu, decimal(std::string_view(word).substr(colon + 1)));
    if (part == nullptr) gpu = nullptr;
  }
  if (gpu == nullptr) return selected.not_found.push_back(word);
  selected.gpus.insert(gpu);
  if (part != nullptr) selected.parts.insert(part);
}

/// Of a GPU of which parts were selected, the others' nodes are denied; instances of one GPU
/// instance share its node.
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
    } else {
      choice.warnings.push_back("NVIDIA_DRIVER_CAPABILITIES: unknown capability " +
                                in_quotes(shortened(word)));
    }
  }
  return uses;
}

/// Nodes that are not a GPU's own, as far as they exist, may be opened and are for what is wanted.
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

/// Of a list of UUIDs in CUDA_VISIBLE_DEVICES, as Slurm 25.11 can set it: `count` of these, or it
/// is none of the step's.
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

/// MIG partitions have numbers of their own.
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

/// What NVIDIA_VISIBLE_DEVICES says. With --container-gpu an image cannot say that it wants none.
std::string visible_devices(const HookContext& context) {
  if (const std::string* of_job = context.of_job("NVIDIA_VISIBLE_DEVICES")) return *of_job;
  const std::string* of_image = context.of_image("NVIDIA_VISIBLE_DEVICES");
  const std::string wanted = of_image == nullptr ? "all" : *of_image;
  const bool is_none = wanted.empty() || wanted == "void" || wanted == "none";
  return is_none && context.gpu.value_or(false) ? "all" : wanted;
}

/// Refuses a selection that has found nothing of what `asks` for, and says what it has not found.
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
