#include "hooks/gpu/dri.hpp"

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "base/format.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/node/node_files.hpp"
#include "hooks/step/gpu_allocation.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr char kAmd[] = "0x1002";
constexpr char kIntel[] = "0x8086";

using DriGpus = std::vector<const DriGpu*>;

struct AccessibleGpu {
  DriGpu gpu;
  bool of_step;  ///< allocated to it
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

/// Nothing is shown until `create` says so.
Edits offer(const HookContext& context, std::string_view vendor) {
  Edits edits;
  const auto gpus = accessible_dri_gpus(context, vendor);
  if (gpus.empty()) return edits;
  const auto allocated = allocated_of(context, gpus.size());
  auto found = std::make_shared<FoundGpus>();
  for (const DriGpu& gpu : gpus) {
    const bool of_step = !allocated || allocated->contains(found->accessible.size());
    found->accessible.push_back({gpu, of_step});
    for (const std::string& node : dri_nodes_of(gpu)) {
      if (context.may_open(node)) edits.denied_devices.push_back(node);
    }
  }
  edits.found = std::move(found);
  return edits;
}

/// Leaves these open, of the offered ones.
void show(const DriGpus& gpus, Edits& edits) {
  for (const DriGpu* gpu : gpus) {
    for (const std::string& node : dri_nodes_of(*gpu)) {
      if (std::erase(edits.denied_devices, node) != 0)
        edits.devices.push_back({.path = node, .source = {}, .optional = true});
    }
  }
  edits.notes.push_back("GPUs: " + names_of(gpus));
}

Result<Edits> prepare_amd(const HookContext& context) {
  Edits edits = offer(context, kAmd);
  if (edits.found && !context.may_open("/dev/kfd")) {
    edits.warnings.emplace_back(
        "/dev/kfd is not accessible, so ROCm finds no GPU (hint: its group is often render or "
        "video)");
  }
  return edits;
}

/// AMD_VISIBLE_DEVICES, of the job or else of the image: all, none, void, or numbers among the step's GPUs.
Result<void> create_amd(const HookContext& context, Edits& edits) {
  const auto* found = edits.found_as<FoundGpus>();
  if (found == nullptr) return {};
  const std::string* visible = context.of_job("AMD_VISIBLE_DEVICES");
  if (visible == nullptr) visible = context.of_image("AMD_VISIBLE_DEVICES");
  const DriGpus of_step = found->of_step();
  DriGpus shown;
  std::string missing;
  for (const std::string& word : parts_of(visible == nullptr ? "all" : *visible)) {
    const auto number = decimal(word);
    if (word == "all") {
      shown = of_step;
    } else if (number && *number < of_step.size()) {
      shown.push_back(of_step[*number]);
    } else if (word != "none" && word != "void") {
      missing += (missing.empty() ? "" : ", ") + word;
    }
  }
  if (!missing.empty()) {
    const std::string why = formatted(
        "AMD_VISIBLE_DEVICES={} requests {}, which this step does not have; available: {}",
        *visible, missing, names_of(of_step));
    if (!shown.empty()) edits.warnings.push_back(why);
    if (shown.empty())
      edits.refusal = why + " (hint: leave it at \"all\": Slurm selects the GPUs of a step)";
  }
  edits.devices.push_back({.path = "/dev/kfd", .source = {}, .optional = true});
  show(shown, edits);
  return {};
}

Result<Edits> prepare_intel(const HookContext& context) { return offer(context, kIntel); }

Result<void> create_intel(const HookContext&, Edits& edits) {
  if (const auto* found = edits.found_as<FoundGpus>()) show(found->of_step(), edits);
  return {};
}

/// Inside, /sys is the node's. Without a list of Slurm's there is nothing to look at it for.
Edits renumber(const HookContext& context, std::string_view vendor,
               std::initializer_list<const char*> names) {
  Edits edits;
  if (!allocated_of(context, SIZE_MAX)) return edits;
  renumber_variables(context, accessible_dri_gpus(context, vendor).size(), names, edits);
  return edits;
}

Result<Edits> task_amd(const HookContext& context) {
  return renumber(context, kAmd, {"ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"});
}

Result<Edits> task_intel(const HookContext& context) {
  return renumber(context, kIntel, {"ZE_AFFINITY_MASK"});
}

Result<Edits> refuse_without_gpus(const HookContext& context) {
  Edits edits;
  const bool any = context.granted_devices
                       ? step_has_gpus(context)
                       : context.may_open("/dev/nvidiactl") || !dri_gpus(context, kAmd).empty() ||
                             !dri_gpus(context, kIntel).empty();
  if (!any)
    edits.refusal =
        "--container-gpu: this step has no GPU on this node (hint: request one, for example "
        "--gpus=1)";
  return edits;
}

}  // namespace

std::vector<DriGpu> dri_gpus(const HookContext& context, std::string_view vendor) {
  const NodeFiles node(context.host_root);
  const std::string drm = "/sys/class/drm/";
  std::vector<DriGpu> gpus;
  for (const std::string& name : node.names(drm, "renderD")) {
    if (!node.text(drm + name + "/device/vendor").starts_with(vendor)) continue;
    const std::string address = node.link(drm + name + "/device");
    DriGpu gpu{"/dev/dri/" + name, {}, address.substr(address.rfind('/') + 1)};
    const auto cards = node.names(drm + name + "/device/drm", "card");
    if (!cards.empty()) gpu.card_node = "/dev/dri/" + cards.front();
    gpus.push_back(std::move(gpu));
  }
  std::ranges::stable_sort(gpus, {}, &DriGpu::pci_address);
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
