#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace spc {

/// Who takes an image from whom, among the nodes of a step that lack it: a tree in the order in
/// which they ask. srun keeps one for each manifest, benchmarks/peers another one with simulated
/// links. A plain value: same calls, same order.
///
/// Every node has an index, 0, 1, 2 ... as it joined, and takes only from lower ones. So there is
/// no cycle, whatever dies, and the lowest living node is the one that asks the registry. A node
/// that joins is put where the tree is least deep; that alone makes node i's parent one of the
/// nodes around (i - 1) / 2, and the depth log2 of the number of nodes. Among places of the same
/// depth the nearest SLURM_NODEID is taken: Slurm numbers nodes by topology.
///
/// A node serves `fanout` children, and `refuge` more whose own parent died or was slow. What is
/// counted here is whom the order sends where. A node that goes on at its next source without a
/// question may find that one full, and tries the one after it.
class PeerOrder {
 public:
  using Index = std::uint32_t;
  enum class Because { dead, slow };

  explicit PeerOrder(std::uint32_t fanout = 2, std::uint32_t refuge = 2)
      : fanout_(fanout), places_(fanout + refuge) {}

  /// A node that has never been here, or has left and comes again. Costs O(log n).
  Index join(std::uint32_t node_id);

  /// Its relay has ended. Who has to be sent new sources: those that took from it, and whoever had
  /// to make room for them; some may have to ask the registry now. Costs O(n) for each. Nothing for
  /// an index that has left or never was.
  std::vector<Index> leave(Index index);

  /// `index` finds the `barred` dead or slow: it gets another parent, if possible one that takes
  /// from none of them, and nobody new is sent to them while there are others. Who has to be sent
  /// new sources, `index` itself first. If all lower nodes are barred it asks the registry; but not
  /// because they are slow (its own link may be what is): then it stays, and nobody has to be told.
  std::vector<Index> move(Index index, std::span<const Index> barred,
                          Because because = Because::dead);

  /// Up to kMostSources lower indices, best first: parent, its ancestors, and two with free places,
  /// not below the parent if possible. Empty: ask the registry.
  std::vector<Index> sources_of(Index index) const;

  /// Whether no lower node is of use to it. True of the lowest living node, and of nodes for which
  /// all lower ones are barred.
  bool asks_registry(Index index) const { return lives(index) && nodes_[index].parent == kNone; }
  bool lives(Index index) const { return index < nodes_.size() && nodes_[index].lives; }
  std::uint32_t depth(Index index) const { return nodes_[index].depth; }
  const std::vector<Index>& children(Index index) const { return nodes_[index].children; }
  Index size() const { return static_cast<Index>(nodes_.size()); }  ///< with those that have left

 private:
  static constexpr Index kNone = ~Index{0};
  using Barred = std::span<const Index>;

  struct Node {
    std::uint32_t node_id = 0;
    std::uint32_t depth = 0;
    Index parent = kNone;
    bool lives = true;
    bool shunned = false;  ///< somebody found it dead or slow
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
  std::vector<std::set<std::pair<std::uint32_t, Index>>>
      open_;  ///< by depth: living nodes with less than fanout children, by node_id
};

}  // namespace spc
