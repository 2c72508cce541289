#include "share/peer_order.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

using Index = PeerOrder::Index;
using Indices = std::vector<Index>;
constexpr std::uint32_t kFanout = 2, kPlaces = 4;
constexpr std::uint32_t kMost[] = {8, 16, 32, 64, 128};  // maximal number of nodes at once, by seed

/// Returns the error in a node's position, empty if there is none.
std::string wrong_with(const PeerOrder& order, Index index) {
  if (order.children(index).size() > kPlaces) return "more children than places";
  for (const Index child : order.children(index)) {
    if (child <= index) return "a child of a lower index";
    if (!order.lives(child)) return "a child that has left";
    if (order.depth(child) != order.depth(index) + 1) return "a child that is not one deeper";
  }
  const auto sources = order.sources_of(index);
  if (!sources.empty() &&
      std::count(order.children(sources[0]).begin(), order.children(sources[0]).end(), index) != 1)
    return "not its parent's child";
  if (sources.empty() != order.asks_registry(index))
    return "no source, and does not ask the registry";
  if (sources.size() > 12) return "more sources than a record holds";
  if (!sources.empty() && order.depth(sources[0]) + 1 != order.depth(index))
    return "not one deeper than its parent";
  for (const Index source : sources) {
    if (source >= index) return "a source of a higher index";
    if (!order.lives(source)) return "a source that has left";
    if (std::count(sources.begin(), sources.end(), source) != 1) return "a source twice";
  }
  return {};
}

std::uint32_t registry_askers(const PeerOrder& order) {
  std::uint32_t askers = 0;
  for (Index index = 0; index < order.size(); ++index) askers += order.asks_registry(index);
  return askers;
}

void check_all(const PeerOrder& order) {
  for (Index index = 0; index < order.size(); ++index) {
    if (!order.lives(index)) continue;
    INFO("index " << index);
    REQUIRE(wrong_with(order, index) == "");
  }
}

}  // namespace

TEST_CASE("peer_order_builds_binary_tree_by_level") {
  for (const std::uint32_t nodes : {1U, 2U, 3U, 7U, 8U, 96U, 1024U, 4096U}) {
    std::mt19937 random(nodes);
    std::vector<std::uint32_t> ids(nodes);
    for (std::uint32_t i = 0; i < nodes; ++i) ids[i] = i;
    std::shuffle(ids.begin(), ids.end(), random);
    PeerOrder order;
    for (std::uint32_t i = 0; i < nodes; ++i) {
      REQUIRE(order.join(ids[i]) == i);
      REQUIRE(order.depth(i) == static_cast<std::uint32_t>(std::log2(i + 1)));
      REQUIRE(order.children(i).empty());
    }
    check_all(order);
    for (std::uint32_t i = 0; i < nodes; ++i) REQUIRE(order.children(i).size() <= kFanout);
    CHECK(registry_askers(order) == 1);
  }
}

TEST_CASE("peer_order_prefers_nearest_parent_of_equal_depth") {
  PeerOrder order;
  for (const std::uint32_t id : {100U, 0U, 200U}) order.join(id);
  CHECK(order.sources_of(order.join(190)).at(0) == 2);
  CHECK(order.sources_of(order.join(10)).at(0) == 1);
  CHECK(order.sources_of(order.join(20)).at(0) == 1);
  CHECK(order.sources_of(order.join(30)).at(0) == 2);  // node 0 has its two children
}

TEST_CASE("peer_order_sources_are_ancestors_and_free_nodes") {
  PeerOrder order;
  for (std::uint32_t id = 0; id < 4096; ++id) order.join(id);
  const auto sources = order.sources_of(4095);
  REQUIRE(sources.size() == 12);
  for (std::size_t i = 0; i + 3 < sources.size(); ++i) CHECK(order.depth(sources[i]) == 11 - i);
  for (std::size_t i = 10; i < 12; ++i) CHECK(order.children(sources[i]).size() < kFanout);
  CHECK(order.sources_of(0).empty());
  CHECK(order.sources_of(1) == Indices{0});
  CHECK(order.sources_of(4096).empty());
}

TEST_CASE("peer_order_children_of_leaving_node_take_its_parent") {
  PeerOrder order;
  for (std::uint32_t id = 0; id < 15; ++id) order.join(id);
  const auto children = order.children(1);
  CHECK(order.leave(1) == children);
  for (const Index child : children) CHECK(order.sources_of(child).at(0) == 0);
  CHECK(order.leave(1).empty());
  CHECK(order.leave(99).empty());
  CHECK(order.leave(0).front() == 2);
  CHECK(order.asks_registry(2));
  CHECK(registry_askers(order) == 1);
  check_all(order);
  CHECK(order.join(1) == 15);  // it joins again
  CHECK(order.sources_of(15).at(0) != 1);
}

TEST_CASE("peer_order_slow_parent_is_barred") {
  PeerOrder order;
  for (std::uint32_t id = 0; id < 15; ++id) order.join(id);
  const Index child = order.children(1).at(0);
  CHECK(order.move(child, Indices{1}) == Indices{child});
  CHECK(order.sources_of(child).at(0) == 0);
  for (std::uint32_t id = 15; id < 200; ++id) order.join(id);
  CHECK(order.children(1).size() == 1);
  const Indices all{0, 1, 2, 3, 4, 5, 6, 7, 1000};
  CHECK(order.move(child, all, PeerOrder::Because::slow)
            .empty());  // its own link may be the slow one
  CHECK(order.sources_of(child).at(0) == 0);
  CHECK(order.move(child, all) == Indices{child});
  CHECK(order.asks_registry(child));
  check_all(order);
}

TEST_CASE("peer_order_nodes_below_barred_are_last_choice") {
  PeerOrder order;
  for (std::uint32_t id = 0; id < 7; ++id) order.join(id);
  for (const Index index : {1U, 3U, 4U}) order.move(index, Indices{0});
  REQUIRE(order.children(1) == Indices{5, 6, 3, 4});  // all its child places
  REQUIRE(order.sources_of(order.join(2)).at(0) == 2);
  CHECK(order.move(7, Indices{0}) == Indices{7});
  CHECK(order.sources_of(7).at(0) == 3);  // not 2, though that is equally deep and nearer
  check_all(order);
}

TEST_CASE("peer_order_full_tree_displaces_higher_node") {
  PeerOrder order(2, 0);
  for (std::uint32_t id = 0; id < 7; ++id) order.join(id);
  order.leave(1);
  order.join(7);
  order.leave(2);
  REQUIRE(order.children(0) == Indices{5, 3});
  REQUIRE(order.children(5) == Indices{6, 7});

  CHECK(order.move(4, Indices{3}) == Indices{4, 5});
  CHECK(order.children(0) == Indices{3, 4});
  CHECK(order.sources_of(5).at(0) == 4);
  check_all(order);

  PeerOrder chain(1, 0);
  for (std::uint32_t id = 0; id < 5; ++id) chain.join(id);
  CHECK(chain.move(4, Indices{3}) == Indices{4});
  CHECK(chain.asks_registry(4));  // lower nodes hold all places
}

namespace {

/// An order under random joins, deaths and moves, and the last parent announced to each node.
struct Step {
  PeerOrder order;
  std::mt19937 random;
  std::map<Index, Indices> told{};  // the first source of each living node, if it has one
  std::set<Index>
      barred_all{};  // asked the registry because it barred all lower nodes: may have been right

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); }
  Index any() {
    return std::next(told.begin(), below(static_cast<std::uint32_t>(told.size())))->first;
  }

  void tell(const Indices& indices) {
    for (const Index index : indices) {
      const auto sources = order.sources_of(index);
      told[index].assign(sources.begin(), sources.begin() + (sources.empty() ? 0 : 1));
      if (!sources.empty()) barred_all.erase(index);
    }
  }
  void join(std::uint32_t node_ids) { tell({order.join(below(node_ids))}); }
  void leave(Index index) {
    const auto moved = order.leave(index);
    told.erase(index), barred_all.erase(index);
    tell(moved);
  }
  /// Moves a node away from some sources, and sometimes from all living lower nodes.
  void move(Index index) {
    const auto because = below(2) == 0 ? PeerOrder::Because::dead : PeerOrder::Because::slow;
    auto barred = order.sources_of(index);
    if (below(20) != 0) barred.resize(std::min<std::size_t>(barred.size(), 1 + below(4)));
    const auto moved = order.move(index, barred, because);
    if (because == PeerOrder::Because::dead) {
      REQUIRE(moved.at(0) == index);
      if (order.asks_registry(index)) barred_all.insert(index);
    } else {
      REQUIRE((moved.empty() || !order.asks_registry(index)));
    }
    tell(moved);
    if (!moved.empty() && !told[index].empty())
      REQUIRE(std::count(barred.begin(), barred.end(), told[index][0]) == 0);
  }
  /// Checks that each node's last announced parent agrees with the order, and so does the set of
  /// nodes that ask the registry.
  void check() {
    std::uint32_t edges = 0, askers = 0;
    for (const auto& [index, sources] : told) {
      if (const auto wrong = wrong_with(order, index); !wrong.empty()) FAIL(index << ": " << wrong);
      REQUIRE(sources.empty() == order.asks_registry(index));
      if (!sources.empty()) REQUIRE(order.sources_of(index).at(0) == sources[0]);
      edges += static_cast<std::uint32_t>(order.children(index).size());
      askers += sources.empty();
      REQUIRE((!sources.empty() || index == told.begin()->first || barred_all.count(index) == 1));
    }
    REQUIRE(edges + askers == told.size());
    REQUIRE((told.empty() || order.asks_registry(told.begin()->first)));
  }
};

}  // namespace

TEST_CASE("peer_order_random_deaths_keep_one_registry_reader") {
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U}) {
    INFO("seed " << seed);
    Step step{.order = PeerOrder(), .random = std::mt19937(seed)};
    const std::uint32_t most = kMost[seed - 1];
    for (std::uint32_t turn = 0; turn < 10'000; ++turn) {
      if (step.told.size() < 2 || (step.told.size() < most && step.below(100) < 60)) {
        step.join(most);
      } else {
        step.leave(step.below(6) == 0 ? step.told.begin()->first
                                      : step.any());  // the leader more often
      }
      REQUIRE(step.barred_all.empty());
      if (turn % (8 * most) == 0) step.check();
    }
    step.check();
    CHECK(registry_askers(step.order) == 1);
  }
}

TEST_CASE("peer_order_random_moves_keep_registry_readers_few") {
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U}) {
    INFO("seed " << seed);
    Step step{.order = PeerOrder(), .random = std::mt19937(seed)};
    const std::uint32_t most = kMost[seed - 1];
    for (std::uint32_t turn = 0; turn < 10'000; ++turn) {
      if (step.told.size() < 2 || (step.told.size() < most && step.below(100) < 40)) {
        step.join(most);
      } else if (step.below(2) == 0) {
        step.leave(step.any());
      } else {
        step.move(step.any());
      }
      if (turn % (8 * most) == 0) step.check();
    }
    step.check();
  }
}

TEST_CASE("peer_order_silent_leader_death_chooses_lowest_node") {
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
    INFO("seed " << seed);
    PeerOrder order;
    for (std::uint32_t id = 0; id < 20; ++id) order.join(id);
    Indices asking = order.children(0);
    std::shuffle(asking.begin(), asking.end(), std::mt19937(seed));
    for (const Index index : asking) order.move(index, Indices{0});
    CHECK(order.asks_registry(1));
    CHECK(order.sources_of(2) == Indices{1});
    CHECK(order.sources_of(order.join(20)).back() != 0);  // no node is sent to 0 any more
    check_all(order);
    CHECK(registry_askers(order) == 2);  // 0, which is dead, and 1
  }
}
