#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace spc::bench {

/// A fault at half of the time that a single node takes.
enum class Fault {
  none,
  leader_killed,  ///< its connections are reset
  leader_lost,    ///< power loss: it becomes silent
  relays_killed,  ///< 1 % of all nodes, among those that serve others, each at a different time
  relays_lost,
  slow_relay,  ///< a child of the leader has a tenth of the link rate from the beginning
  partition,  ///< the upper half of the nodes reaches neither the lower half nor srun any more, but
              ///< the registry
};

/// A step whose nodes all lack one image. Links, converters and the registry are parameters, not
/// measurements.
struct Scenario {
  std::uint32_t nodes = 1024;
  double image = 1.46e9;   ///< bytes
  double chunk = 1 << 20;  ///< bytes that a relay forwards at once
  /// Bytes per second of each node in each direction; the fabric itself is never saturated.
  double link =
      25e9 / 8;
  double latency = 0.5e-3;  ///< seconds
  double rate = 0.14e9;  ///< bytes a second of the registry to one node, and of a node's converter;
                         ///< 0: node 0 has the image, none converts
  double spread = 1;     ///< seconds over which the nodes join
  double jitter = 0.05;  ///< relative, of the converters' rate, uniform in both directions
  double stragglers = 0;   ///< share of the nodes that convert at a tenth of the rate
  double connect = 10e-3;  ///< seconds to a relay: TCP and munge; the same to srun and back
  double silence = 0.25;   ///< seconds without a byte until a source is asked whether it is alive
  /// seconds until a node with another source switches to it; it may switch back
  double doubt = 0.2;
  /// Seconds until a question is unanswered; after three the source is dead.
  double answer = 0.5;
  bool leaves_slow = true;  ///< nodes leave a slow source, as `import` does
  double registry_begin = 0.3;  ///< seconds: token and GET
  std::uint32_t fanout = 2, spare = 2;
  bool spools =
      true;  ///< reads received bytes at once, not at the converter's rate, as `import` does
  Fault fault = Fault::none;
  std::uint32_t seed = 1;
};

/// Seconds from a node's own join until it is ready. Dead nodes do not count, nor do stragglers and
/// the slow relay themselves.
struct Outcome {
  double alone = 0;  ///< a single node without others
  double longest = 0, median = 0, p99 = 0;
  double last = 0;            ///< the last node's end, from the first one's join
  double registry = 0;        ///< bytes sent by the registry, in images
  double egress_max = 0;      ///< bytes sent by the busiest node, in images
  std::uint32_t ready = 0;    ///< nodes that got the image
  std::uint32_t counted = 0;  ///< nodes that count
  std::uint32_t askers = 0;   ///< nodes that asked the registry
  /// sources given up as dead, left as slow; answers 503
  std::uint32_t failovers = 0, moves = 0, refused = 0;
  double ratio() const { return longest / alone; }
};

/// Simulates the real PeerOrder with the time-outs of the real relays. The result is deterministic.
Outcome simulate(const Scenario& scenario);

}  // namespace spc::bench
