#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace spc {

// --- peer order ---

/// The order in which nodes of a step that lack an image fetch it from each other: a tree, built in
/// the order in which they ask. srun keeps one for each manifest. benchmarks/peers keeps one with
/// simulated links. A plain value: the same calls give the same order.
///
/// Every node gets an index, 0, 1, 2 ... as it joins, and fetches only from lower indices. So there
/// is no cycle, whichever nodes die, and the lowest living node asks the registry. A joining node
/// is placed where the tree is least deep. With a fanout of 2, node i's parent is one of the nodes
/// around (i - 1) / 2, and the depth is log2 of the number of nodes. Among places of the same depth
/// the nearest SLURM_NODEID is chosen: Slurm numbers nodes by topology.
///
/// A node serves `fanout` children, and up to `spare` further nodes whose own parent died or was
/// slow. The order counts only the nodes that it sends to a node. A node that switches to its next
/// source without asking srun may find that source full. It then tries the following one.
class PeerOrder {
 public:
  using Index = std::uint32_t;
  enum class Because { dead, slow };

  explicit PeerOrder(std::uint32_t fanout = 2, std::uint32_t spare = 2)
      : fanout_(fanout), places_(fanout + spare) {}

  /// Adds a node that joins for the first time, or again after it has left. Costs O(log n).
  Index join(std::uint32_t node_id);

  /// Removes a node whose relay has ended. Returns the nodes that need new sources: its children,
  /// and nodes displaced by them. Some may have to ask the registry now. Costs O(n) for each.
  /// Returns an empty list for an index that has left or never joined.
  std::vector<Index> leave(Index index);

  /// Moves `index`, which found the `barred` nodes dead or slow, to another parent, if possible one
  /// that fetches from none of them. New nodes are not sent to barred ones while there are others.
  /// Returns the nodes that need new sources, `index` first. If all lower nodes are barred as dead,
  /// `index` asks the registry. If they are barred as slow, it stays, because its own link may be
  /// slow, and the result is empty.
  std::vector<Index> move(Index index, std::span<const Index> barred,
                          Because because = Because::dead);

  /// Returns up to kMostSources lower indices, best first: parent, its ancestors, and two nodes
  /// with free places, if possible not below the parent. Empty: ask the registry.
  std::vector<Index> sources_of(Index index) const;

  /// Returns whether the node has to ask the registry: it is the lowest living node, or all lower
  /// nodes are barred for it.
  bool asks_registry(Index index) const { return lives(index) && nodes_[index].parent == kNone; }
  bool lives(Index index) const { return index < nodes_.size() && nodes_[index].lives; }
  std::uint32_t depth(Index index) const { return nodes_[index].depth; }
  const std::vector<Index>& children(Index index) const { return nodes_[index].children; }
  /// Returns the number of nodes, including those that have left.
  Index size() const { return static_cast<Index>(nodes_.size()); }

 private:
  static constexpr Index kNone = ~Index{0};
  using Barred = std::span<const Index>;

  struct Node {
    std::uint32_t node_id = 0;
    std::uint32_t depth = 0;
    Index parent = kNone;
    bool lives = true;
    bool shunned = false;  ///< another node found it dead or slow
    std::vector<Index> children{};
  };

  void settle(Index index, Index above, Barred barred, std::vector<Index>& told);
  Index place_for(Index index, Index above, Barred barred) const;
  Index place_to_clear(Index index, Barred barred) const;
  Index nearest_open(std::uint32_t node_id) const;
  void add_others(Index index, std::vector<Index>& sources) const;
  bool takes_from(Index index, Barred barred) const;
  bool can_serve(Index index, Barred barred) const;
  std::uint32_t distance(Index one, std::uint32_t node_id) const;
  void attach(Index index, Index parent);
  void detach(Index index);
  void set_depth(Index index, std::uint32_t depth);
  void list(Index index);
  void unlist(Index index);

  std::uint32_t fanout_, places_;
  std::vector<Node> nodes_;
  std::vector<Index> living_;  ///< ascending
  /// by depth: living nodes with fewer than `fanout` children, by node_id
  std::vector<std::set<std::pair<std::uint32_t, Index>>> open_;
};

// --- source rate ---

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
