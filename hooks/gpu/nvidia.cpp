#include <algorithm>

#include "base/format.hpp"
#include "hooks/cdi/cdi.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/gpu/nvidia_choice.hpp"
#include "hooks/gpu/nvidia_files.hpp"
#include "hooks/gpu/requirement.hpp"
#include "hooks/node/node_files.hpp"
#include "hooks/nvidia_driver/cuda_compat.hpp"
#include "hooks/step/gpu_allocation.hpp"

namespace spc {
namespace {

std::set<std::string> accessible_nodes(const HookContext& context, const NvidiaDriver& driver) {
  std::set<std::string> nodes;
  const auto ask = [&](const std::string& node) {
    if (!node.empty() && context.may_open(node)) nodes.insert(node);
  };
  for (const NvidiaGpu& gpu : driver.gpus) {
    ask(gpu.node);
    for (const std::string& node : gpu.dri) ask(node);
    for (const NvidiaMig& mig : gpu.migs) {
      ask(mig.gpu_instance_node);
      ask(mig.compute_instance_node);
    }
  }
  for (const NvidiaFile& control : driver.control_nodes) ask(control.path);
  for (const auto* list : {&driver.imex_channels, &driver.nvswitch_nodes, &driver.fs_nodes}) {
    for (const std::string& node : *list) ask(node);
  }
  ask(driver.gdrcopy_node);
  return nodes;
}

/// Why the driver's libraries cannot work; empty if they can.
std::string why_no_driver(const NvidiaDriver& driver) {
  if (driver.versions_agree()) return {};
  if (driver.version.empty()) return "the node has GPUs, but no NVIDIA driver";
  if (driver.library_version.empty()) {
    return formatted(
        "the kernel has NVIDIA driver {}, but its libraries were not found"
        " (hint: set driver_root in config.toml)",
        driver.version);
  }
  return formatted(
      "the NVIDIA kernel driver is {}, but the libraries on this node are {}"
      " (hint: reboot the node or reload the driver's module)",
      driver.version, driver.library_version);
}

bool when(const HookContext& context) {
  return wants_gpus(context) && (!context.granted_devices || granted_nvidia_gpus(context) > 0);
}

Result<Edits> prepare_nvidia(const HookContext& context) {
  if (cdi_serves_gpus(context)) {
    Edits edits;
    edits.notes.emplace_back("60-cdi injects NVIDIA GPUs");
    return edits;
  }
  if (!NodeFiles(context.host_root).exists("/dev/nvidiactl")) return Edits();
  auto node = std::make_shared<NvidiaNode>();
  node->driver = discover_nvidia(context.host_root, context.setting("driver_root"));
  const NvidiaDriver& driver = node->driver;
  node->accessible = accessible_nodes(context, driver);
  Edits edits;
  const auto can_open = [&](const NvidiaGpu& gpu) { return node->accessible.contains(gpu.node); };
  if (std::ranges::none_of(driver.gpus, can_open)) return edits;
  edits.notes = driver.notes;
  if (const std::string why = why_no_driver(driver); !why.empty()) {
    if (context.gpu.value_or(false)) {
      edits.refusal = why;
    } else {
      edits.warnings.push_back(why);
    }
  }
  node->offers = offers_of(context, driver);
  for (const NvidiaOffer& offer : node->offers) edits.mounts.push_back(offer.mount);
  edits.denied_devices = deniable_nodes(*node);
  edits.found = std::move(node);
  return edits;
}

/// What CUDA needs besides the driver's files: whose libcuda it is to be, and the node of unified memory.
void prepare_cuda(const HookContext& context, const NvidiaNode& node, std::uint32_t uses, Edits& edits) {
  CudaCompat compat;
  if ((uses & for_compute) != 0) {
    compat = cuda_compat_of_image(context, node.driver.version);
    if (!compat.directory.empty()) edits.library_directories.push_back({.path = compat.directory, .before = true});
    if (!compat.reason.empty()) edits.notes.push_back(compat.reason);
    if (!node.accessible.contains("/dev/nvidia-uvm")) {
      edits.warnings.emplace_back(
          "no /dev/nvidia-uvm, which CUDA needs (hint: on the node: modprobe nvidia-uvm)");
    }
  }
  check_requirements(context, node.driver, !compat.directory.empty(), edits);
}

Result<void> create_nvidia(const HookContext& context, Edits& edits) {
  const auto* node = edits.found_as<NvidiaNode>();
  if (node == nullptr) return {};
  NvidiaChoice choice = choose_nvidia(context, *node);
  edits.denied_devices = std::move(choice.denied);
  std::ranges::move(choice.notes, std::back_inserter(edits.notes));
  std::ranges::move(choice.warnings, std::back_inserter(edits.warnings));
  edits.refusal = choice.refusal;
  if (choice.nothing || !choice.refusal.empty()) {
    for (MountEdit& mount : edits.mounts) mount.target.clear();
    if (choice.nothing) edits.warnings.clear();
    return {};
  }
  for (std::string& path : choice.devices) {
    edits.devices.push_back({.path = std::move(path), .source = {}, .optional = true});
  }
  place_files(context, node->offers, choice.uses, edits);
  if (node->driver.versions_agree()) prepare_cuda(context, *node, choice.uses, edits);
  return {};
}

Result<Edits> task_nvidia(const HookContext& context) {
  Edits edits;
  const std::size_t accessible = granted_nvidia_gpus(context);
  if (!has_mig_parts(context)) renumber_variables(context, accessible, {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}, edits);
  return edits;
}

}  // namespace

const Hook nvidia_hook{.name = "98-nvidia",
                       .says = "NVIDIA driver and the step's GPUs",
                       .when = when,
                       .prepare = prepare_nvidia,
                       .create = create_nvidia,
                       .task = task_nvidia};

}  // namespace spc
