// Nodes forward chunks as they arrive. A node's link is a queue: it sends one chunk after the
// other, to its children in turn, as many as their windows accept. A child's own link may be
// slower. If its source is dead, slow or full, a node behaves like `import`.

#include "benchmarks/peers/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <random>

#include "share/peer_order.hpp"
#include "share/spool.hpp"

namespace spc::bench {

namespace {

using Index = PeerOrder::Index;
constexpr Index kNobody = ~Index{0}, kRegistry = kNobody - 1;
constexpr double kEnd = 3600;  // seconds: a node that is not ready by then never will be
constexpr std::uint32_t kWindow =
    16;  // chunks in flight to one child: more than a link holds

constexpr double kBehind =
    2;  // chunks by which a converter may lag behind the received data, without a spool

// Time-outs of the relays, in seconds.
constexpr int kMissing = 3;         // unanswered questions until a source counts as dead
constexpr double kLook = 0.25;      // interval of progress queries to a source and the leader
constexpr double kNoConnect = 0.3;  // until a connection is given up
constexpr double kNoServer = 1;     // until srun is given up
constexpr int kQuestions = 3;

enum class What : std::uint8_t {
  join,
  placed,
  connected,
  sent,
  arrived,
  from_registry,
  look,
  doubt,
  fault,
  reset
};

struct Event {
  double at;
  std::uint64_t number;  // creation order, used for equal times
  What what;
  Index node, other;
  std::uint32_t epoch;
  bool operator<(const Event& right) const {
    return at != right.at ? at > right.at : number > right.number;
  }
};

/// Events by time. A single heap takes twice as long. Most events are near, so only those of the
/// current 16 us are kept in a heap.
class Calendar {
 public:
  void push(const Event& event) {
    const auto slot = static_cast<std::uint64_t>(event.at / kSlot);
    if (slot <= now_) return now_events_.push(event);
    if (slot >= now_ + kSlots) return far_.push(event);
    slots_[slot % kSlots].push_back(event);
    ++near_;
  }
  bool pop(Event& event) {
    while (now_events_.empty()) {
      if (near_ == 0 && far_.empty()) return false;
      ++now_;
      for (auto& slot = slots_[now_ % kSlots]; !slot.empty(); slot.pop_back(), --near_)
        now_events_.push(slot.back());
      for (; !far_.empty() && static_cast<std::uint64_t>(far_.top().at / kSlot) <= now_; far_.pop())
        now_events_.push(far_.top());
    }
    event = now_events_.top();
    now_events_.pop();
    return true;
  }

 private:
  static constexpr double kSlot = 16e-6;
  static constexpr std::uint64_t kSlots = 1 << 14;
  std::uint64_t now_ = 0, near_ = 0;
  std::priority_queue<Event> now_events_, far_;
  std::vector<std::vector<Event>> slots_{kSlots};
};

struct Child {
  Index index;
  std::uint32_t epoch;     // of the child's connection
  std::uint32_t next = 0;  // next chunk
  std::uint32_t on_way = 0;
};

struct Node {
  double joined = 0, rate = 0, out = 0, in = 0;  // bytes per second of the links
  double in_free = 0, converted = 0, ready = -1, last_byte = 0, known_rate = 0;
  std::uint32_t have = 0, leader_has = 0, sent = 0, epoch = 0;
  int questions = 0;
  bool member = false, dead = false, silent = false, busy = false, left_out = false,
       cut_off = false;
  Index source = kNobody;
  std::vector<Index> sources, barred, doubted;
  std::size_t tried = 0;  // number of sources tried
  std::vector<Child> children;
  std::size_t turn = 0;
  SourceRate source_rate;
  BestRate children_get;
};

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario);
  Outcome run();

 private:
  void handle(const Event& event);
  void join(Index node);
  void place(Index node);
  void try_next(Index node);
  void ask_for_more(Index node);
  void ask_registry(Index node, double after);
  void connected(const Event& event);
  void arrived(Index node);
  void send(Index node);
  void sent(const Event& event);
  void look(Index index);
  void falls_silent(Index node);
  void doubts(Index node);
  void check_speed(Index node);
  void source_died(Index node);
  void leave_source(Index node);
  void fault(Index victim);
  void die(Index node, bool silently);
  void later(double after, What what, Index node, Index other = 0) {
    events_.push({now_ + after, number_++, what, node, other, nodes_[node].epoch});
  }
  bool reachable(Index one, Index other) const {
    return nodes_[one].cut_off == nodes_[other].cut_off;
  }
  Outcome outcome() const;

  Scenario scenario_;
  PeerOrder order_;
  std::mt19937_64 random_;
  std::vector<Node> nodes_;  // by index in the order, which is that of the joins
  std::vector<std::uint32_t> ids_;
  Calendar events_;
  std::uint32_t chunks_;
  double chunk_, now_ = 0;
  std::uint64_t number_ = 0, registry_chunks_ = 0;
  std::uint32_t unready_ = 0;
  Outcome counts_;
};

Simulation::Simulation(const Scenario& scenario)
    : scenario_(scenario), order_(scenario.fanout, scenario.spare), random_(scenario.seed) {
  chunks_ = static_cast<std::uint32_t>(std::ceil(scenario.image / scenario.chunk));
  chunk_ = scenario.image / chunks_;
  nodes_.resize(scenario.nodes);
  const auto uniform = [&] { return static_cast<double>(random_() >> 11) * 0x1p-53; };
  for (auto& node : nodes_) {
    node.joined = scenario.spread * uniform();
    node.left_out = uniform() < scenario.stragglers;
    node.rate =
        scenario.rate * (1 + scenario.jitter * (2 * uniform() - 1)) / (node.left_out ? 10 : 1);
    node.in = node.out = scenario.link;
    ids_.push_back(static_cast<std::uint32_t>(ids_.size()));
  }
  std::sort(nodes_.begin(), nodes_.end(),
            [](const Node& left, const Node& right) { return left.joined < right.joined; });
  std::shuffle(ids_.begin(), ids_.end(), random_);
  for (const double first = nodes_[0].joined; auto& node : nodes_) node.joined -= first;
  for (Index node = 0; node < scenario.nodes; ++node) later(nodes_[node].joined, What::join, node);
  const double alone = scenario.rate > 0 ? scenario.image / scenario.rate : 0;
  if (scenario.fault == Fault::slow_relay && scenario.nodes > 1)
    nodes_[1].in = nodes_[1].out = scenario.link / 10, nodes_[1].left_out = true;
  if (scenario.fault == Fault::relays_killed || scenario.fault == Fault::relays_lost) {
    for (std::uint32_t i = 0; i < std::max(1U, scenario.nodes / 100); ++i) {
      const auto victim = static_cast<Index>(1 + random_() % (scenario.nodes / 2 - 1));
      later(alone * (0.1 + 0.8 * uniform()), What::fault, victim);
    }
  } else if (scenario.fault != Fault::none && scenario.fault != Fault::slow_relay) {
    later(alone / 2, What::fault, 0);
  }
  unready_ = scenario.nodes;
}

Outcome Simulation::run() {
  for (Event event; unready_ > 0 && now_ < kEnd && events_.pop(event);) {
    now_ = event.at;
    if (!nodes_[event.node].dead || event.what == What::reset) handle(event);
  }
  return outcome();
}

void Simulation::handle(const Event& event) {
  const bool current = event.epoch == nodes_[event.node].epoch;
  switch (event.what) {
    case What::join: return join(event.node);
    case What::placed:
      if (current) place(event.node);
      return;
    case What::connected:
      if (current) connected(event);
      return;
    case What::sent: return sent(event);
    case What::arrived:
      if (!current) return;
      for (auto& child : nodes_[event.other].children) {
        if (child.index == event.node) --child.on_way;
      }
      arrived(event.node);
      return send(event.other);
    case What::from_registry:
      if (!current || nodes_[event.node].have == chunks_) return;
      ++registry_chunks_;
      arrived(event.node);
      return later(chunk_ / std::min(scenario_.rate, nodes_[event.node].in), What::from_registry,
                   event.node);
    case What::look:
      if (current) look(event.node);
      return;
    case What::reset:
      if (current) source_died(event.node);
      return;
    case What::doubt:
      if (current) doubts(event.node);
      return;
    case What::fault: return fault(event.node);
  }
}

// --- where to take it from ---

void Simulation::join(Index node) {
  nodes_[node].member = true;
  order_.join(ids_[node]);
  if (scenario_.rate == 0 && node == 0) {
    for (std::uint32_t i = 0; i < chunks_; ++i) arrived(0);
    return;
  }
  later(scenario_.connect, What::placed, node);
}

/// Handles srun's answer.
void Simulation::place(Index node) {
  nodes_[node].sources = order_.sources_of(node);
  nodes_[node].tried = 0;
  if (order_.asks_registry(node)) return ask_registry(node, 0);
  try_next(node);
}

void Simulation::try_next(Index index) {
  Node& node = nodes_[index];
  const auto is_barred = [&](Index other) {
    return std::find(node.barred.begin(), node.barred.end(), other) != node.barred.end();
  };
  while (node.tried < node.sources.size() && is_barred(node.sources[node.tried])) ++node.tried;
  if (node.tried == node.sources.size() && node.doubted.empty()) return ask_for_more(index);
  const Index source =
      node.tried == node.sources.size() ? node.doubted.back() : node.sources[node.tried++];
  if (!node.doubted.empty() && node.doubted.back() == source) node.doubted.pop_back();
  const bool no_answer =
      (nodes_[source].dead && nodes_[source].silent) || !reachable(index, source);
  later(no_answer             ? kNoConnect
        : nodes_[source].dead ? 2 * scenario_.latency
                              : scenario_.connect,
        What::connected, index, source);
}

void Simulation::ask_for_more(Index index) {
  Node& node = nodes_[index];
  if (node.cut_off || node.questions == kQuestions)
    return ask_registry(index, node.cut_off ? kNoServer : 0);
  ++node.questions;
  order_.move(index, node.barred);
  later(scenario_.connect, What::placed, index);
}

void Simulation::ask_registry(Index node, double after) {
  nodes_[node].source = kRegistry;
  ++counts_.askers;
  later(after + (node == 0 ? 0 : scenario_.registry_begin) + chunk_ / scenario_.rate,
        What::from_registry, node);
}

void Simulation::connected(const Event& event) {
  Node &node = nodes_[event.node], &source = nodes_[event.other];
  if (source.dead || !reachable(event.node, event.other)) {
    node.barred.push_back(event.other);
    return try_next(event.node);
  }
  if (source.children.size() >= scenario_.fanout + scenario_.spare) {
    ++counts_.refused;
    return try_next(event.node);
  }
  node.source = event.other;
  node.last_byte = now_;
  node.source_rate.restart();
  source.children.push_back({event.node, node.epoch, node.have});
  later(kLook, What::look, event.node);
  send(event.other);
}

// --- bytes ---

void Simulation::arrived(Index index) {
  Node& node = nodes_[index];
  ++node.have;
  node.last_byte = now_;
  node.converted = std::max(node.converted, now_) + (node.rate > 0 ? chunk_ / node.rate : 0);
  if (node.have == chunks_) {
    node.ready = node.converted;
    --unready_;
    leave_source(index);
  }
  send(index);
}

void Simulation::send(Index index) {
  Node& node = nodes_[index];
  if (node.busy || node.dead) return;
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    Child& child = node.children[(node.turn + i) % node.children.size()];
    if (child.next >= node.have || child.on_way >= kWindow || !reachable(index, child.index))
      continue;
    node.turn = (node.turn + i + 1) % node.children.size();
    node.busy = true;
    ++child.next, ++child.on_way, ++node.sent;
    events_.push(
        {now_ + chunk_ / node.out, number_++, What::sent, index, child.index, child.epoch});
    return;
  }
}

/// Handles a chunk that has left the node. It arrives at the child after the child's own link has
/// transferred it as well.
void Simulation::sent(const Event& event) {
  nodes_[event.node].busy = false;
  Node& child = nodes_[event.other];
  if (child.epoch == event.epoch) {
    nodes_[event.node].children_get.add(event.other, now_, chunk_);
    child.in_free = std::max(now_, child.in_free + chunk_ / child.in);
    if (!scenario_.spools)
      child.in_free = std::max(child.in_free, child.converted - kBehind * chunk_ / child.rate);
    events_.push({child.in_free + scenario_.latency, number_++, What::arrived, event.other,
                  event.node, event.epoch});
  }
  send(event.node);
}

// --- what goes wrong ---

/// Compares a living source's progress with the leader's.
void Simulation::look(Index index) {
  Node& node = nodes_[index];
  if (node.have == chunks_ || node.source == kRegistry) return;
  const Node& source = nodes_[node.source];
  if (source.dead || !reachable(index, node.source)) return;
  node.leader_has = std::max(node.leader_has, node.source == 0 ? source.have : source.leader_has);
  node.known_rate = std::max({node.known_rate, source.known_rate, source.children_get.best()});
  const auto epoch = node.epoch;
  if (scenario_.leaves_slow) check_speed(index);
  if (epoch == node.epoch) later(kLook, What::look, index);
}

/// Handles a source that has become silent.
void Simulation::falls_silent(Index node) {
  const double asked = std::max(0.0, nodes_[node].last_byte + scenario_.silence - now_);
  later(asked + scenario_.doubt, What::doubt, node);
  later(asked + kMissing * scenario_.answer, What::reset, node);
}

/// Handles a source that has not answered yet: tries each other source once.
void Simulation::doubts(Index index) {
  Node& node = nodes_[index];
  const auto is_of_use = [&](Index other) {
    return std::find(node.barred.begin(), node.barred.end(), other) == node.barred.end();
  };
  if (std::none_of(node.sources.begin() + static_cast<std::ptrdiff_t>(node.tried),
                   node.sources.end(), is_of_use))
    return;
  node.doubted.push_back(node.source);
  leave_source(index);
  try_next(index);
}

void Simulation::check_speed(Index index) {
  Node& node = nodes_[index];
  const SourceRate::Seen seen{.now = now_,
                              .here = node.have * chunk_,
                              .there = nodes_[node.source].have * chunk_,
                              .leader = node.leader_has * chunk_,
                              .peer_rate = node.known_rate};
  // A full converter implies nothing about the source.
  if (!scenario_.spools && node.converted - now_ > chunk_ / node.rate)
    return node.source_rate.restart();
  if (!node.source_rate.is_slow(seen) || node.cut_off) return;
  ++counts_.moves;
  const Index slow_one = node.source;
  if (order_.move(index, std::vector<Index>{slow_one}, PeerOrder::Because::slow).empty()) return;
  leave_source(index);
  later(scenario_.connect, What::placed, index);
}

void Simulation::source_died(Index index) {
  ++counts_.failovers;
  nodes_[index].barred.push_back(nodes_[index].source);
  leave_source(index);
  try_next(index);
}

void Simulation::leave_source(Index index) {
  Node& node = nodes_[index];
  ++node.epoch;  // chunks in flight arrive too late
  if (node.source < kRegistry) {
    std::erase_if(nodes_[node.source].children,
                  [&](const Child& child) { return child.index == index; });
    nodes_[node.source].turn = 0;
  }
  node.source = kNobody;
  node.in_free = 0;
}

void Simulation::fault(Index victim) {
  switch (scenario_.fault) {
    case Fault::none:
    case Fault::slow_relay: return;
    case Fault::leader_killed: return die(0, false);
    case Fault::leader_lost: return die(0, true);
    case Fault::relays_killed:
    case Fault::relays_lost: return die(victim, scenario_.fault == Fault::relays_lost);
    case Fault::partition:
      for (Index node = 0; node < nodes_.size(); ++node)
        nodes_[node].cut_off = ids_[node] >= nodes_.size() / 2;
      for (Index node = 0; node < nodes_.size(); ++node) {
        if (nodes_[node].source < kRegistry && !reachable(node, nodes_[node].source))
          falls_silent(node);
      }
  }
}

void Simulation::die(Index index, bool silently) {
  Node& node = nodes_[index];
  if (node.dead) return;
  if (!node.member) return later(kLook, What::fault, index);
  if (node.have < chunks_) --unready_;
  leave_source(index);
  node.dead = true, node.silent = silently;
  if (silently) {
    for (const auto& child : node.children) falls_silent(child.index);
    return;
  }
  order_.leave(index);  // srun's connection is reset as well
  for (const auto& child : node.children) later(scenario_.latency, What::reset, child.index);
}

Outcome Simulation::outcome() const {
  Outcome outcome = counts_;
  std::vector<double> waits;
  for (const auto& node : nodes_) {
    if (node.dead || node.left_out) continue;
    ++outcome.counted;
    if (node.ready < 0) continue;
    ++outcome.ready;
    waits.push_back(node.ready - node.joined);
    outcome.last = std::max(outcome.last, node.ready);
    outcome.egress_max = std::max(outcome.egress_max, static_cast<double>(node.sent) / chunks_);
  }
  std::sort(waits.begin(), waits.end());
  if (!waits.empty()) {
    outcome.longest = waits.back();
    outcome.median = waits[waits.size() / 2];
    outcome.p99 = waits[waits.size() * 99 / 100];
  }
  outcome.alone =
      scenario_.rate > 0 ? scenario_.image / scenario_.rate : scenario_.image / scenario_.link;
  outcome.registry = static_cast<double>(registry_chunks_) / chunks_;
  return outcome;
}

}  // namespace

Outcome simulate(const Scenario& scenario) { return Simulation(scenario).run(); }

}  // namespace spc::bench
