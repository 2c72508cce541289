#include "hooks/cdi/cdi.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "hooks/cdi/inject.hpp"
#include "hooks/nvidia_driver/cuda_compat.hpp"
#include "hooks/step/gpu_allocation.hpp"

namespace spc {
namespace {

constexpr char kGpus[] = "nvidia.com/gpu";
constexpr char kNoCompat[] = "no compat";  ///< key of what is remembered: why_no_cuda_compat()

/// Root, as this process sees him: in a user namespace of the user (scontainer run) he and all
/// others whom it does not map have one number, and the owner of / tells it. What such a container
/// does, the user could do without CDI, too. A test's files are its own.
uid_t trusted_owner(const HookContext& context) {
  struct stat root {};
  if (!context.host_root.empty()) return ::geteuid();
  return ::stat("/", &root) == 0 ? root.st_uid : 0;
}

bool names_gpus(const HookContext& context) {
  return std::any_of(context.devices.begin(), context.devices.end(), [](const std::string& name) {
    return name.starts_with(std::string(kGpus) + "=");
  });
}

/// Whether the site wants GPUs to come by CDI, and this step has not said that it wants none.
bool prefers_cdi(const HookContext& context) {
  return context.flag("prefer_cdi", false) &&
         context.gpu.value_or(context.setting("gpu", "auto") != "off");
}

/// What of a GPU decides who may use it; a display node may be closed to a user who may compute.
std::vector<std::string> device_nodes_of(const CdiEntry& gpu) {
  std::vector<std::string> nodes;
  for (const CdiDeviceNode& node : gpu.device->edits.device_nodes) {
    const std::string& path = node.host_path.empty() ? node.path : node.host_path;
    if (!path.starts_with("/dev/dri/")) nodes.push_back(path);
  }
  return nodes;
}

/// The GPUs whose nodes the step may open. A GPU has several names (index, UUID) in such a file;
/// each is taken once.
std::vector<CdiEntry> usable_gpus(const HookContext& context, const CdiRegistry& registry) {
  std::vector<CdiEntry> usable;
  std::set<std::string> covered;
  for (const CdiEntry& entry : registry.devices_of(kGpus)) {
    if (entry.device->name == "all") continue;
    const auto nodes = device_nodes_of(entry);
    const bool open = std::all_of(nodes.begin(), nodes.end(),
                                  [&](const std::string& node) { return context.may_open(node); });
    const bool known = std::all_of(nodes.begin(), nodes.end(),
                                   [&](const std::string& node) { return covered.contains(node); });
    if (!open || known) continue;
    covered.insert(nodes.begin(), nodes.end());
    usable.push_back(entry);
  }
  return usable;
}

/// N of its /dev/nvidiaN.
unsigned minor_of(const CdiEntry& gpu) {
  for (const std::string& node : device_nodes_of(gpu)) {
    if (const auto minor = number_behind("/dev/nvidia", node)) return *minor;
  }
  return 0;
}

/// Takes away those that Slurm has not allocated to the step, and denies their nodes. NVIDIA's tool
/// lists them in PCI order.
void take_others(const HookContext& context, std::vector<CdiEntry>& gpus, Edits& edits) {
  if (has_mig_parts(context)) return;
  std::vector<unsigned> minors;
  for (const CdiEntry& gpu : gpus) minors.push_back(minor_of(gpu));
  const GpuAllocation allocation = allocated_among(context, minors);
  if (!allocation.doubt.empty()) edits.warnings.push_back(allocation.doubt);
  if (!allocation.gpus) return;
  std::vector<CdiEntry> kept;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (allocation.gpus->contains(i)) {
      kept.push_back(gpus[i]);
    } else {
      std::ranges::move(device_nodes_of(gpus[i]), std::back_inserter(edits.denied_devices));
    }
  }
  gpus = std::move(kept);
}

std::string why_no_compat_here(const HookContext& context) {
  NvidiaDriver driver;
  discover_nvidia_devices(context.host_root, driver);
  std::erase_if(driver.gpus, [&](const NvidiaGpu& gpu) { return !context.may_open(gpu.node); });
  return why_no_cuda_compat(context, driver.gpus);
}

bool wants_cdi(const HookContext& context) {
  return !context.devices.empty() || prefers_cdi(context);
}

Result<Edits> prepare_cdi_devices(const HookContext& context) {
  const auto registry = CdiRegistry::read(context.host_root, trusted_owner(context));
  std::vector<CdiEntry> devices;
  Edits allocated;
  if (prefers_cdi(context) && !names_gpus(context)) {
    devices = usable_gpus(context, registry);
    take_others(context, devices, allocated);
  }
  Edits edits;
  const bool matters =
      !context.devices.empty() || !devices.empty() || context.may_open("/dev/nvidiactl");
  for (const std::string& text : context.devices) {
    const auto name = SPC_TRY(CdiName::parse(text));
    const auto found = SPC_TRY(registry.find(name));
    devices.insert(devices.end(), found.begin(), found.end());
  }
  if (!devices.empty()) edits = SPC_TRY(edits_for(context, devices));
  if (edits.remembered.contains(kCdiDriverVersion))
    edits.remembered[kNoCompat] = why_no_compat_here(context);
  edits.denied_devices = std::move(allocated.denied_devices);
  std::ranges::move(allocated.warnings, std::back_inserter(edits.warnings));
  auto& problems = matters ? edits.warnings : edits.notes;
  problems.insert(problems.begin(), registry.problems().begin(), registry.problems().end());
  return edits;
}

/// Whether CUDA libraries of the image take the place of the driver's only the image can say.
Result<void> create_cdi_devices(const HookContext& context, Edits& edits) {
  const auto version = edits.remembered.find(kCdiDriverVersion);
  if (version == edits.remembered.end() || !context.open_in_image) return {};
  const CudaCompat compat =
      cuda_compat_of_image(context, version->second, edits.remembered[kNoCompat]);
  if (!compat.directory.empty())
    edits.library_directories.push_back({.path = compat.directory, .before = true});
  if (!compat.reason.empty()) edits.notes.push_back(compat.reason);
  return {};
}

}  // namespace

bool cdi_serves_gpus(const HookContext& context) {
  const auto off = context.settings_of("hooks_off");
  if (std::find(off.begin(), off.end(), cdi_hook.name) != off.end()) return false;
  if (names_gpus(context)) return true;
  return prefers_cdi(context) &&
         !usable_gpus(context, CdiRegistry::read(context.host_root, trusted_owner(context)))
              .empty();
}

const Hook cdi_hook{.name = "60-cdi",
                    .says = "CDI devices described in /etc/cdi and /run/cdi",
                    .when = wants_cdi,
                    .prepare = prepare_cdi_devices,
                    .create = create_cdi_devices};

}  // namespace spc
