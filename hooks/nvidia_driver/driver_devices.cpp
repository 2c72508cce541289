#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "hooks/loader/elf.hpp"
#include "hooks/node/node_files.hpp"
#include "hooks/nvidia_driver/driver.hpp"
#include "hooks/sort_few.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr char kProcGpus[] = "/proc/driver/nvidia/gpus";
constexpr char kCapabilities[] = "/proc/driver/nvidia/capabilities";
constexpr char kCaps[] = "/dev/nvidia-caps";

/// The number of "gpu0", "gi3" after its letters.
std::optional<std::uint32_t> number_after(std::string_view name, std::string_view letters) {
  return name.starts_with(letters) ? decimal(name.substr(letters.size())) : std::nullopt;
}

/// The node that a file below capabilities stands for, or empty.
std::string node_of_capability(const NodeFiles& node, const std::string& access_file) {
  const std::string minor = field_of(node.text(access_file), "DeviceFileMinor");
  return !decimal(minor) ? std::string() : std::string(kCaps) + "/nvidia-cap" + minor;
}

/// The nodes of DRM that belong to a PCI address.
std::vector<std::string> dri_of(const NodeFiles& node, const std::string& pci_address) {
  std::vector<std::string> nodes;
  if (pci_address.empty()) return nodes;
  for (const std::string& name : node.names("/sys/bus/pci/devices/" + pci_address + "/drm")) {
    if ((name.starts_with("card") || name.starts_with("renderD")) &&
        node.exists("/dev/dri/" + name))
      nodes.push_back("/dev/dri/" + name);
  }
  return nodes;
}

/// "00000000:1B:00.0" or "0000:1b:00.0", as sysfs writes it.
std::string pci_address_of(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto colon = text.find(':');
  if (colon == 8 && text.starts_with("0000")) text.erase(0, 4);
  return text;
}

/// Each instance has a directory gi<G>, and in it one ci<C> for each compute instance.
void add_mig(const NodeFiles& node, NvidiaGpu& gpu) {
  const std::string top = std::string(kCapabilities) + "/gpu" + std::to_string(gpu.minor) + "/mig";
  for (const std::string& gi : node.names(top, "gi")) {
    const auto gpu_instance = number_after(gi, "gi");
    if (!gpu_instance) continue;
    gpu.mig_mode = true;
    for (const std::string& ci : node.names(top + "/" + gi, "ci")) {
      const auto compute_instance = number_after(ci, "ci");
      if (!compute_instance) continue;
      gpu.migs.push_back({
          .gpu_instance = *gpu_instance,
          .compute_instance = *compute_instance,
          .gpu_instance_node = node_of_capability(node, top + "/" + gi + "/access"),
          .compute_instance_node = node_of_capability(node, top + "/" + gi + "/" + ci + "/access"),
      });
    }
  }
}

std::vector<NvidiaGpu> gpus_in_proc(const NodeFiles& node) {
  std::vector<NvidiaGpu> gpus;
  for (const std::string& address : node.names(kProcGpus)) {
    const std::string text = node.text(std::string(kProcGpus) + "/" + address + "/information");
    const auto minor = decimal(field_of(text, "Device Minor"));
    if (!minor) continue;
    NvidiaGpu gpu;
    gpu.minor = *minor;
    gpu.node = "/dev/nvidia" + std::to_string(*minor);
    gpu.pci_address = pci_address_of(address);
    gpu.uuid = field_of(text, "GPU UUID");
    if (gpu.uuid.find('?') != std::string::npos)
      gpu.uuid.clear();  // GPU-????????-...: nobody has used it yet
    gpu.model = field_of(text, "Model");
    gpus.push_back(std::move(gpu));
  }
  // Addresses have one width and lower case: sorted as text they are in the order of the bus.
  sort_few(gpus,
           [](const NvidiaGpu& a, const NvidiaGpu& b) { return a.pci_address < b.pci_address; });
  return gpus;
}

/// Where the driver says nothing in /proc.
std::vector<NvidiaGpu> gpus_in_dev(const NodeFiles& node) {
  std::vector<NvidiaGpu> gpus;
  for (const std::string& name : node.names("/dev", "nvidia")) {
    const auto minor = number_after(name, "nvidia");
    if (!minor) continue;
    NvidiaGpu gpu;
    gpu.minor = *minor;
    gpu.node = "/dev/" + name;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void add_gpus(const NodeFiles& node, NvidiaDriver& driver) {
  driver.gpus = gpus_in_proc(node);
  if (driver.gpus.empty()) {
    driver.gpus = gpus_in_dev(node);
    if (!driver.gpus.empty())
      driver.notes.push_back(std::string(kProcGpus) +
                             " is empty: GPUs are ordered by device node number");
  }
  for (NvidiaGpu& gpu : driver.gpus) {
    gpu.dri = dri_of(node, gpu.pci_address);
    add_mig(node, gpu);
  }
}

std::vector<std::string> nodes_in(const NodeFiles& node, const std::string& directory,
                                  const std::string& prefix) {
  std::vector<std::string> nodes;
  for (const std::string& name : node.names(directory, prefix))
    nodes.push_back(directory + "/" + name);
  return nodes;
}

}  // namespace

std::string fabric_manager_trace(const std::string& host_root) {
  for (const char* directory : {"/run/nvidia-fabricmanager", "/var/run/nvidia-fabricmanager"}) {
    for (const char* name : {"/socket", "/nv-fabricmanager.pid", "/fm_sm_ipc.socket"}) {
      const std::string path = std::string(directory) + name;
      if (::access((host_root + path).c_str(), F_OK) == 0 || errno == EACCES) return path;
    }
  }
  return {};
}

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
