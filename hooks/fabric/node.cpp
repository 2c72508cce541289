#include "hooks/fabric/node.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "base/directory.hpp"
#include "base/file.hpp"
#include "hooks/loader/elf.hpp"

namespace spc {
namespace {

std::vector<std::string> entries_of(const std::string& directory) {
  std::vector<std::string> names;
  for (DirectoryReader entries(directory); entries.next();) {
    if (!entries.name().starts_with('.')) names.emplace_back(entries.name());
  }
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return compare_versions(a, b) < 0; });
  return names;
}

/// A line of sysfs without its end; empty if it cannot be read.
std::string line_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto text = file ? read_file(file.get(), 4096) : Result<std::string>(std::string());
  return text ? text->substr(0, text->find('\n')) : "";
}

/// The last part of what a link points to.
std::string last_of_link(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t size = ::readlink(path.c_str(), text, sizeof text);
  const std::string target(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return target.substr(target.rfind('/') + 1);
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Nodes of one class in sysfs (uverbs0, umad1) and the adapters that they belong to.
struct NodesOfClass {
  std::vector<std::pair<std::string, std::string>> nodes;  ///< adapter, /dev/infiniband/NAME

  NodesOfClass(const std::string& root, const std::string& name) {
    const std::string directory = root + "/sys/class/" + name;
    for (const std::string& entry : entries_of(directory)) {
      std::string adapter = line_of(directory + "/" + entry + "/ibdev");
      const std::string node = "/dev/infiniband/" + entry;
      if (!adapter.empty() && exists(root + node)) nodes.emplace_back(std::move(adapter), node);
    }
  }
  [[nodiscard]] std::vector<std::string> of(const std::string& adapter) const {
    std::vector<std::string> found;
    for (const auto& [whose, node] : nodes) {
      if (whose == adapter) found.push_back(node);
    }
    return found;
  }
};

void add_verbs(const std::string& root, std::vector<FabricDevice>& devices) {
  const std::string directory = root + "/sys/class/infiniband";
  const auto names = entries_of(directory);
  if (names.empty()) return;
  const NodesOfClass uverbs(root, "infiniband_verbs");
  const NodesOfClass management(root, "infiniband_mad");
  for (const std::string& name : names) {
    const std::string place = directory + "/" + name;
    FabricDevice device{.kind = FabricDevice::Kind::verbs,
                        .name = name,
                        .provider = {},
                        .link_layer = {},
                        .pci_address = {},
                        .node = {},
                        .others = management.of(name)};
    device.provider = verbs_provider(last_of_link(place + "/device/driver"), name);
    device.link_layer = line_of(place + "/ports/1/link_layer");
    device.pci_address = last_of_link(place + "/device");
    const auto nodes = uverbs.of(name);
    if (device.provider == "efa") {
      device.kind = FabricDevice::Kind::efa;
      device.link_layer = "EFA";  // the kernel says Unknown
    }
    if (device.provider == "hfi1verbs") {
      device.kind = FabricDevice::Kind::omni_path;
      device.link_layer = "Omni-Path";
      device.node = exists(root + "/dev/" + name) ? "/dev/" + name : "";
      device.others.insert(device.others.end(), nodes.begin(), nodes.end());
    } else if (!nodes.empty()) {
      device.node = nodes.front();
    }
    devices.push_back(std::move(device));
  }
}

void add_slingshot(const std::string& root, std::vector<FabricDevice>& devices) {
  const std::string directory = root + "/sys/class/cxi";
  for (const std::string& name : entries_of(directory)) {
    const std::string node = "/dev/" + name;
    devices.push_back({.kind = FabricDevice::Kind::slingshot,
                       .name = name,
                       .provider = "cxi",
                       .link_layer = "Slingshot",
                       .pci_address = last_of_link(directory + "/" + name + "/device"),
                       .node = exists(root + node) ? node : "",
                       .others = {}});
  }
}

}  // namespace

std::string verbs_provider(const std::string& module, const std::string& name) {
  // rdma-core, providers/*: the PCI devices that they match, by the kernel's modules for these.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kOfModules{
      {{"mlx5_core", "mlx5"},
       {"mlx4_core", "mlx4"},
       {"bnxt_en", "bnxt_re"},
       {"ice", "irdma"},
       {"i40e", "irdma"},
       {"idpf", "irdma"},
       {"efa", "efa"},
       {"hns3", "hns"},
       {"hns_roce_hw_v2", "hns"},
       {"erdma", "erdma"},
       {"hfi1", "hfi1verbs"},
       {"cxgb4", "cxgb4"},
       {"qede", "qedr"},
       {"vmw_pvrdma", "vmw_pvrdma"},
       {"mana", "mana"},
       {"ib_qib", "ipathverbs"}}};
  for (const auto& [of_module, provider] : kOfModules) {
    if (module == of_module) return std::string(provider);
  }
  constexpr std::array<std::string_view, 10> kNames{"mlx5",  "mlx4", "bnxt_re", "irdma", "efa",
                                                    "erdma", "hns",  "rxe",     "siw",   "mana"};
  for (const std::string_view provider : kNames) {
    if (name.starts_with(provider)) return std::string(provider);
  }
  return {};
}

std::vector<FabricDevice> fabric_devices(const HookContext& context) {
  std::vector<FabricDevice> devices;
  add_verbs(context.host_root, devices);
  add_slingshot(context.host_root, devices);
  return devices;
}

}  // namespace spc
