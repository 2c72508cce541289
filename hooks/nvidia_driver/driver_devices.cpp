#include <algorithm>

#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/node/node_files.hpp"
#include "hooks/loader/elf.hpp"

namespace spc {
namespace {

constexpr char kProcGpus[] = "/proc/driver/nvidia/gpus";
constexpr char kCapabilities[] = "/proc/driver/nvidia/capabilities";
constexpr char kCaps[] = "/dev/nvidia-caps";

/// The number of "gpu0", "gi3" after its letters, or -1.
int number_after(std::string_view name, std::string_view letters) {
  return name.starts_with(letters) ? number_of(name.substr(letters.size())) : -1;
}

/// The node that a file below capabilities stands for, or empty.
std::string node_of_capability(const NodeFiles& node, const std::string& access_file) {
  const std::string minor = field_of(node.text(access_file), "DeviceFileMinor");
  return number_of(minor) < 0 ? std::string() : std::string(kCaps) + "/nvidia-cap" + minor;
}

/// The nodes of DRM that belong to a PCI address.
std::vector<std::string> dri_of(const NodeFiles& node, const std::string& pci_address) {
  std::vector<std::string> nodes;
  if (pci_address.empty()) return nodes;
  for (const std::string& name : node.names("/sys/bus/pci/devices/" + pci_address + "/drm")) {
    if ((name.starts_with("card") || name.starts_with("renderD")) && node.exists("/dev/dri/" + name))
      nodes.push_back("/dev/dri/" + name);
  }
  return nodes;
}

/// "00000000:1B:00.0" or "0000:1b:00.0", as sysfs writes it.
std::string pci_address_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto colon = text.find(':');
  if (colon == 8 && text.starts_with("0000")) text.erase(0, 4);
  return text;
}

/// Each instance has a directory gi<G>, and in it one ci<C> for each compute instance.
void add_mig(const NodeFiles& node, NvidiaGpu& gpu) {
  const std::string top = std::string(kCapabilities) + "/gpu" + std::to_string(gpu.minor) + "/mig";
  for (const std::string& gi : node.names(top, "gi")) {
    const int gpu_instance = number_after(gi, "gi");
    if (gpu_instance < 0) continue;
    gpu.mig_mode = true;
    for (const std::string& ci : node.names(top + "/" + gi, "ci")) {
      const int compute_instance = number_after(ci, "ci");
      if (compute_instance < 0) continue;
      gpu.migs.push_back({.gpu_instance = static_cast<unsigned>(gpu_instance),
                          .compute_instance = static_cast<unsigned>(compute_instance),
                          .gpu_instance_node = node_of_capability(node, top + "/" + gi + "/access"),
                          .compute_instance_node = node_of_capability(node, top + "/" + gi + "/" + ci + "/access")});
    }
  }
}

void add_gpus(const NodeFiles& node, NvidiaDriver& driver) {
  for (const std::string& address : node.names(kProcGpus)) {
    const std::string text = node.text(std::string(kProcGpus) + "/" + address + "/information");
    const int minor = number_of(field_of(text, "Device Minor"));
    if (minor < 0) continue;
    NvidiaGpu gpu;
    gpu.minor = static_cast<unsigned>(minor);
    gpu.node = "/dev/nvidia" + std::to_string(minor);
    gpu.pci_address = pci_address_of(address);
    gpu.uuid = field_of(text, "GPU UUID");
    gpu.model = field_of(text, "Model");
    driver.gpus.push_back(std::move(gpu));
  }
  // Of one width, in lower case: the order of texts is that of the bus.
  std::ranges::stable_sort(driver.gpus, {}, &NvidiaGpu::pci_address);
  if (driver.gpus.empty()) {
    for (const std::string& name : node.names("/dev", "nvidia")) {
      const int minor = number_after(name, "nvidia");
      if (minor < 0) continue;
      NvidiaGpu gpu;
      gpu.minor = static_cast<unsigned>(minor);
      gpu.node = "/dev/" + name;
      driver.gpus.push_back(std::move(gpu));
    }
    if (!driver.gpus.empty())
      driver.notes.push_back(std::string(kProcGpus) + " is empty: GPUs are ordered by device node number");
  }
  for (NvidiaGpu& gpu : driver.gpus) {
    gpu.dri = dri_of(node, gpu.pci_address);
    add_mig(node, gpu);
  }
}

std::vector<std::string> nodes_in(const NodeFiles& node, const std::string& directory, const std::string& prefix) {
  std::vector<std::string> nodes;
  for (const std::string& name : node.names(directory, prefix)) nodes.push_back(directory + "/" + name);
  return nodes;
}

}  // namespace

void discover_nvidia_devices(const std::string& host_root, NvidiaDriver& driver) {
  const NodeFiles node(host_root);
  add_gpus(node, driver);
  const auto control = [&](const std::string& path, std::uint32_t uses) {
    if (node.exists(path)) driver.control_nodes.push_back({path, path, uses});
  };
  control("/dev/nvidiactl", for_any);
  control("/dev/nvidia-uvm", for_compute);
  control("/dev/nvidia-uvm-tools", for_compute);
  control("/dev/nvidia-modeset", for_graphics | for_display);
  for (const char* which : {"config", "monitor"}) {
    const std::string cap = node_of_capability(node, std::string(kCapabilities) + "/mig/" + which);
    if (!cap.empty() && node.exists(cap)) driver.mig_control_nodes.push_back(cap);
  }
  driver.imex_channels = nodes_in(node, "/dev/nvidia-caps-imex-channels", "channel");
  driver.nvswitch_nodes = nodes_in(node, "/dev", "nvidia-nvswitch");
  driver.fs_nodes = nodes_in(node, "/dev", "nvidia-fs");
  if (node.exists("/dev/gdrdrv")) driver.gdrcopy_node = "/dev/gdrdrv";
}

}  // namespace spc
