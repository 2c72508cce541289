#pragma once

#include <optional>

namespace spc {

/// Decides from a node's view of its source whether the source is slow compared with the achievable
/// rate. A plain value without a clock: `import` and the simulator of benchmarks/peers share it.
///
/// The achievable rate is the rate between an upper node and another one, limited by the leader's
/// own rate: while the registry is slow, no source is slow. A node switches its source if, for a
/// second, it lags behind the source and gets less than a third of the achievable rate. It also
/// switches if, for two seconds, the source lags behind the leader in this way. So a subtree with a
/// slow source moves from the top. A node moves at most three times, with five seconds between.
/// After two moves that did not help it stays, because then its own link is slow.
class SourceRate {
 public:
  /// Seconds, and bytes of the image from all sources. The leader's numbers are older than the
  /// rest, and so never too large.
  struct Seen {
    double now = 0;
    /// bytes that this node, its source, and the node that asks the registry have
    double here = 0, there = 0, leader = 0;
    double peer_rate = 0;  ///< bytes per second from an upper node to one below it, 0: not known
  };

  /// Returns whether to ask srun for another source. Call about four times a second.
  bool is_slow(const Seen& seen);
  /// Discards the measurements, after a change of source or a time in which this node did not read.
  void restart() { mine_ = sources_ = {}; }

 private:
  /// The lag of one node behind another, and its beginning.
  struct Lag {
    double since = -1, begin = 0;
    /// Returns the lagging node's bytes per second, once it has lagged for `time` seconds.
    std::optional<double> rate(double now, double has, double ahead, double limit, double time);
  };
  double can_be_had(const Seen& seen);
  bool may_move(double now, double rate);

  Lag mine_, sources_;
  double leader_since_ = -1, leader_begin_ = 0;
  std::optional<double> leader_rate_;
  int moves_ = 0, in_vain_ = 0;
  double last_move_ = 0, rate_before_ = 0;
};

}  // namespace spc
