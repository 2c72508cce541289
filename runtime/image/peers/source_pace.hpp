#pragma once

#include <optional>

namespace spc {

/// Decides from what a node sees of its source whether that one is slow against what can be had. A
/// plain value without a clock: `import` and the simulator of benchmarks/peers use it alike.
///
/// What can be had is what a node above gives to another one, and not more than what the leader
/// itself gets: while the registry is slow nobody is. A node leaves if it lags behind its source,
/// or its source behind the leader, and the one that lags gets a third of that for a second (two):
/// so a subtree whose source is slow leaves it from the top. It does so three times at most, with
/// five seconds between, and not any more when two moves were in vain: then its own link is what is
/// slow.
class SourcePace {
 public:
  /// Seconds and bytes of the image, wherever they came from; what is known of the leader is older
  /// than the rest, and so never too much.
  struct Seen {
    double now = 0;
    double here = 0, there = 0,
           leader = 0;  ///< that this node, its source, the node that asks the registry have
    double pace = 0;    ///< bytes a second that a node above gives to one below it; 0: not known
  };

  /// To be asked about four times a second. True: srun is to be asked for another source.
  bool is_slow(const Seen& seen);
  /// Another source, or a time in which this node took nothing: what was seen until now says
  /// nothing.
  void restart() { mine_ = sources_ = {}; }

 private:
  /// Who is behind, and since when.
  struct Lag {
    double since = -1, begin = 0;
    /// Bytes a second that came to the one that is behind, once it has been for so long.
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
