#include "doctor/preflight.hpp"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/cdi/cdi.hpp"
#include "hooks/cdi/registry.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- surroundings ---

namespace {

Surroundings::Limit limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {};
  const auto value = [](rlim_t one) {
    return one == RLIM_INFINITY ? UINT64_MAX : std::uint64_t{one};
  };
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

std::vector<Surroundings::Interface> interfaces_with_address() {
  std::vector<Surroundings::Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    if (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6) continue;
    const std::string name = one->ifa_name;
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const auto& other) { return other.name == name; });
    if (!known) found.push_back({name, (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  ::freeifaddrs(list);
  return found;
}

int listen_for_a_moment(std::uint16_t port) {
  // Listen as PyTorch does: on all addresses, and despite a connection in TIME_WAIT.
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return errno;
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

}  // namespace

const std::string* Surroundings::variable(std::string_view name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

bool Surroundings::exists(const std::string& path) const {
  return ::access((host_root + path).c_str(), F_OK) == 0;
}

std::string Surroundings::text_of(const std::string& path) const {
  const UniqueFd file(::open((host_root + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string text;
  std::array<char, 4096> buffer;
  while (file && text.size() < (64U << 10)) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<std::string> Surroundings::names_in(const std::string& path) const {
  std::vector<std::string> names;
  for (DirectoryReader entries(host_root + path); entries.next();)
    names.emplace_back(entries.name());
  std::sort(names.begin(), names.end());
  return names;
}

Surroundings surroundings_of_this_process(const std::string& driver_root) {
  Surroundings around;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      around.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  around.driver = discover_nvidia("", driver_root);
  around.locked_memory = limit_of(RLIMIT_MEMLOCK);
  around.open_files = limit_of(RLIMIT_NOFILE);
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) == 0) {
    around.shared_memory = {std::uint64_t{status.f_blocks} * status.f_frsize,
                            std::uint64_t{status.f_bavail} * status.f_frsize};
  }
  around.interfaces = interfaces_with_address();
  around.may_open = [](const std::string& node) {
    const int how = is_mig_capability(node) ? R_OK : R_OK | W_OK;
    if (::faccessat(AT_FDCWD, node.c_str(), how, AT_EACCESS) != 0) return errno;
    struct statvfs mount {};  // a node that is masked in a container
    return ::statvfs(node.c_str(), &mount) == 0 && (mount.f_flag & ST_NODEV) != 0 ? EACCES : 0;
  };
  around.listen_on = listen_for_a_moment;
  return around;
}

// --- check limits ---

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
  // NCCL needs some 33 MiB for each pair of GPUs, MPI about as much, and a DataLoader the size of
  // its batches.
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
  // With 1, MPI libraries permit it to neighbouring ranks by prctl(PR_SET_PTRACER).
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

/// Returns the last value of RemoveIPC in a file of logind's: later ones win.
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

// --- check mpi ---

namespace {

using Verdict = Finding::Verdict;

Finding check_type(const Surroundings& around) {
  constexpr char kWhat[] = "MPI of the step";
  constexpr char kCure[] =
      "for MPI programs: srun --mpi=pmix (see srun --mpi=list), or MpiDefault in slurm.conf";
  const std::string* type = around.variable("SLURM_MPI_TYPE");
  const bool pmix = around.variable("PMIX_NAMESPACE") != nullptr;
  const bool pmi = around.variable("PMI_FD") != nullptr || around.variable("PMI_RANK") != nullptr;
  const bool pals = around.variable("PALS_SPOOL_DIR") != nullptr;
  const std::string detail = type != nullptr && !type->empty() ? *type
                             : pmix                            ? "PMIx"
                             : pmi                             ? "PMI"
                                                               : "none";
  if (around.variable("SLURM_PROCID") == nullptr)
    return {kWhat, Verdict::ok, detail + ": not a task of a step", ""};
  if (pals && !pmix)
    return {kWhat, Verdict::ok, detail + "; needs Cray's PMI in the image, or --container-mpi=host",
            ""};
  if (!pmix && !pmi) return {kWhat, Verdict::warning, detail, kCure};
  if (!pmix) return {kWhat, Verdict::ok, detail + "; Open MPI needs pmix", ""};
  return {kWhat, Verdict::ok, detail, ""};
}

/// Returns whether the list is an exclusion, or has components that every PMIx has, such as hash,
/// which this program's hook sets itself.
bool can_be_met(const std::string& list) {
  const auto parts = parts_of(list);
  return list.starts_with('^') ||
         std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
           return part == "none" || part == "native" || part == "hash";
         });
}

Finding check_pmix(const Surroundings& around) {
  constexpr char kWhat[] = "PMIx";
  const auto* name = around.variable("PMIX_NAMESPACE");
  const auto* rank = around.variable("PMIX_RANK");
  if (name == nullptr && rank == nullptr) return {kWhat, Verdict::ok, "not used by this step", ""};
  if (name == nullptr || rank == nullptr) {
    return {kWhat, Verdict::failed,
            std::string(name == nullptr ? "PMIX_NAMESPACE" : "PMIX_RANK") +
                " is not set, but the other is",
            "a wrapper clears the environment: remove it"};
  }
  for (const char* variable : {"PMIX_SERVER_TMPDIR", "PMIX_NSDIR"}) {
    const auto* directory = around.variable(variable);
    if (directory != nullptr && !around.exists(*directory)) {
      return {kWhat, Verdict::failed, formatted("{}={} does not exist", variable, *directory),
              "do not mount over it or over /tmp"};
    }
  }
  for (const char* variable : {"PMIX_MCA_psec", "PMIX_MCA_gds"}) {
    const auto* forced = around.variable(variable);
    if (forced != nullptr && !can_be_met(*forced)) {
      return {
          kWhat, Verdict::warning,
          formatted("{}={} requires components that the image's PMIx may lack", variable, *forced),
          std::string("unset ") + variable};
    }
  }
  return {kWhat, Verdict::ok, formatted("{}, rank {}", *name, *rank), ""};
}

Finding check_addresses(const Surroundings& around) {
  constexpr char kWhat[] = "network addresses";
  bool loopback = false;
  std::string others;
  for (const auto& interface : around.interfaces) {
    loopback = loopback || interface.loopback;
    if (!interface.loopback) others += (others.empty() ? "" : " ") + interface.name;
  }
  if (!loopback)
    return {kWhat, Verdict::failed, "the loopback interface is down",
            "ip link set lo up: PMIx and NCCL need it"};
  if (others.empty()) {
    return {
        kWhat, Verdict::warning, "only the loopback's",
        "give the node an address, or do not unshare its network: PMIx, gloo and NCCL need one"};
  }
  return {kWhat, Verdict::ok, "lo " + others, ""};
}

/// Returns whether the port is in a range like "32768\t60999".
bool in_ephemeral_range(const std::string& range, unsigned long port) {
  char* end = nullptr;
  const unsigned long first = std::strtoul(range.c_str(), &end, 10);
  const unsigned long last = std::strtoul(end, nullptr, 10);
  return last > 0 && port >= first && port <= last;
}

Finding check_port(const Surroundings& around) {
  constexpr char kWhat[] = "MASTER_PORT";
  const auto* text = around.variable("MASTER_PORT");
  if (text == nullptr) return {kWhat, Verdict::ok, "not set", ""};
  const bool number = !text->empty() && text->size() <= 5 &&
                      text->find_first_not_of("0123456789") == std::string::npos;
  const unsigned long port = number ? std::strtoul(text->c_str(), nullptr, 10) : 0;
  if (port == 0 || port > 65535)
    return {kWhat, Verdict::failed, *text + " is not a port", "use 1024 to 65535"};
  // The port's owner matters only where rank 0 will listen.
  const auto* rank = around.variable("SLURM_PROCID");
  if (rank != nullptr && *rank != "0")
    return {kWhat, Verdict::ok, *text + ", at the node of rank 0", ""};
  if (const int error = around.listen_on(static_cast<std::uint16_t>(port)); error != 0) {
    return {kWhat, Verdict::failed, formatted("{}: {}", *text, std::strerror(error)),
            "use another port: ss -ltnp shows which process uses it"};
  }
  if (in_ephemeral_range(around.text_of("/proc/sys/net/ipv4/ip_local_port_range"), port)) {
    return {kWhat, Verdict::warning,
            *text + " is free, but in the kernel's range for outgoing connections",
            "use one outside /proc/sys/net/ipv4/ip_local_port_range"};
  }
  return {kWhat, Verdict::ok, *text + " is free", ""};
}

}  // namespace

std::vector<Finding> check_job(const Surroundings& around) {
  constexpr char kWhat[] = "job";
  const auto* job = around.variable("SLURM_JOB_ID");
  if (job == nullptr) {
    return {{kWhat, Verdict::warning, "none: checked as seen by a login session",
             "in an allocation: srun scontainer doctor --job"}};
  }
  const auto* task = around.variable("SLURM_PROCID");
  const auto* node = around.variable("SLURMD_NODENAME");
  // A batch script has SLURM_PROCID as well, but is not confined like a step.
  const auto* step = around.variable("SLURM_STEP_ID");
  if (task == nullptr || step == nullptr) {
    return {{kWhat, Verdict::warning,
             *job + ", not in a step: GPUs, limits and MPI belong to steps",
             "srun scontainer doctor --job"}};
  }
  return {{kWhat, Verdict::ok,
           formatted("{}.{}, task {}{}", *job, *step, *task, node == nullptr ? "" : " on " + *node),
           ""}};
}

std::vector<Finding> check_mpi(const Surroundings& around) {
  return {check_type(around), check_pmix(around), check_addresses(around), check_port(around)};
}

// --- check fabric ---

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

/// Checks adapters that programs use through libfabric or PSM2. Each kind has its own device nodes.
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

/// Returns the value of `key` in NCCL's file of K=V lines.
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

/// Returns whether NCCL_SOCKET_IFNAME selects an interface: a list of prefixes, after = of whole
/// names, after ^ of excluded ones.
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

/// Reads settings in NCCL's own order: environment, then the user's file or $NCCL_CONF_FILE, then
/// /etc/nccl.conf.
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

// --- check gpus ---

namespace {

using Verdict = Finding::Verdict;

bool has_driver(const Surroundings& around) {
  return !around.driver.version.empty() || !around.driver.gpus.empty();
}

/// Returns the step's GPUs as set by Slurm (a list of numbers), or nullptr.
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

/// Returns the count of numbers in a list like 0,2-3; 0 if it is not such a list.
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

/// Returns a host file that a specification mounts but that does not exist: the driver it was
/// generated for has been removed.
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
