#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/format.hpp"
#include "doctor/preflight.hpp"

namespace spc {
namespace {

using Verdict = Finding::Verdict;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kUnlimited = UINT64_MAX;

std::string in_units(std::uint64_t bytes) {
  char text[32];
  if (bytes >= kGiB) {
    std::snprintf(text, sizeof text, "%.1f GiB",
                  static_cast<double>(bytes) / static_cast<double>(kGiB));
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

Finding check_shared_memory(const Surroundings& around) {
  constexpr char kWhat[] = "/dev/shm";
  if (!around.shared_memory)
    return {kWhat, Verdict::failed, "missing", "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"};
  const auto& space = *around.shared_memory;
  const std::string detail = formatted("{}, {} free", in_units(space.total), in_units(space.free));
  // NCCL takes some 33 MiB for each pair of GPUs, MPI about as much, and a DataLoader what its
  // batches need.
  if (space.total < kGiB)
    return {kWhat, Verdict::failed, detail, "mount -o remount,size=50% /dev/shm on the node"};
  if (space.free < kGiB)
    return {kWhat, Verdict::warning, detail, "remove files left by ended jobs"};
  return {kWhat, Verdict::ok, detail, ""};
}

Finding check_locked_memory(const Surroundings& around) {
  constexpr char kWhat[] = "locked memory";
  const auto& limit = around.locked_memory;
  if (limit.soft == kUnlimited) return {kWhat, Verdict::ok, "unlimited", ""};
  const auto adapters = fabric_of(around);
  const bool fabric = !adapters.empty();
  const std::string detail =
      in_units(limit.soft) +
      (fabric ? formatted(", but the node has a fabric ({})", adapters.front().name)
              : "; relevant for fabrics only");
  if (!fabric) return {kWhat, Verdict::ok, detail, ""};
  if (limit.hard == kUnlimited)
    return {kWhat, Verdict::failed, detail, "run ulimit -l unlimited in the job"};
  return {kWhat, Verdict::failed, detail,
          "set LimitMEMLOCK=infinity in slurmd's unit, PropagateResourceLimitsExcept=MEMLOCK in "
          "slurm.conf"};
}

Finding check_open_files(const Surroundings& around) {
  constexpr char kWhat[] = "open files";
  constexpr std::uint64_t kMany = 65536;
  const auto& limit = around.open_files;
  const auto shown = [](std::uint64_t number) {
    return number == kUnlimited ? "unlimited" : std::to_string(number);
  };
  const std::string detail = formatted("{} of at most {}", shown(limit.soft), shown(limit.hard));
  if (limit.hard < kMany)
    return {kWhat, Verdict::warning, detail,
            "for large jobs: set LimitNOFILE=131072 or more in slurmd's unit"};
  if (limit.soft < kMany)
    return {kWhat, Verdict::ok, detail + "; for jobs of many ranks: ulimit -n 65536", ""};
  return {kWhat, Verdict::ok, detail, ""};
}

Finding check_ptrace(const Surroundings& around) {
  constexpr char kWhat[] = "ptrace scope";
  const std::string text = around.text_of("/proc/sys/kernel/yama/ptrace_scope");
  if (text.empty()) return {kWhat, Verdict::ok, "kernel without Yama", ""};
  const int scope = std::atoi(text.c_str());
  const auto adapters = fabric_of(around);
  const auto is_efa = [](const FabricDevice& device) {
    return device.kind == FabricDevice::Kind::efa;
  };
  if (scope == 1 && std::any_of(adapters.begin(), adapters.end(), is_efa))
    return {
        kWhat, Verdict::warning,
        "1: libfabric's EFA provider copies between the ranks of a node more slowly",
        "sysctl kernel.yama.ptrace_scope=0, as AWS recommends; or FI_EFA_ENABLE_SHM_TRANSFER=0"};
  // With 1, MPI libraries allow it to the ranks beside them by prctl(PR_SET_PTRACER).
  if (scope <= 1) return {kWhat, Verdict::ok, std::to_string(scope), ""};
  return {kWhat, Verdict::warning,
          std::to_string(scope) + ": ranks cannot read each other's memory (CMA)",
          "sysctl kernel.yama.ptrace_scope=1; or OMPI_MCA_btl_vader_single_copy_mechanism=none, "
          "UCX_TLS=^cma"};
}

Finding check_user_namespaces(const Surroundings& around) {
  constexpr char kWhat[] = "user namespaces";
  constexpr char kMost[] = "/proc/sys/user/max_user_namespaces";
  const std::string most = around.text_of(kMost);
  if (most.empty())
    return {kWhat, Verdict::failed, "not supported by the kernel",
            "use a kernel with CONFIG_USER_NS"};
  if (std::atoll(most.c_str()) == 0)
    return {kWhat, Verdict::failed, std::string(kMost) + " is 0",
            "sysctl user.max_user_namespaces=65536"};
  const bool denied =
      around.text_of("/proc/sys/kernel/unprivileged_userns_clone").starts_with('0') ||
      around.text_of("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").starts_with('1');
  if (denied)
    return {kWhat, Verdict::ok, "for jobs; users cannot create any, as scontainer run needs", ""};
  return {kWhat, Verdict::ok, "allowed", ""};
}

/// The last value of RemoveIPC in a file of logind's: later ones win.
std::string remove_ipc_in(const std::string& text, std::string value) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.starts_with("RemoveIPC=")) value = line.substr(10);
  }
  return value;
}

Finding check_remove_ipc(const Surroundings& around) {
  constexpr char kWhat[] = "RemoveIPC";
  if (!around.exists("/run/systemd/system") || !around.exists("/run/systemd/seats"))
    return {kWhat, Verdict::ok, "systemd-logind is not running", ""};
  std::string value = "yes";  // logind.conf(5)
  for (const char* place : {"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"}) {
    value = remove_ipc_in(around.text_of(place), value);
  }
  for (const char* place : {"/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d",
                            "/etc/systemd/logind.conf.d"}) {
    for (const std::string& name : around.names_in(place)) {
      if (name.ends_with(".conf"))
        value = remove_ipc_in(around.text_of(std::string(place) + "/" + name), value);
    }
  }
  if (value == "no" || value == "false" || value == "0" || value == "off")
    return {kWhat, Verdict::ok, "no", ""};
  return {kWhat, Verdict::warning,
          "yes: when a user's last login session on the node ends, the shared memory of the user's "
          "jobs is removed",
          "set RemoveIPC=no in /etc/systemd/logind.conf, then systemctl restart systemd-logind"};
}

}  // namespace

std::vector<Finding> check_limits(const Surroundings& around) {
  return {check_shared_memory(around), check_locked_memory(around),   check_open_files(around),
          check_ptrace(around),        check_user_namespaces(around), check_remove_ipc(around)};
}

}  // namespace spc
