#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/format.hpp"
#include "base/text.hpp"
#include "doctor/preflight.hpp"
#include "hooks/cdi/inject.hpp"
#include "hooks/cdi/registry.hpp"

namespace spc {
namespace {

using Verdict = Finding::Verdict;

bool has_driver(const Surroundings& around) {
  return !around.driver.version.empty() || !around.driver.gpus.empty();
}

/// What Slurm has given the step (a list of numbers), or nullptr.
const std::string* given_gpus(const Surroundings& around) {
  for (const char* name : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"}) {
    const std::string* value = around.variable(name);
    if (value != nullptr && !value->empty()) return value;
  }
  return nullptr;
}

bool is_nothing(const std::string& devices) {
  return devices.empty() || devices == "void" || devices == "none";
}

Finding check_nodes(const Surroundings& around) {
  constexpr char kWhat[] = "GPU nodes";
  constexpr char kLoad[] =
      "on the node, before slurmd starts: modprobe nvidia; nvidia-modprobe -c0 -u";
  const bool given = given_gpus(around) != nullptr;
  if (!has_driver(around)) {
    if (given)
      return {kWhat, Verdict::failed, "the step has GPUs, but the NVIDIA driver is not loaded",
              kLoad};
    return {kWhat, Verdict::ok, "none, NVIDIA driver not loaded", ""};
  }
  std::vector<std::string> open;
  std::vector<std::string> denied;
  for (const NvidiaGpu& gpu : around.driver.gpus) {
    const int error = around.may_open(gpu.node);
    if (error == 0) {
      open.push_back(gpu.node);
    } else {
      denied.push_back(formatted("{} ({})", gpu.node, std::strerror(error)));
    }
  }
  if (open.empty() && denied.empty())
    return {kWhat, Verdict::failed, "the driver is loaded, but there is no /dev/nvidia0", kLoad};
  const std::string detail = (open.empty() ? "" : joined(open, " ") + " accessible") +
                             (open.empty() || denied.empty() ? "" : "; ") +
                             (denied.empty() ? "" : "not " + joined(denied, " "));
  if (const int error = around.may_open("/dev/nvidiactl"); error != 0 && !open.empty()) {
    return {kWhat, Verdict::failed,
            formatted("{}; but not /dev/nvidiactl: {}", detail, std::strerror(error)), kLoad};
  }
  if (!open.empty()) return {kWhat, Verdict::ok, detail, ""};
  if (given)
    return {kWhat, Verdict::failed, detail,
            "Slurm allocated GPUs to the step: check gres.conf and restart slurmd"};
  return {kWhat, Verdict::warning, detail,
          "if the job needs a GPU: srun --gpus-per-task=1 in an allocation with GPUs"};
}

/// How many a list like 0,2-3 names; 0 if it is none.
std::size_t count_of(const std::string& list) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, end - at);
    at = end + 1;
    if (part.empty() || part.size() > 12 ||
        part.find_first_not_of("0123456789-") != std::string::npos)
      return 0;
    const auto dash = part.find('-');
    if (dash == 0 || dash == part.size() - 1) return 0;
    const unsigned long first = std::strtoul(part.c_str(), nullptr, 10);
    const unsigned long last =
        dash == std::string::npos ? first : std::strtoul(part.c_str() + dash + 1, nullptr, 10);
    if (last < first || last - first > 1024) return 0;
    count += last - first + 1;
  }
  return count;
}

Finding check_step(const Surroundings& around) {
  constexpr char kWhat[] = "GPUs of the step";
  const std::string* given = given_gpus(around);
  const std::string* visible = around.variable("CUDA_VISIBLE_DEVICES");
  if (given == nullptr && visible == nullptr)
    return {kWhat, Verdict::ok, "none allocated by Slurm", ""};
  const std::string detail =
      (given == nullptr ? "none allocated by Slurm" : "allocated by Slurm: " + *given) +
      (visible == nullptr ? "" : ", CUDA_VISIBLE_DEVICES=" + *visible);
  if (visible != nullptr && (visible->empty() || *visible == "-1" || *visible == "NoDevFiles")) {
    return {kWhat, Verdict::warning, detail,
            "CUDA will see no GPU: request GPUs, or unset CUDA_VISIBLE_DEVICES"};
  }
  const auto may = [&](const NvidiaGpu& gpu) { return around.may_open(gpu.node) == 0; };
  const auto open = static_cast<std::size_t>(
      std::count_if(around.driver.gpus.begin(), around.driver.gpus.end(), may));
  if (given != nullptr && open > 0 && count_of(*given) > open) {
    return {kWhat, Verdict::failed, formatted("{}; only {} accessible", detail, open),
            "gres.conf does not match this node's device files"};
  }
  return {kWhat, Verdict::ok, detail, ""};
}

Finding check_visible(const Surroundings& around) {
  constexpr char kWhat[] = "NVIDIA_VISIBLE_DEVICES";
  const std::string* devices = around.variable("NVIDIA_VISIBLE_DEVICES");
  const std::string* uses = around.variable("NVIDIA_DRIVER_CAPABILITIES");
  const std::string detail =
      (devices == nullptr ? "not set: the image's value applies" : *devices) +
      (uses == nullptr ? "" : ", NVIDIA_DRIVER_CAPABILITIES=" + *uses);
  if (has_driver(around) && devices != nullptr && is_nothing(*devices)) {
    return {kWhat, Verdict::warning, detail.empty() ? "empty" : detail,
            "the job requests no GPU: unset it, or use --container-gpu"};
  }
  if (has_driver(around) && uses != nullptr && *uses != "all" &&
      uses->find("compute") == std::string::npos) {
    return {kWhat, Verdict::warning, detail,
            "CUDA needs compute: NVIDIA_DRIVER_CAPABILITIES=compute,utility"};
  }
  return {kWhat, Verdict::ok, detail, ""};
}

Finding check_driver(const Surroundings& around) {
  constexpr char kWhat[] = "driver";
  const NvidiaDriver& driver = around.driver;
  if (!has_driver(around)) {
    if (driver.library_version.empty()) return {kWhat, Verdict::ok, "none", ""};
    return {kWhat, Verdict::warning,
            formatted("libcuda {}, but its kernel module is not loaded", driver.library_version),
            "modprobe nvidia"};
  }
  if (driver.library_version.empty()) {
    return {kWhat, Verdict::failed,
            formatted("kernel module {}, libcuda.so.1 not found", driver.version),
            "install the driver's libraries on the node, or set driver_root in config.toml to "
            "their location"};
  }
  if (!driver.versions_agree()) {
    return {kWhat, Verdict::failed,
            formatted("kernel module {}, libcuda is {}", driver.version, driver.library_version),
            "the driver was updated: reload the module or reboot the node"};
  }
  return {kWhat, Verdict::ok,
          driver.version + (driver.library_directories.empty()
                                ? ""
                                : ", libraries in " + driver.library_directories[0]),
          ""};
}

Finding check_uvm(const Surroundings& around) {
  constexpr char kWhat[] = "nvidia-uvm";
  constexpr char kCure[] = "on the node, as root, before slurmd starts: nvidia-modprobe -u -c0";
  if (!has_driver(around)) return {kWhat, Verdict::ok, "not needed: no driver", ""};
  if (!around.exists("/dev/nvidia-uvm"))
    return {kWhat, Verdict::failed, "no /dev/nvidia-uvm", kCure};
  if (const int error = around.may_open("/dev/nvidia-uvm"); error != 0) {
    return {kWhat, Verdict::failed, std::string("/dev/nvidia-uvm: ") + std::strerror(error),
            "set mode 0666 and remove it from gres.conf"};
  }
  return {kWhat, Verdict::ok, "/dev/nvidia-uvm accessible", ""};
}

Finding check_fabric_manager(const Surroundings& around) {
  constexpr char kWhat[] = "fabric manager";
  if (around.driver.nvswitch_nodes.empty())
    return {kWhat, Verdict::ok, "not needed: no NVSwitch", ""};
  const std::string trace = fabric_manager_trace(around.host_root);
  if (!trace.empty()) return {kWhat, Verdict::ok, trace, ""};
  return {kWhat, Verdict::warning,
          "the node has NVSwitches, and no fabric manager was found running",
          "if CUDA reports error 802: systemctl start nvidia-fabricmanager; its version must match "
          "the driver's"};
}

Finding check_imex(const Surroundings& around) {
  constexpr char kWhat[] = "IMEX channels";
  const auto& channels = around.driver.imex_channels;
  if (channels.empty()) {
    if (around.text_of("/proc/devices").find("nvidia-caps-imex-channels") == std::string::npos) {
      return {kWhat, Verdict::ok, "not supported by the driver", ""};
    }
    return {kWhat, Verdict::ok, "none: needed only for memory shared between nodes over NVLink",
            ""};
  }
  std::vector<std::string> denied;
  for (const std::string& channel : channels) {
    if (around.may_open(channel) != 0) denied.push_back(channel);
  }
  if (denied.size() == channels.size()) {
    return {kWhat, Verdict::warning, joined(denied, " ") + " not accessible",
            "set SwitchType=switch/nvidia_imex in slurm.conf to create one per job; or mode 0666"};
  }
  return {kWhat, Verdict::ok, std::to_string(channels.size() - denied.size()) + " accessible", ""};
}

/// A file of the host that a specification mounts and that is not there: the driver it was made for
/// has gone.
std::string missing_source(const Surroundings& around, const CdiEdits& edits) {
  for (const CdiMount& mount : edits.mounts) {
    const bool is_bind = mount.type.empty() || mount.type == "bind";
    if (is_bind && !is_of_daemon(mount.host_path) && !around.exists(mount.host_path))
      return mount.host_path;
  }
  return {};
}

Finding check_cdi(const Surroundings& around) {
  constexpr char kWhat[] = "CDI";
  constexpr char kAgain[] = "recreate it: scontainer cdi generate, or nvidia-ctk cdi generate";
  const CdiRegistry registry =
      CdiRegistry::read(around.host_root, around.host_root.empty() ? 0 : ::geteuid());
  if (!registry.problems().empty())
    return {kWhat, Verdict::failed, registry.problems().front(), kAgain};
  std::vector<std::string> found;
  for (const CdiFile& file : registry.files()) {
    std::string missing = missing_source(around, file.spec.edits);
    for (const CdiDevice& device : file.spec.devices) {
      if (missing.empty()) missing = missing_source(around, device.edits);
    }
    if (!missing.empty())
      return {kWhat, Verdict::failed,
              formatted("{} names {}, which does not exist", file.path, missing), kAgain};
    found.push_back(file.path);
  }
  return {kWhat, Verdict::ok,
          found.empty() ? "no specification: not needed for NVIDIA GPUs" : joined(found, " "), ""};
}

Finding check_stubs(const Surroundings& around) {
  constexpr char kWhat[] = "stub libraries";
  const std::string* path = around.variable("LD_LIBRARY_PATH");
  for (std::size_t at = 0; path != nullptr && at < path->size();) {
    const std::size_t end = std::min(path->find(':', at), path->size());
    std::string directory = path->substr(at, end - at);
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    if (directory.ends_with("/stubs")) {
      return {kWhat, Verdict::failed, "LD_LIBRARY_PATH has " + directory,
              "remove it: its libcuda.so.1 is for linking only"};
    }
    at = end + 1;
  }
  return {kWhat, Verdict::ok, "none in LD_LIBRARY_PATH", ""};
}

}  // namespace

std::vector<Finding> check_gpus(const Surroundings& around) {
  return {check_nodes(around),  check_step(around), check_visible(around),
          check_driver(around), check_uvm(around),  check_fabric_manager(around),
          check_imex(around),   check_cdi(around),  check_stubs(around)};
}

}  // namespace spc
