#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.hpp"
#include "base/format.hpp"
#include "hooks/cdi/cdi.hpp"
#include "hooks/gpu/gpu_hooks.hpp"
#include "hooks/gpu/nvidia_choice.hpp"
#include "hooks/gpu/nvidia_files.hpp"
#include "hooks/gpu/requirement.hpp"
#include "hooks/loader/image_loader.hpp"
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

bool has_nvidia_hardware(const NodeFiles& node) {
  if (node.exists("/proc/driver/nvidia")) return true;
  const std::string devices = "/sys/bus/pci/devices/";
  return std::ranges::any_of(node.names(devices), [&](const std::string& address) {
    return node.text(devices + address + "/vendor").starts_with("0x10de") &&
           node.text(devices + address + "/class").starts_with("0x03");
  });
}

/// A node that keeps the step from all GPUs, and the errno of opening it; nothing if there is none.
std::optional<std::pair<std::string, int>> closed_node(const HookContext& context,
                                                       const NodeFiles& node) {
  const auto refuses = [&](const std::string& path) {
    const bool opens =
        ::faccessat(AT_FDCWD, (context.host_root + path).c_str(), R_OK | W_OK, AT_EACCESS) == 0;
    return opens ? 0 : errno;
  };
  std::vector<std::string> paths{"/dev/nvidiactl"};
  for (const std::string& name : node.names("/dev", "nvidia")) {
    if (number_behind("nvidia", name)) paths.push_back("/dev/" + name);
  }
  if (paths.size() == 1) paths.emplace_back("/dev/nvidia0");
  for (const std::string& path : paths) {
    if (const int error = refuses(path); error != 0) return std::pair(path, error);
  }
  return std::nullopt;
}

/// Why the step can open none of the GPUs that Slurm has allocated to it; empty on a node without
/// NVIDIA GPUs.
std::string why_none_opens(const HookContext& context) {
  const NodeFiles node(context.host_root);
  const auto closed = closed_node(context, node);
  if (!closed || !has_nvidia_hardware(node)) return {};
  const auto& [path, error] = *closed;
  const char* hint =
      "the NVIDIA driver is not loaded: on the node, as root: nvidia-modprobe -u -c0";
  if (error == EACCES)
    hint = "the user must be in its group, or the driver's option NVreg_DeviceFileMode be 0666";
  if (error == EPERM) hint = "gres.conf must name the device files that this node has";
  return formatted(
      "Slurm allocated the GPUs {}, but none can be opened: {} (hint: {}; scontainer doctor says "
      "more)",
      *list_of_slurm(context), Error::from_errno(error, path).message(), hint);
}

bool when(const HookContext& context) {
  if (!wants_gpus(context)) return false;
  return !context.granted_devices || granted_nvidia_gpus(context) > 0 || slurm_gave_gpus(context);
}

Result<Edits> prepare_nvidia(const HookContext& context) {
  if (cdi_serves_gpus(context)) {
    Edits edits;
    edits.notes.emplace_back("60-cdi injects NVIDIA GPUs");
    return edits;
  }
  if (context.granted_devices && granted_nvidia_gpus(context) == 0) {
    Edits edits;
    if (step_has_gpus(context)) return edits;  // of another vendor
    if (std::string why = why_none_opens(context); !why.empty())
      edits.warnings.push_back(std::move(why));
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
  node->has_mps = !mps_directory(context).empty();
  for (const NvidiaOffer& offer : node->offers) edits.mounts.push_back(offer.mount);
  edits.denied_devices = deniable_nodes(*node);
  edits.found = std::move(node);
  return edits;
}

/// An image whose programs cannot load what is injected.
bool has_musl_only(const HookContext& context) {
  if (!context.open_in_image) return false;
  const auto loaders = loaders_of_image(context);
  const auto is_glibc = [](const ImageLoader& loader) { return loader.glibc; };
  return !loaders.empty() && std::ranges::none_of(loaders, is_glibc);
}

/// What CUDA needs besides the driver's files: whose libcuda it is to be, and the node of unified
/// memory.
void prepare_cuda(const HookContext& context, const NvidiaNode& node, std::uint32_t uses,
                  Edits& edits) {
  CudaCompat compat;
  if ((uses & for_compute) != 0) {
    auto accessible = node.driver.gpus;
    std::erase_if(accessible,
                  [&](const NvidiaGpu& gpu) { return !node.accessible.contains(gpu.node); });
    compat =
        cuda_compat_of_image(context, node.driver.version, why_no_cuda_compat(context, accessible));
    if (!compat.directory.empty())
      edits.library_directories.push_back({.path = compat.directory, .before = true});
    if (!compat.reason.empty()) edits.notes.push_back(compat.reason);
    if (!node.accessible.contains("/dev/nvidia-uvm")) {
      edits.warnings.emplace_back(
          "no /dev/nvidia-uvm, which CUDA needs (hint: on the node, as root: nvidia-modprobe -u "
          "-c0)");
    }
    if (node.has_mps && (context.own_ipc || context.own_pid)) {
      edits.warnings.emplace_back(
          "the node's MPS daemon may refuse programs in IPC or PID namespaces of their own, with "
          "CUDA error 805"
          " (hint: leave out --container-unshare)");
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
    if (!choice.nothing) return {};
    edits.warnings.clear();
    const std::string* void_of_job = context.of_job("NVIDIA_VISIBLE_DEVICES");
    if (void_of_job != nullptr && slurm_gave_gpus(context)) {
      edits.warnings.push_back(
          formatted("Slurm allocated the GPUs {}, but the job has NVIDIA_VISIBLE_DEVICES={}: none "
                    "is injected (hint: unset it)",
                    *list_of_slurm(context), void_of_job->empty() ? "\"\"" : *void_of_job));
    }
    return {};
  }
  for (std::string& path : choice.devices) {
    edits.devices.push_back({.path = std::move(path), .source = {}, .optional = true});
  }
  place_files(context, node->offers, choice.uses, edits);
  if (has_musl_only(context))
    edits.notes.emplace_back(
        "the image has musl: neither the driver's libraries nor nvidia-smi run with it, they need "
        "glibc");
  if (node->driver.versions_agree()) prepare_cuda(context, *node, choice.uses, edits);
  return {};
}

Result<Edits> task_nvidia(const HookContext& context) {
  Edits edits;
  if (has_mig_parts(context) || !allocated_of(context, granted_nvidia_gpus(context))) return edits;
  NvidiaDriver driver;
  discover_nvidia_devices(context.host_root, driver);
  std::vector<unsigned> minors;
  for (const NvidiaGpu& gpu : driver.gpus) {
    if (context.may_open(gpu.node)) minors.push_back(gpu.minor);
  }
  renumber_variables(context, minors, {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}, edits);
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
