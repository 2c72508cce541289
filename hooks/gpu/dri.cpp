// The hooks for AMD and Intel GPUs, which have a DRM driver in the kernel.

#include "base/text.hpp"
#include "hooks/gpu/gpu_hooks.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>

#include "base/format.hpp"
#include "base/result.hpp"
#include "hooks/hook.hpp"
#include "hooks/node/node.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {
namespace {

constexpr char kAmd[] = "0x1002";
constexpr char kIntel[] = "0x8086";

using DriGpus = std::vector<const DriGpu*>;

struct AccessibleGpu {
  DriGpu gpu;
  bool of_step;  ///< allocated to the step
};

/// The GPUs that the step can open.
struct FoundGpus : HostFindings {
  std::vector<AccessibleGpu> accessible;

  [[nodiscard]] DriGpus of_step() const {
    DriGpus gpus;
    for (const AccessibleGpu& found : accessible) {
      if (found.of_step) gpus.push_back(&found.gpu);
    }
    return gpus;
  }
};

/// Sorts the GPUs like ROCm, which numbers GPUs, and the partitions of a GPU, in the order of KFD.
/// KFD lists only what the process's cgroup allows. If it does not list all, the GPUs stay in PCI
/// order.
void sort_like_rocm(const NodeFiles& node, std::vector<DriGpu>& gpus) {
  const std::string topology = "/sys/class/kfd/kfd/topology/nodes/";
  std::map<std::string, std::size_t> places;
  for (const std::string& name : node.names(topology)) {
    for (const std::string& line : parts_of(node.text(topology + name + "/properties"), '\n')) {
      constexpr std::string_view kMinor = "drm_render_minor ";
      if (line.starts_with(kMinor))
        places.emplace("/dev/dri/renderD" + line.substr(kMinor.size()), places.size());
    }
  }
  const auto is_listed = [&](const DriGpu& gpu) { return places.contains(gpu.render_node); };
  if (!std::ranges::all_of(gpus, is_listed)) return;
  sort_few(gpus, [&](const DriGpu& a, const DriGpu& b) {
    return places.at(a.render_node) < places.at(b.render_node);
  });
}

bool granted_render_node(const HookContext& context) {
  return !context.granted_devices ||
         std::ranges::any_of(*context.granted_devices, [](const std::string& node) {
           return node.starts_with("/dev/dri/renderD");
         });
}

bool wants_dri(const HookContext& context) {
  return wants_gpus(context) && granted_render_node(context);
}

std::string names_of(const DriGpus& gpus) {
  std::string text;
  for (const DriGpu* gpu : gpus)
    text += formatted("{}{} ({})", text.empty() ? "" : ", ", gpu->render_node, gpu->pci_address);
  return text.empty() ? "none" : text;
}

std::vector<std::string> dri_nodes_of(const DriGpu& gpu) {
  return gpu.card_node.empty() ? std::vector{gpu.render_node}
                               : std::vector{gpu.render_node, gpu.card_node};
}

std::vector<DriGpu> accessible_dri_gpus(const HookContext& context, std::string_view vendor) {
  auto gpus = dri_gpus(context, vendor);
  std::erase_if(gpus, [&](const DriGpu& gpu) { return !context.may_open(gpu.render_node); });
  return gpus;
}

std::vector<unsigned> render_minors_of(const std::vector<DriGpu>& gpus) {
  std::vector<unsigned> minors;
  for (const DriGpu& gpu : gpus)
    minors.push_back(number_behind("/dev/dri/renderD", gpu.render_node).value_or(0));
  return minors;
}

/// Finds the GPUs that the step can open.
FoundGpus find_gpus(const HookContext& context, std::string_view vendor, Edits& edits) {
  FoundGpus found;
  const auto gpus = accessible_dri_gpus(context, vendor);
  const auto allocation = allocated_among(context, render_minors_of(gpus));
  if (!allocation.doubt.empty()) edits.warnings.push_back(allocation.doubt);
  for (const DriGpu& gpu : gpus) {
    const bool of_step = !allocation.gpus || allocation.gpus->contains(found.accessible.size());
    found.accessible.push_back({gpu, of_step});
  }
  return found;
}

void add_nodes(const HookContext& context, const DriGpu& gpu, Edits& edits) {
  for (const std::string& node : dri_nodes_of(gpu)) {
    if (context.may_open(node))
      edits.devices.push_back({.path = node, .source = {}, .optional = true});
  }
}

// --- AMD ---

// The hook denies no node. ROCm skips a GPU that is missing (ENOENT) or that the cgroup denies
// (EPERM). If a GPU cannot be opened for another reason, ROCm fails for all (libhsakmt,
// topology.c). ROCR_VISIBLE_DEVICES excludes GPUs that are not selected.

Result<Edits> prepare_amd(const HookContext& context) {
  Edits edits;
  auto found = find_gpus(context, kAmd, edits);
  if (found.accessible.empty()) return Edits();
  edits.found = std::make_shared<FoundGpus>(std::move(found));
  if (!context.may_open("/dev/kfd")) {
    edits.warnings.emplace_back(
        "/dev/kfd is not accessible, so ROCm finds no GPU (hint: its group is often render or "
        "video)");
  }
  return edits;
}

struct AmdSelection {
  DriGpus shown;
  std::string missing;  ///< requested GPUs that do not exist
};

/// Returns AMD_VISIBLE_DEVICES of the job or, if the job has none, of the image: all, none, void,
/// or numbers among the step's GPUs.
std::string amd_visible(const HookContext& context) {
  const std::string* visible = context.of_job("AMD_VISIBLE_DEVICES");
  if (visible == nullptr) visible = context.of_image("AMD_VISIBLE_DEVICES");
  return visible == nullptr ? "all" : *visible;
}

AmdSelection select_amd(const std::string& visible, const DriGpus& of_step) {
  AmdSelection selected;
  const auto show = [&](const DriGpu* gpu) {
    if (std::ranges::find(selected.shown, gpu) == selected.shown.end())
      selected.shown.push_back(gpu);
  };
  for (const std::string& word : parts_of(visible)) {
    const auto number = parse_number(word);
    if (word == "all") {
      std::ranges::for_each(of_step, show);
    } else if (number && *number < of_step.size()) {
      show(of_step[*number]);
    } else if (word != "none" && word != "void") {
      selected.missing += (selected.missing.empty() ? "" : ", ") + word;
    }
  }
  return selected;
}

Result<void> create_amd(const HookContext& context, Edits& edits) {
  const auto* found = edits.found_as<FoundGpus>();
  if (found == nullptr) return {};
  const std::string visible = amd_visible(context);
  const DriGpus of_step = found->of_step();
  const AmdSelection selected = select_amd(visible, of_step);
  if (!selected.missing.empty()) {
    const std::string why = formatted(
        "AMD_VISIBLE_DEVICES={} requests {}, which this step does not have; available: {}", visible,
        selected.missing, names_of(of_step));
    if (!selected.shown.empty()) edits.warnings.push_back(why);
    if (selected.shown.empty())
      edits.refusal = why + " (hint: leave it at \"all\": Slurm selects the GPUs of a step)";
  }
  edits.devices.push_back({.path = "/dev/kfd", .source = {}, .optional = true});
  for (const DriGpu* gpu : selected.shown) add_nodes(context, *gpu, edits);
  edits.notes.push_back("GPUs: " + names_of(selected.shown));
  if (selected.shown.size() < found->accessible.size())
    edits.notes.emplace_back("more GPUs are accessible: ROCR_VISIBLE_DEVICES leaves them out");
  return {};
}

/// Returns the numbers of the shown GPUs among all that ROCm finds, restricted to `given`, the
/// job's own list, if there is one. Returns an empty optional if `given` has other words than
/// numbers, or none of the shown GPUs.
std::optional<std::string> rocr_list(const FoundGpus& found, const DriGpus& shown,
                                     const std::string* given) {
  const auto is_shown = [&](std::size_t number) {
    return std::ranges::find(shown, &found.accessible[number].gpu) != shown.end();
  };
  std::vector<std::size_t> numbers(found.accessible.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  if (given != nullptr) {
    numbers.clear();
    for (const std::string& word : parts_of(*given)) {
      const auto number = parse_number(word);
      if (!number || *number >= found.accessible.size()) return std::nullopt;
      numbers.push_back(*number);
    }
  }
  std::string list;
  for (const std::size_t number : numbers) {
    if (is_shown(number)) list += (list.empty() ? "" : ",") + std::to_string(number);
  }
  if (!list.empty()) return list;
  return shown.empty() ? std::optional<std::string>("-1") : std::nullopt;
}

/// Sets ROCR_VISIBLE_DEVICES. In the container, /sys is the node's, so the GPUs are searched again.
/// Skips the search if the step may use all GPUs that it can open.
Result<Edits> task_amd(const HookContext& context) {
  Edits edits;
  const std::string visible = amd_visible(context);
  const std::string* given = context.of_job("ROCR_VISIBLE_DEVICES");
  if (visible == "all" && (given != nullptr || !allocated_of(context, SIZE_MAX))) return edits;
  Edits unused;  // `create` has reported it
  const FoundGpus found = find_gpus(context, kAmd, unused);
  if (found.accessible.empty()) return edits;
  const DriGpus shown = select_amd(visible, found.of_step()).shown;
  if (given == nullptr && shown.size() == found.accessible.size()) return edits;
  const auto list = rocr_list(found, shown, given);
  if (list && (given == nullptr || *list != *given))
    edits.environment.set["ROCR_VISIBLE_DEVICES"] = *list;
  if (!list) {
    edits.warnings.push_back(formatted(
        "AMD_VISIBLE_DEVICES={} has no effect: ROCR_VISIBLE_DEVICES={} selects no such GPU",
        visible, *given));
  }
  return edits;
}

// --- Intel ---

/// Denies all GPUs until `create` selects some.
Result<Edits> prepare_intel(const HookContext& context) {
  Edits edits;
  auto found = find_gpus(context, kIntel, edits);
  if (found.accessible.empty()) return Edits();
  for (const AccessibleGpu& accessible : found.accessible) {
    for (const std::string& node : dri_nodes_of(accessible.gpu)) {
      if (context.may_open(node)) edits.denied_devices.push_back(node);
    }
  }
  edits.found = std::make_shared<FoundGpus>(std::move(found));
  return edits;
}

/// Keeps the offered GPUs of the step accessible.
Result<void> create_intel(const HookContext& context, Edits& edits) {
  const auto* found = edits.found_as<FoundGpus>();
  if (found == nullptr) return {};
  const DriGpus of_step = found->of_step();
  for (const DriGpu* gpu : of_step) {
    for (const std::string& node : dri_nodes_of(*gpu)) std::erase(edits.denied_devices, node);
    add_nodes(context, *gpu, edits);
  }
  edits.notes.push_back("GPUs: " + names_of(of_step));
  return {};
}

Result<Edits> task_intel(const HookContext& context) {
  Edits edits;
  if (!allocated_of(context, SIZE_MAX)) return edits;
  renumber_variables(context, render_minors_of(accessible_dri_gpus(context, kIntel)),
                     {"ZE_AFFINITY_MASK"}, edits);
  return edits;
}

Result<Edits> refuse_without_gpus(const HookContext& context) {
  Edits edits;
  if (!has_gpus(context))
    edits.refusal =
        "--container-gpu: this step has no GPU on this node (hint: request one, for example "
        "--gpus=1)";
  return edits;
}

}  // namespace

bool has_gpus(const HookContext& context) {
  if (context.granted_devices) return step_has_gpus(context);
  return context.may_open("/dev/nvidiactl") || !dri_gpus(context, kAmd).empty() ||
         !dri_gpus(context, kIntel).empty();
}

std::vector<DriGpu> dri_gpus(const HookContext& context, std::string_view vendor) {
  const NodeFiles node(context.host_root);
  const std::string drm = "/sys/class/drm/";
  std::vector<DriGpu> gpus;
  for (const std::string& name : node.names(drm, "renderD")) {
    const std::string device = node.link(drm + name + "/device");
    const std::string address = device.substr(device.rfind('/') + 1);
    const bool is_partition = vendor == kAmd && address.starts_with("amdgpu_xcp");
    if (!is_partition && !node.text(drm + name + "/device/vendor").starts_with(vendor)) continue;
    DriGpu gpu{"/dev/dri/" + name, {}, address};
    const auto cards = node.names(drm + name + "/device/drm", "card");
    if (!cards.empty()) gpu.card_node = "/dev/dri/" + cards.front();
    gpus.push_back(std::move(gpu));
  }
  sort_few(gpus, [](const DriGpu& a, const DriGpu& b) { return a.pci_address < b.pci_address; });
  if (vendor == kAmd) sort_like_rocm(node, gpus);
  return gpus;
}

const Hook gpu_hook{.name = "97-gpu",
                    .says = "fails --container-gpu without a GPU",
                    .when = [](const HookContext& context) { return context.gpu.value_or(false); },
                    .prepare = refuse_without_gpus};

const Hook amd_hook{.name = "98-amd",
                    .says = "the AMD GPUs of the step",
                    .when = wants_dri,
                    .prepare = prepare_amd,
                    .create = create_amd,
                    .task = task_amd};

const Hook intel_hook{.name = "98-intel",
                      .says = "the Intel GPUs of the step",
                      .when = wants_dri,
                      .prepare = prepare_intel,
                      .create = create_intel,
                      .task = task_intel};

}  // namespace spc
