#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/format.hpp"
#include "base/net/listener.hpp"
#include "base/text.hpp"
#include "image/config/config.hpp"
#include "image/peers/node_networks.hpp"
#include "tool/doctor/bounded.hpp"
#include "tool/doctor/doctor.hpp"
#include "tool/doctor/node_list.hpp"

namespace spc::tool {
namespace {

using Verdict = Finding::Verdict;
constexpr char kOtherNodes[] = "other nodes";
constexpr int kReach = 500;  // milliseconds
constexpr std::uint16_t kSomePort = 40'000;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

unsigned number(std::string_view text) {
  unsigned found = 0;
  std::from_chars(text.data(), text.data() + text.size(), found);
  return found;
}

/// Why nobody can be reached at that port; empty: who refuses a connection is there.
std::string unreachable(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); failed != 0)
    return ::gai_strerror(failed);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  const UniqueFd socket(::socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return std::strerror(errno);
  int failed = ::connect(socket.get(), list->ai_addr, list->ai_addrlen) == 0 ? 0 : errno;
  if (failed == EINPROGRESS) {
    pollfd one{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&one, 1, kReach) <= 0) return "no answer";
    socklen_t size = sizeof failed;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
  }
  return failed == 0 || failed == ECONNREFUSED ? "" : std::strerror(failed);
}

/// Another node of the job, and whether it can be reached where nodes answer each other. First
/// line: why not; second: what to do.
std::string look_at_neighbour(const std::vector<std::string>& nodes, const std::string& ports) {
  const std::string own = variable("SLURMD_NODENAME");
  const auto other = std::find_if(nodes.begin(), nodes.end(),
                                  [&](const std::string& node) { return node != own; });
  if (other == nodes.end()) return {};
  const std::string port =
      ports.empty() ? std::to_string(kSomePort) : ports.substr(0, ports.find('-'));
  const std::string why = unreachable(*other, port);
  if (why.empty()) return {};
  return formatted(
      "{} at port {}: {}\nopen the firewall of the nodes to each other for the ports of [peers] "
      "ports, or set [peers] enabled = false",
      *other, port, why);
}

/// srun's own port for its tasks: the one where nodes meet is beside it.
std::string look_at_srun() {
  const std::string host = variable("SLURM_LAUNCH_NODE_IPADDR"),
                    port = variable("SLURM_SRUN_COMM_PORT");
  if (host.empty() || port.empty()) return {};
  const std::string why = unreachable(host, port);
  if (why.empty()) return {};
  return formatted("srun at {}: {}\nopen the firewall of srun's host to the nodes", host, why);
}

Finding not_used(const std::string& lines) {
  const std::size_t end = std::min(lines.find('\n'), lines.size());
  return {kOtherNodes, Verdict::warning,
          formatted("not used, each node pulls by itself: {}", lines.substr(0, end)),
          lines.substr(std::min(end + 1, lines.size()))};
}

}  // namespace

Finding examine_peers() {
  const auto config = read_config(SPC_CONFIG_FILE);
  if (!config)
    return {kOtherNodes, Verdict::warning, config.error().message(),
            "the administrator: scontainer doctor --node"};
  const PeersConfig& peers = config->peers;
  if (!peers.enabled)
    return {kOtherNodes, Verdict::ok, "off, each node pulls by itself: [peers] enabled is false",
            ""};
  std::vector<Network> wanted;
  for (const std::string& text : peers.networks) wanted.push_back(Network::parse(text));
  const auto own = NodeNetworks::find().in(wanted);
  if (own.empty()) {
    return not_used(
        "this node has no address in [peers] networks\ncorrect [peers] networks in config.toml, or "
        "set [peers] enabled = false");
  }
  if (const auto listener =
          Listener::open(PortRange::parse(peers.ports).value_or(PortRange()), own.front().address);
      !listener) {
    return not_used(listener.error().message() +
                    "\ngive [peers] ports more ports: a step needs one on each of its nodes");
  }
  const std::string step_nodes = variable("SLURM_STEP_NUM_NODES"),
                    job_nodes = variable("SLURM_JOB_NUM_NODES");
  const unsigned nodes = number(step_nodes.empty() ? job_nodes : step_nodes);
  if (nodes == 1) {
    return {kOtherNodes, Verdict::ok,
            formatted("none: this {} has one node", step_nodes.empty() ? "job" : "step"), ""};
  }
  const std::string here = url_of({.ip = own.front().address, .port = 1}).substr(7);
  const std::string at = formatted(
      "at {}, {}", here.substr(0, here.rfind(':')),
      peers.ports.empty() ? std::string("any port that is free") : "ports " + peers.ports);
  if (nodes == 0)
    return {kOtherNodes, Verdict::ok, formatted("on, for steps on several nodes, {}", at), ""};
  const auto list =
      nodes_of_list(variable(step_nodes.empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST"));
  const auto wrong = answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(3), [&] {
    const std::string lines = look_at_srun();
    return lines.empty() ? look_at_neighbour(list, peers.ports) : lines;
  });
  if (!wrong) return not_used("no answer in time\nlook for a name server that does not answer");
  if (!wrong->empty()) return not_used(*wrong);
  const std::string who = variable("SLURM_LAUNCH_NODE_IPADDR").empty()
                              ? "the srun of a step"
                              : "srun at " + variable("SLURM_LAUNCH_NODE_IPADDR");
  return {
      kOtherNodes, Verdict::ok,
      formatted(
          "on, before the shared store and the registry: {} nodes, {}; {} says who takes from whom",
          nodes, at, who),
      ""};
}

}  // namespace spc::tool
