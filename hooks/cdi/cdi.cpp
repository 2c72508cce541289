#include "hooks/cdi/cdi.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "hooks/cdi/inject.hpp"

namespace spc {
namespace {

constexpr char kGpus[] = "nvidia.com/gpu";

/// A file that a test has made is its own.
uid_t trusted_owner(const HookContext& context) { return context.host_root.empty() ? 0 : ::geteuid(); }

bool names_gpus(const HookContext& context) {
  return std::any_of(context.devices.begin(), context.devices.end(),
                     [](const std::string& name) { return name.starts_with(std::string(kGpus) + "="); });
}

/// Whether the site wants GPUs to come by CDI, and this step has not said that it wants none.
bool prefers_cdi(const HookContext& context) {
  return context.flag("prefer_cdi", false) && context.gpu.value_or(context.setting("gpu", "auto") != "off");
}

/// The GPUs whose nodes the step may open. A GPU has several names (index, UUID) in such a file; each is taken once.
std::vector<CdiEntry> usable_gpus(const HookContext& context, const CdiRegistry& registry) {
  std::vector<CdiEntry> usable;
  std::set<std::string> covered;
  for (const CdiEntry& entry : registry.devices_of(kGpus)) {
    if (entry.device->name == "all") continue;
    std::vector<std::string> nodes;
    for (const CdiDeviceNode& node : entry.device->edits.device_nodes) {
      const std::string& path = node.host_path.empty() ? node.path : node.host_path;
      // A display node may be closed to a user who may compute.
      if (!path.starts_with("/dev/dri/")) nodes.push_back(path);
    }
    const bool open = std::all_of(nodes.begin(), nodes.end(), [&](const std::string& node) { return context.may_open(node); });
    const bool known = std::all_of(nodes.begin(), nodes.end(), [&](const std::string& node) { return covered.contains(node); });
    if (!open || known) continue;
    covered.insert(nodes.begin(), nodes.end());
    usable.push_back(entry);
  }
  return usable;
}

bool wanted(const HookContext& context) { return !context.devices.empty() || prefers_cdi(context); }

Result<Edits> prepare(const HookContext& context) {
  const auto registry = CdiRegistry::read(context.host_root, trusted_owner(context));
  std::vector<CdiEntry> devices;
  if (prefers_cdi(context) && !names_gpus(context)) devices = usable_gpus(context, registry);
  Edits edits;
  const bool matters = !context.devices.empty() || !devices.empty() || context.may_open("/dev/nvidiactl");
  for (const std::string& text : context.devices) {
    const auto name = SPC_TRY(CdiName::parse(text));
    const auto found = SPC_TRY(registry.find(name));
    devices.insert(devices.end(), found.begin(), found.end());
  }
  if (!devices.empty()) edits = SPC_TRY(edits_for(context, devices));
  auto& problems = matters ? edits.warnings : edits.notes;
  problems.insert(problems.begin(), registry.problems().begin(), registry.problems().end());
  return edits;
}

/// What only the image can answer.
Result<void> create(const HookContext&, Edits& edits) {
  std::erase_if(edits.library_directories, [](const LibraryDirectoryEdit& it) { return it.path == kCudaCompatDirectory; });
  return {};
}

}  // namespace

bool cdi_serves_gpus(const HookContext& context) {
  const auto off = context.settings_of("hooks_off");
  if (std::find(off.begin(), off.end(), cdi_hook.name) != off.end()) return false;
  if (names_gpus(context)) return true;
  return prefers_cdi(context) && !usable_gpus(context, CdiRegistry::read(context.host_root, trusted_owner(context))).empty();
}

const Hook cdi_hook{.name = "60-cdi",
                    .says = "devices as CDI files in /etc/cdi and /run/cdi describe them",
                    .when = wanted,
                    .prepare = prepare,
                    .create = create};

}  // namespace spc
