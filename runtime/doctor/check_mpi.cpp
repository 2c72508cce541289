#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/format.hpp"
#include "doctor/preflight.hpp"
#include "hooks/text.hpp"

namespace spc {
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

/// An exclusion, or components that every PMIx has, such as hash, which this program's hook sets
/// itself.
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

/// Of "32768\t60999".
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
  // Only where rank 0 will listen does it matter who has the port.
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
  // A batch script has SLURM_PROCID, too, and is not confined as a step.
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

}  // namespace spc
