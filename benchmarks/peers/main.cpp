// bench-peers: effect of the order in which nodes fetch an image from each other, by simulation.
// Prints one JSON object per line.
//
//   bench-peers [--quick]     rows for benchmarks/run scale, and points for its plot;
//                             --quick: 1,024 nodes only
//   bench-peers --order       the order itself, for a simulated srun: "join NODE_ID",
//                             "more INDEX DEAD...", "slow INDEX SLOW...", "left INDEX" on
//                             standard input; answers INDEX SOURCE... to the first three
//   bench-peers --table       compares with the arithmetic of a tree; fails if they differ by
//                             more than 10 %

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/peers/simulation.hpp"
#include "share/peer_order.hpp"
#include "share/tracker.hpp"

namespace {

using namespace spc::bench;

constexpr double kMeasured = 0.14e9,
                 kFast = 1e9;  // 1.46 GB in 10.6 s on two cores; four layers in four converters
constexpr double kNormalLink = 25;  // Gb/s

struct Way {
  const char* name;
  Fault fault;
  const char* what;
  double stragglers = 0;
  bool doubts = true, leaves_slow = true, spools = true;
};

constexpr std::array kWays = {
    Way{"leader_killed", Fault::leader_killed, "the leader's import is killed"},
    Way{"leader_lost", Fault::leader_lost, "the leader's node loses power"},
    Way{"relays_killed", Fault::relays_killed, "1 % of the nodes, relays, are killed"},
    Way{"relays_lost", Fault::relays_lost, "1 % of the nodes, relays, lose power"},
    Way{"relays_lost_sure", Fault::relays_lost,
        "the same, if nodes stayed with a silent source until it is known to be dead", 0, false},
    Way{"slow_relay", Fault::slow_relay,
        "a relay next to the leader has a tenth of the link; the others"},
    Way{"slow_relay_kept", Fault::slow_relay, "the same, if nodes stayed with slow sources", 0,
        true, false},
    Way{"partition", Fault::partition,
        "half of the nodes is cut off from the other half and from srun"},
    Way{"stragglers", Fault::none, "1 % of the nodes convert at a tenth of the rate; the others",
        0.01},
    Way{"stragglers_unspooled", Fault::none,
        "the same, if nodes took bytes only as fast as they convert", 0.01, true, true, false},
};

/// Runs scenarios in parallel and looks up their results.
class Runs {
 public:
  void add(const std::string& name, const Scenario& scenario) {
    names_.push_back(name);
    scenarios_.push_back(scenario);
  }
  void run() {
    std::vector<Outcome> outcomes(scenarios_.size());
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < scenarios_.size(); i = next++)
        outcomes[i] = simulate(scenarios_[i]);
    };
    auto other = std::async(std::launch::async, work);
    work();
    other.get();
    for (std::size_t i = 0; i < outcomes.size(); ++i) found_[names_[i]] = outcomes[i];
  }
  const Outcome& operator[](const std::string& name) const { return found_.at(name); }

 private:
  std::vector<std::string> names_;
  std::vector<Scenario> scenarios_;
  std::map<std::string, Outcome> found_;
};

void row(const std::string& name, double value, const char* unit, const std::string& what) {
  std::printf("{\"name\": \"scale.%s\", \"value\": %.4f, \"unit\": \"%s\", \"what\": \"%s\"}\n",
              name.c_str(), value, unit, what.c_str());
}

Scenario scenario(std::uint32_t nodes, double gbits, double rate) {
  Scenario made;
  made.nodes = nodes;
  made.link = gbits * 1e9 / 8;
  made.rate = rate;
  return made;
}

/// "", ".10g", ".fast", ".10g.fast"
std::string suffix(double gbits, double rate) {
  return (gbits == kNormalLink ? std::string()
                               : "." + std::to_string(static_cast<int>(gbits)) + "g") +
         (rate == kFast ? ".fast" : "");
}

std::string words(double gbits, double rate) {
  return "simulated: " + std::to_string(static_cast<int>(gbits)) + " Gb/s, one node converts " +
         (rate == kFast ? "1 GB/s" : "0.14 GB/s");
}

/// Measures real sockets and srun's real thread: from the simultaneous join of all nodes until each
/// has its place.
void print_join_time() {
  constexpr std::size_t kNodes = 1024;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  spc::Tracker tracker;
  const auto address = tracker.open();
  if (!address) return;
  tracker.start(kNodes, "", nullptr);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<spc::UniqueFd> nodes;
  sockaddr_in where{};
  where.sin_family = AF_INET, where.sin_port = htons(address->port),
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (std::uint32_t id = 0; id < kNodes; ++id) {
    nodes.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct {
      spc::TrackerHello hello;
      spc::TrackerRecord join;
    } said;
    static_assert(sizeof said == sizeof said.hello + sizeof said.join);
    said.hello.token = address->token;
    said.hello.node = {'n'};
    said.join.kind = spc::TrackerKind::join;
    said.join.node_id = (id * 617) % kNodes;
    said.join.addresses[0].port = 5000;
    if (::connect(nodes.back().get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) !=
            0 ||
        ::send(nodes.back().get(), &said, sizeof said, MSG_NOSIGNAL) != sizeof said)
      return;
  }
  for (const auto& node : nodes) {
    spc::TrackerRecord place;
    if (::recv(node.get(), &place, sizeof place, MSG_WAITALL) != sizeof place) return;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  row("join_ms", took.count(), "ms",
      "measured: 1,024 joins at one srun over loopback, all at once, until the last has its place");
}

/// Measures the part of srun's work that depends on the order.
void print_order_time() {
  const auto begin = std::chrono::steady_clock::now();
  spc::PeerOrder order;
  std::size_t sources = 0;
  for (std::uint32_t id = 0; id < 1024; ++id)
    sources += order.sources_of(order.join((id * 617) % 1024)).size();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  row("join_order_ms", sources > 0 ? took.count() : 0, "ms",
      "measured: 1,024 joins with their sources, the order alone");
}

void print_rows(std::uint32_t nodes) {
  const std::string size = std::to_string(nodes) + "sim";
  Runs runs;
  for (const double rate : {kMeasured, kFast}) {
    for (const double gbits : {10., 25., 100.})
      runs.add(suffix(gbits, rate), scenario(nodes, gbits, rate));
    for (const auto& way : kWays) {
      auto one = scenario(nodes, kNormalLink, rate);
      one.fault = way.fault, one.stragglers = way.stragglers, one.leaves_slow = way.leaves_slow,
      one.spools = way.spools;
      if (!way.doubts) one.doubt = one.image;
      runs.add(way.name + suffix(kNormalLink, rate), one);
    }
  }
  runs.run();
  double egress = 0, registry = 0;
  for (const double rate : {kMeasured, kFast}) {
    for (const double gbits : {10., 25., 100.}) {
      const auto& run = runs[suffix(gbits, rate)];
      row("ready_ratio." + size + suffix(gbits, rate), run.ratio(), "x one node",
          words(gbits, rate) + ", longest wait of a node since its join");
      egress = std::max(egress, run.egress_max), registry = std::max(registry, run.registry);
    }
  }
  row("registry_bytes." + size, registry, "x image", "simulated: most of these");
  row("egress_max." + size, egress, "x image", "simulated: sent by the busiest node");
  for (const double rate : {kMeasured, kFast}) {
    const std::string end = size + suffix(kNormalLink, rate), with = suffix(kNormalLink, rate),
                      in = words(kNormalLink, rate) + ", ";
    const auto& sound = runs[with];
    row("p99_minus_p50." + end, sound.p99 - sound.median, "s", in + "waits since each node's join");
    row("leader_kill_s." + end, runs["leader_killed" + with].longest - sound.longest, "s more",
        in + kWays[0].what);
    row("node_loss_s." + end, runs["leader_lost" + with].longest - sound.longest, "s more",
        in + kWays[1].what);
    for (const auto& way : kWays) {
      const auto& run = runs[way.name + with];
      if (run.ready != run.counted)
        row(std::string(way.name) + "_unready." + end, run.counted - run.ready, "nodes",
            in + "never ready: " + way.what);
      row(std::string(way.name) + "_ratio." + end, run.ratio(), "x one node", in + way.what);
    }
    row("partition_registry_bytes." + end, runs["partition" + with].registry, "x image",
        in + "half of the nodes is cut off");
  }
}

/// Prints points for the plot: the longest wait over the number of nodes.
void print_curve() {
  Runs runs;
  const auto name = [](std::uint32_t nodes, double gbits, double rate) {
    return std::to_string(nodes) + suffix(gbits, rate);
  };
  const std::vector<std::pair<double, double>> kinds = {
      {25, kMeasured}, {25, kFast}, {100, kFast}, {10, kFast}};
  for (const auto& [gbits, rate] : kinds) {
    for (std::uint32_t nodes = 2; nodes <= 4096; nodes *= 2) {
      auto one = scenario(nodes, gbits, rate);
      one.chunk = 4 << 20;  // four times as fast, with the same curve
      runs.add(name(nodes, gbits, rate), one);
    }
  }
  runs.run();
  for (const auto& [gbits, rate] : kinds) {
    for (std::uint32_t nodes = 2; nodes <= 4096; nodes *= 2) {
      const auto& run = runs[name(nodes, gbits, rate)];
      std::printf("{\"curve\": \"%s\", \"nodes\": %u, \"longest\": %.4f, \"median\": %.4f}\n",
                  words(gbits, rate).c_str() + std::strlen("simulated: "), nodes, run.longest,
                  run.median);
    }
  }
}

/// Returns the time without failures if all join at once: the source's rate or that of a link to
/// all children, and the fill time of each level.
double by_arithmetic(const Scenario& one) {
  const double depth =
      one.fanout == 1
          ? one.nodes - 1
          : std::floor(std::log(one.nodes * (one.fanout - 1.0) + 1) / std::log(one.fanout) - 1e-9);
  const double pace =
      std::max(one.rate > 0 ? one.image / one.rate : 0, one.fanout * one.image / one.link);
  return pace + depth * (one.fanout * one.chunk / one.link + one.latency);
}

int print_table() {
  bool all_near = true;
  Runs runs;
  std::map<std::string, Scenario> scenarios;
  for (const double image : {1.46e9, 10e9}) {
    for (const double gbits : {10., 25., 100.}) {
      for (const auto& [rate, fanout] : std::vector<std::pair<double, std::uint32_t>>{
               {kMeasured, 2}, {kFast, 2}, {0, 1}, {0, 2}, {0, 4}, {0, 8}}) {
        auto one = scenario(1024, gbits, rate);
        one.image = image, one.fanout = fanout;
        one.chunk = image > 5e9 ? 4 << 20 : 1 << 20;
        one.spread = one.jitter = one.connect = 0;
        char name[80];
        std::snprintf(name, sizeof name, "%5.2f GB, %3.0f Gb/s, source %4.2f GB/s, fan-out %u",
                      image / 1e9, gbits, rate / 1e9, fanout);
        scenarios[name] = one;
        runs.add(name, one);
      }
    }
  }
  runs.run();
  for (const auto& [name, one] : scenarios) {
    const double wanted = by_arithmetic(one), found = runs[name].longest;
    const bool near = std::fabs(found - wanted) <= 0.1 * wanted;
    all_near = all_near && near;
    std::printf("%s: %7.3f s by arithmetic, %7.3f s simulated, %+5.1f %%%s\n", name.c_str(), wanted,
                found, 100 * (found / wanted - 1), near ? "" : "  DIFFERS");
  }
  return all_near ? 0 : 1;
}

void answer_place(const spc::PeerOrder& order, spc::PeerOrder::Index index) {
  std::printf("%u", index);
  for (const auto source : order.sources_of(index)) std::printf(" %u", source);
  std::printf("\n");
  std::fflush(stdout);
}

int keep_order() {
  spc::PeerOrder order;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string question;
    spc::PeerOrder::Index first = 0;
    words >> question >> first;
    if (question == "join") answer_place(order, order.join(first));
    if (question == "left") order.leave(first);
    if (question != "more" && question != "slow") continue;
    const std::vector<spc::PeerOrder::Index> barred{
        std::istream_iterator<spc::PeerOrder::Index>(words), {}};
    order.move(first, barred,
               question == "slow" ? spc::PeerOrder::Because::slow : spc::PeerOrder::Because::dead);
    answer_place(order, first);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string option = count > 1 ? arguments[1] : "";
  if (option == "--table") return print_table();
  if (option == "--order") return keep_order();
  print_join_time();
  print_order_time();
  print_rows(1024);
  if (option == "--quick") return 0;
  print_rows(4096);
  print_curve();
}
