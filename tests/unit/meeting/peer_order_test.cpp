#include "meeting/peer_order.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "unit/test.hpp"

using namespace spc;

namespace {

using Index = PeerOrder::Index;
using Indices = std::vector<Index>;
constexpr std::uint32_t kFanout = 2, kPlaces = 4;

/// An order, and what a node was last told.
struct Told {
  PeerOrder order;
  std::map<Index, Indices> sources;
  std::map<Index, bool> asks;

  void tell(const Indices& indices) {
    for (const Index index : indices) sources[index] = order.sources_of(index), asks[index] = order.asks_registry(index);
  }
  Index join(std::uint32_t node_id) {
    const Index index = order.join(node_id);
    tell({index});
    return index;
  }
  void leave(Index index) {
    tell(order.leave(index));
    sources.erase(index), asks.erase(index);
  }
};

Index lowest_living(const PeerOrder& order) {
  Index index = 0;
  while (index < order.size() && !order.lives(index)) ++index;
  return index;
}

/// What is wrong with a node's place; empty if nothing is.
std::string wrong_with(const PeerOrder& order, Index index) {
  if (order.children(index).size() > kPlaces) return "more children than places";
  for (const Index child : order.children(index)) {
    if (child <= index) return "a child of a lower index";
    if (!order.lives(child)) return "a child that has left";
    if (order.depth(child) != order.depth(index) + 1) return "a child that is not one deeper";
    if (order.sources_of(child).at(0) != index) return "a child whose first source is another one";
  }
  const auto sources = order.sources_of(index);
  if (sources.empty() != order.asks_registry(index)) return "no source, and does not ask the registry";
  if (sources.size() > 12) return "more sources than a record holds";
  if (!sources.empty() && order.depth(sources[0]) + 1 != order.depth(index)) return "not one deeper than its parent";
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
    INFO("index ", index);
    REQUIRE(wrong_with(order, index) == "");
  }
}

}  // namespace

TEST_CASE("nodes that join one after the other make a tree of two children each, level by level") {
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

TEST_CASE("of parents of the same depth the nearest node is taken") {
  PeerOrder order;
  for (const std::uint32_t id : {100U, 0U, 200U}) order.join(id);
  CHECK(order.sources_of(order.join(190)).at(0) == 2);
  CHECK(order.sources_of(order.join(10)).at(0) == 1);
  CHECK(order.sources_of(order.join(20)).at(0) == 1);
  CHECK(order.sources_of(order.join(30)).at(0) == 2);  // node 0 has its two
}

TEST_CASE("sources are the parent, its ancestors, and nodes with free places that do not take from the parent") {
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

TEST_CASE("the children of a node that leaves take its parent, and the lowest node asks the registry") {
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
  CHECK(order.join(1) == 15);  // it comes again
  CHECK(order.sources_of(15).at(0) != 1);
}

TEST_CASE("a node that finds its parent slow takes from none that does, and nobody new is sent there") {
  PeerOrder order;
  for (std::uint32_t id = 0; id < 15; ++id) order.join(id);
  const Index child = order.children(1).at(0);
  CHECK(order.move(child, Indices{1}) == Indices{child});
  CHECK(order.sources_of(child).at(0) == 0);
  for (std::uint32_t id = 15; id < 200; ++id) order.join(id);
  CHECK(order.children(1).size() == 1);
  CHECK(order.move(child, Indices{0, 1, 2, 3, 4, 5, 6, 7, 1000}) == Indices{child});
  CHECK(order.asks_registry(child));
  check_all(order);
}

TEST_CASE("a node for which no place is left takes that of a higher one") {
  PeerOrder order(1, 0);  // a chain
  for (std::uint32_t id = 0; id < 5; ++id) order.join(id);
  const auto told = order.move(4, Indices{3});
  CHECK(told == Indices{4});  // all lower places are taken by lower nodes: only the registry is left
  CHECK(order.asks_registry(4));
  PeerOrder other(1, 1);
  for (std::uint32_t id = 0; id < 4; ++id) other.join(id);
  CHECK(other.move(3, Indices{2}) == Indices{3});
  CHECK(other.sources_of(3).at(0) == 1);
  CHECK(other.leave(2).empty());
  CHECK(other.leave(1) == Indices{3});
  CHECK(other.sources_of(3) == Indices{0});
}

TEST_CASE("a lower index is always alive, or the node asks the registry: random joins, deaths and moves") {
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 10U}) {
    INFO("seed ", seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); };
    Told told;
    std::uint32_t living = 0;
    const std::uint32_t most = 8 << seed % 5;
    for (int turn = 0; turn < 10'000; ++turn) {
      if (living < 2 || (living < most && below(100) < 55)) {
        told.join(below(most));
        ++living;
      } else {
        const auto at = std::next(told.sources.begin(), below(living));  // living ones only
        // Low ones die more often: they have children.
        told.leave(below(3) == 0 ? told.sources.begin()->first : at->first);
        --living;
      }
      const auto& order = told.order;
      REQUIRE(registry_askers(order) == 1);
      REQUIRE(order.asks_registry(lowest_living(order)));
      for (const auto& [index, sources] : told.sources) {
        REQUIRE(wrong_with(order, index) == "");
        // Whoever was told nothing new still has the parent that the order counts with.
        REQUIRE(told.asks.at(index) == order.asks_registry(index));
        if (!sources.empty()) REQUIRE(sources[0] == order.sources_of(index)[0]);
      }
    }
  }
}
