// When a node leaves its source because it is slow: a pure function of what it sees.
#include <functional>

#include "image/peers/source_pace.hpp"
#include "image/relay/best_rate.hpp"
#include "unit/test.hpp"

using namespace spc;

namespace {

constexpr double kMB = 1e6, kLook = 0.25;

/// Bytes that a node has after so many seconds.
using Curve = std::function<double(double)>;
Curve steady(double rate, double size = 1e12) {
  return [=](double at) { return std::min(rate * at, size); };
}

/// The seconds at which a node leaves its source, in `seconds`; `better`: what it gets after its
/// first move.
std::vector<double> moves(const Curve& here, const Curve& there, const Curve& leader, double pace,
                          double seconds = 60) {
  SourcePace source_pace;
  std::vector<double> found;
  for (double now = 0; now < seconds; now += kLook) {
    if (!source_pace.is_slow({.now = now,
                              .here = here(now),
                              .there = there(now),
                              .leader = leader(now),
                              .pace = pace}))
      continue;
    found.push_back(now);
    source_pace.restart();
  }
  return found;
}

}  // namespace

TEST_CASE("a source that gives a tenth of what its own node gets is left within two seconds") {
  const auto left = moves(steady(10 * kMB), steady(100 * kMB), steady(100 * kMB), 100 * kMB);
  REQUIRE(!left.empty());
  CHECK(left.front() <= 2);
}

TEST_CASE("a small image is left a slow source, too: what counts is what can be had") {
  const auto left = moves(steady(0.3 * kMB), steady(8 * kMB), steady(8 * kMB), 8 * kMB);
  REQUIRE(!left.empty());
  CHECK(left.front() <= 3);
}

TEST_CASE("a registry that is slow is nobody's source's fault") {
  CHECK(moves(steady(1 * kMB), steady(1 * kMB), steady(1 * kMB), 1000 * kMB).empty());
  // It was fast, and stalls: the leader's bytes are known late.
  const auto stalls = [](double late) {
    return Curve([late](double at) { return 500 * kMB * std::min(std::max(at - late, 0.0), 2.0); });
  };
  CHECK(moves(stalls(0.5), stalls(0.25), stalls(2.5), 500 * kMB).empty());
}

TEST_CASE("a network that is full is nobody's fault: others get no more") {
  // The registry would give 1 GB/s; each link half of it to a child, and a quarter where a source
  // has a refuge.
  CHECK(moves(steady(156 * kMB), steady(312 * kMB), steady(1000 * kMB), 312 * kMB).empty());
}

TEST_CASE(
    "a node whose source keeps up with the leader stays while it is behind by what is on its way") {
  CHECK(moves(
            steady(100 * kMB), [](double at) { return 100 * kMB * at + 20 * kMB; },
            steady(100 * kMB), 100 * kMB)
            .empty());
}

TEST_CASE("a source that is itself behind is left later than it leaves its own") {
  const auto below = moves(steady(10 * kMB), steady(10 * kMB), steady(100 * kMB), 100 * kMB);
  const auto above = moves(steady(10 * kMB), steady(100 * kMB), steady(100 * kMB), 100 * kMB);
  REQUIRE(!below.empty());
  REQUIRE(!above.empty());
  CHECK(below.front() >= above.front() + 1);
  // It has left: what is below gets on, and stays.
  const Curve recovers = [](double at) {
    return at < 2 ? 10 * kMB * at : 20 * kMB + 90 * kMB * (at - 2);
  };
  CHECK(moves(recovers, recovers, steady(100 * kMB), 100 * kMB).empty());
}

TEST_CASE("a node whose own link is slow leaves two sources in vain, and then no more") {
  const auto left =
      moves(steady(5 * kMB), steady(100 * kMB), steady(100 * kMB, 1e9), 100 * kMB, 600);
  REQUIRE(left.size() == 2);
  CHECK(left[1] - left[0] >= 5);
}

TEST_CASE("a node leaves three sources at most, whatever they do") {
  SourcePace source_pace;
  int left = 0;
  double here = 0, rate = 1 * kMB;
  for (double now = 0; now < 600; now += kLook) {
    here += rate * kLook;
    if (!source_pace.is_slow({.now = now,
                              .here = here,
                              .there = 1000 * kMB * now,
                              .leader = 1000 * kMB * now,
                              .pace = 1000 * kMB}))
      continue;
    ++left;
    rate *= 3;  // each is better than the last one, and slow
    source_pace.restart();
  }
  CHECK(left == 3);
}

TEST_CASE("a time in which a node takes nothing says nothing of its source") {
  SourcePace source_pace;
  for (double now = 0; now < 30; now += kLook) {
    source_pace.restart();  // its converter is full
    CHECK(!source_pace.is_slow({.now = now,
                                .here = 0,
                                .there = 100 * kMB * now,
                                .leader = 100 * kMB * now,
                                .pace = 100 * kMB}));
  }
}

TEST_CASE("without knowing what can be had nobody is slow") {
  CHECK(moves(steady(1 * kMB), steady(100 * kMB), steady(100 * kMB), 0).empty());
}

TEST_CASE("who joins when the leader has all of it leaves a slow source by what others get") {
  const Curve all = [](double) { return 1000 * kMB; };
  CHECK(!moves(steady(10 * kMB), all, all, 100 * kMB).empty());
  CHECK(moves(steady(50 * kMB), all, all, 100 * kMB).empty());
}

TEST_CASE("the best rate is that of who gets most, over half a second and more") {
  BestRate rate;
  rate.add(1, 0, 100 * kMB);  // lay in a buffer
  CHECK(rate.best() == 0);
  for (double at = 0.1; at < 1; at += 0.1) rate.add(1, at, 1 * kMB), rate.add(2, at, 3 * kMB);
  CHECK(rate.best() > 25 * kMB);
  CHECK(rate.best() < 40 * kMB);
  rate.add(1, 5, 1 * kMB);
  CHECK(rate.best() > 25 * kMB);
}
