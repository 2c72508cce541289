#include <algorithm>
#include <cstring>

#include "base/format.hpp"
#include "doctor/preflight.hpp"

namespace spc {
namespace {

using Verdict = Finding::Verdict;

Finding check_infiniband(const Surroundings& around) {
  constexpr char kWhat[] = "InfiniBand";
  std::string list;
  for (const FabricDevice& device : fabric_of(around)) {
    if (device.kind == FabricDevice::Kind::verbs) list += (list.empty() ? "" : " ") + device.name;
  }
  if (list.empty()) return {kWhat, Verdict::ok, "none", ""};
  std::string open;
  std::string denied;
  for (const std::string& name : around.names_in("/dev/infiniband")) {
    if (!name.starts_with("uverbs")) continue;
    const int error = around.may_open("/dev/infiniband/" + name);
    if (error == 0) {
      open += " " + name;
    } else {
      denied += formatted(" {} ({})", name, std::strerror(error));
    }
  }
  if (open.empty() && denied.empty()) {
    return {kWhat, Verdict::failed, list + ", and there is no /dev/infiniband/uverbs0",
            "modprobe ib_uverbs on the node"};
  }
  if (open.empty())
    return {kWhat, Verdict::failed, formatted("{}, not accessible:{}", list, denied),
            "set mode 0666 (udev rules of rdma-core)"};
  return {kWhat, Verdict::ok, list + ":" + open + (denied.empty() ? "" : "; not" + denied), ""};
}

/// What programs reach by libfabric or PSM2: each kind has device nodes of its own.
Finding check_other_fabrics(const Surroundings& around) {
  constexpr char kWhat[] = "EFA, Omni-Path, Slingshot";
  std::string list;
  for (const FabricDevice& device : fabric_of(around)) {
    const char* module = "ib_uverbs and efa";
    switch (device.kind) {
      case FabricDevice::Kind::verbs: continue;
      case FabricDevice::Kind::efa: break;
      case FabricDevice::Kind::omni_path: module = "hfi1"; break;
      case FabricDevice::Kind::slingshot: module = "cxi-user"; break;
    }
    if (device.node.empty())
      return {kWhat, Verdict::failed, device.name + " has no device node",
              formatted("modprobe {} on the node", module)};
    if (const int error = around.may_open(device.node); error != 0)
      return {kWhat, Verdict::failed,
              formatted("{}: {}: {}", device.name, device.node, std::strerror(error)),
              "set mode 0666 (the vendor's udev rules), and check the step's device cgroup"};
    list += formatted("{}{}: {}", list.empty() ? "" : ", ", device.name, device.node);
  }
  return {kWhat, Verdict::ok,
          list.empty() ? "none" : list + "; images need libfabric, and NCCL its plugin for it", ""};
}

Finding check_verbs_library(const Surroundings& around) {
  constexpr char kWhat[] = "libibverbs";
  if (around.names_in("/sys/class/infiniband").empty())
    return {kWhat, Verdict::ok, "not needed: no InfiniBand", ""};
  for (const char* directory : {"/usr/lib64", "/usr/lib/x86_64-linux-gnu",
                                "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/lib64"}) {
    const std::string path = std::string(directory) + "/libibverbs.so.1";
    if (around.exists(path))
      return {kWhat, Verdict::ok, path + " on the node; images need their own", ""};
  }
  return {kWhat, Verdict::warning, "missing on the node",
          "not needed for images that have it; otherwise install rdma-core"};
}

/// Value of `key` in NCCL's file of K=V lines.
std::string nccl_setting(const std::string& text, std::string_view key) {
  std::string value;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const auto equals = line.find('=');
    if (equals != std::string::npos && std::string_view(line).substr(0, equals) == key)
      value = line.substr(equals + 1);
  }
  return value;
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (end > at) words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// Whether NCCL_SOCKET_IFNAME leaves an interface: a list of beginnings, with = of whole names,
/// with ^ of what is not wanted.
bool leaves_an_interface(const Surroundings& around, std::string list) {
  const bool unwanted = list.starts_with('^');
  if (unwanted) list.erase(0, 1);
  const bool whole = list.starts_with('=');
  if (whole) list.erase(0, 1);
  const auto words = words_of(list);
  return std::any_of(
      around.interfaces.begin(), around.interfaces.end(), [&](const auto& interface) {
        const bool named = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
          return whole ? interface.name == word : interface.name.starts_with(word);
        });
        return named != unwanted;
      });
}

/// NCCL's own order: environment, then the user's file or $NCCL_CONF_FILE, then /etc/nccl.conf.
class NcclSettings {
 public:
  explicit NcclSettings(const Surroundings& around) : around_(around) {
    const auto* home = around.variable("HOME");
    const auto* file = around.variable("NCCL_CONF_FILE");
    user_file_ = file != nullptr ? *file : home != nullptr ? *home + "/.nccl.conf" : "";
    user_ = user_file_.empty() ? "" : around.text_of(user_file_);
    site_ = around.text_of("/etc/nccl.conf");
  }
  [[nodiscard]] std::string value(const char* key) const {
    if (const auto* set = around_.variable(key)) return *set;
    const std::string mine = nccl_setting(user_, key);
    return mine.empty() ? nccl_setting(site_, key) : mine;
  }
  [[nodiscard]] std::string files() const {
    std::string list;
    if (!site_.empty()) list = "/etc/nccl.conf";
    if (!user_.empty()) list += (list.empty() ? "" : " ") + user_file_;
    return list.empty() ? "no nccl.conf" : list;
  }

 private:
  const Surroundings& around_;
  std::string user_file_, user_, site_;
};

Finding check_nccl(const Surroundings& around) {
  constexpr char kWhat[] = "NCCL settings";
  const NcclSettings settings(around);
  const auto* file = around.variable("NCCL_CONF_FILE");
  if (file != nullptr && !around.exists(*file)) {
    return {kWhat, Verdict::warning, formatted("NCCL_CONF_FILE={} does not exist", *file),
            "correct or unset it"};
  }
  for (const char* key : {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_TUNER_CONFIG_PATH"}) {
    const std::string path = settings.value(key);
    if (!path.empty() && !around.exists(path)) {
      return {kWhat, Verdict::failed, formatted("{}={} does not exist", key, path),
              "correct or remove it"};
    }
  }
  const std::string interfaces = settings.value("NCCL_SOCKET_IFNAME");
  if (!interfaces.empty() && !leaves_an_interface(around, interfaces)) {
    return {kWhat, Verdict::failed,
            formatted("NCCL_SOCKET_IFNAME={}, and this node has no such interface with an address",
                      interfaces),
            "remove it: NCCL chooses the right interface on the node's network"};
  }
  return {kWhat, Verdict::ok,
          settings.files() + (interfaces.empty() ? "" : ", NCCL_SOCKET_IFNAME=" + interfaces), ""};
}

}  // namespace

std::vector<FabricDevice> fabric_of(const Surroundings& around) {
  HookContext context;
  context.host_root = around.host_root;
  return fabric_devices(context);
}

std::vector<Finding> check_fabric(const Surroundings& around) {
  return {check_infiniband(around), check_other_fabrics(around), check_verbs_library(around),
          check_nccl(around)};
}

std::vector<Finding> preflight(const Surroundings& around) {
  std::vector<Finding> findings = check_job(around);
  for (const auto part : {check_gpus, check_limits, check_mpi, check_fabric}) {
    for (Finding& finding : part(around)) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace spc
