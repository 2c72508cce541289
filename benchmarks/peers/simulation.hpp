#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace spc::bench {

/// What goes wrong, in the middle of the time that one node alone takes.
enum class Fault {
  none,
  leader_killed,  ///< its connections are reset
  leader_lost,    ///< no power: it just says nothing any more
  relays_killed,  ///< 1 % of all nodes, of those that serve others, each at a time of its own
  relays_lost,
  slow_relay,  ///< a node that takes from the leader has a link of a tenth, from the beginning
  partition,  ///< the upper half of the nodes reaches neither the lower half nor srun any more, but
              ///< the registry
};

/// A step whose nodes all lack one image. Nothing of it is measured: links, converters and the
/// registry are numbers.
struct Scenario {
  std::uint32_t nodes = 1024;
  double image = 1.46e9;   ///< bytes
  double chunk = 1 << 20;  ///< bytes that a relay passes on at once
  double link =
      25e9 / 8;  ///< bytes a second of each node, each way; the fabric itself is never full
  double latency = 0.5e-3;  ///< seconds
  double rate = 0.14e9;  ///< bytes a second of the registry to one node, and of a node's converter;
                         ///< 0: node 0 has the image, none converts
  double spread = 1;     ///< seconds over which the nodes join
  double jitter = 0.05;  ///< of the converters' rate, evenly to both sides
  double stragglers = 0;   ///< share of the nodes that convert at a tenth of the rate
  double connect = 10e-3;  ///< seconds to a relay: TCP and munge; the same to srun and back
  double silence = 0.25;   ///< seconds without a byte until a source is asked whether it lives
  double doubt = 0.2;      ///< seconds until who has another source goes on there; it may come back
  double answer = 0.5;     ///< seconds until a question has no answer; three of them: it is dead
  bool leaves_slow = true;  ///< nodes look for another source if theirs is slow, as `import` does
  double registry_begin = 0.3;  ///< seconds: token and GET
  std::uint32_t fanout = 2, refuge = 2;
  bool spools =
      true;  ///< takes what comes at once, and not only as fast as it converts, as `import` does
  Fault fault = Fault::none;
  std::uint32_t seed = 1;
};

/// Seconds from a node's own join until it is ready. Those that died do not count, nor do
/// stragglers and the slow relay themselves.
struct Outcome {
  double alone = 0;  ///< one node without others
  double longest = 0, median = 0, p99 = 0;
  double last = 0;            ///< the last node's end, from the first one's join
  double registry = 0;        ///< what the registry sent, in images
  double egress_max = 0;      ///< what the busiest node sent, in images
  std::uint32_t ready = 0;    ///< nodes that got the image
  std::uint32_t counted = 0;  ///< of so many
  std::uint32_t askers = 0;   ///< that asked the registry
  std::uint32_t failovers = 0, moves = 0, refused = 0;  ///< sources given up as dead, as slow; 503
  double ratio() const { return longest / alone; }
};

/// The real PeerOrder with the time-outs of the real relays. The same scenario has the same
/// outcome.
Outcome simulate(const Scenario& scenario);

}  // namespace spc::bench
