// Decision of a node to leave a slow source: a pure function of its observations.
#include <functional>

#include "share/peer_order.hpp"
#include "share/spool.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

constexpr double kMB = 1e6, kLook = 0.25;

/// Bytes received after this number of seconds.
using Curve = std::function<double(double)>;
Curve steady(double rate, double size = 1e12) {
  return [=](double at) { return std::min(rate * at, size); };
}

/// Returns the seconds at which a node leaves its source, within `seconds`. `better`: the curve
/// after its first move.
std::vector<double> moves(const Curve& here, const Curve& there, const Curve& leader,
                          double peer_rate, double seconds = 60) {
  SourceRate source_pace;
  std::vector<double> found;
  for (double now = 0; now < seconds; now += kLook) {
    if (!source_pace.is_slow({.now = now,
                              .here = here(now),
                              .there = there(now),
                              .leader = leader(now),
                              .peer_rate = peer_rate}))
      continue;
    found.push_back(now);
    source_pace.restart();
  }
  return found;
}

}  // namespace

TEST_CASE("source_at_a_tenth_of_available_rate_is_left_in_2_s") {
  const auto left = moves(steady(10 * kMB), steady(100 * kMB), steady(100 * kMB), 100 * kMB);
  REQUIRE(!left.empty());
  CHECK(left.front() <= 2);
}

TEST_CASE("source_slow_for_small_image_is_left") {
  const auto left = moves(steady(0.3 * kMB), steady(8 * kMB), steady(8 * kMB), 8 * kMB);
  REQUIRE(!left.empty());
  CHECK(left.front() <= 3);
}

TEST_CASE("source_is_kept_when_registry_is_slow") {
  CHECK(moves(steady(1 * kMB), steady(1 * kMB), steady(1 * kMB), 1000 * kMB).empty());
  // The source was fast and stalls. The leader's bytes become known late.
  const auto stalls = [](double late) {
    return Curve([late](double at) { return 500 * kMB * std::min(std::max(at - late, 0.0), 2.0); });
  };
  CHECK(moves(stalls(0.5), stalls(0.25), stalls(2.5), 500 * kMB).empty());
}

TEST_CASE("source_is_kept_when_network_is_full") {
  // The registry would give 1 GB/s. Each link gives half of that to a child, and a quarter if a
  // source has a spare place.
  CHECK(moves(steady(156 * kMB), steady(312 * kMB), steady(1000 * kMB), 312 * kMB).empty());
}

TEST_CASE("source_keeping_up_with_leader_is_kept") {
  CHECK(moves(
            steady(100 * kMB), [](double at) { return 100 * kMB * at + 20 * kMB; },
            steady(100 * kMB), 100 * kMB)
            .empty());
}

TEST_CASE("source_that_is_behind_is_left_later") {
  const auto below = moves(steady(10 * kMB), steady(10 * kMB), steady(100 * kMB), 100 * kMB);
  const auto above = moves(steady(10 * kMB), steady(100 * kMB), steady(100 * kMB), 100 * kMB);
  REQUIRE(!below.empty());
  REQUIRE(!above.empty());
  CHECK(below.front() >= above.front() + 1);
  // The source has switched to a better one: nodes below recover, and stay.
  const Curve recovers = [](double at) {
    return at < 2 ? 10 * kMB * at : 20 * kMB + 90 * kMB * (at - 2);
  };
  CHECK(moves(recovers, recovers, steady(100 * kMB), 100 * kMB).empty());
}

TEST_CASE("source_is_left_twice_at_most_on_slow_own_link") {
  const auto left =
      moves(steady(5 * kMB), steady(100 * kMB), steady(100 * kMB, 1e9), 100 * kMB, 600);
  REQUIRE(left.size() == 2);
  CHECK(left[1] - left[0] >= 5);
}

TEST_CASE("source_is_left_three_times_at_most") {
  SourceRate source_pace;
  int left = 0;
  double here = 0, rate = 1 * kMB;
  for (double now = 0; now < 600; now += kLook) {
    here += rate * kLook;
    if (!source_pace.is_slow({.now = now,
                              .here = here,
                              .there = 1000 * kMB * now,
                              .leader = 1000 * kMB * now,
                              .peer_rate = 1000 * kMB}))
      continue;
    ++left;
    rate *= 3;  // each is better than the last one, but slow
    source_pace.restart();
  }
  CHECK(left == 3);
}

TEST_CASE("source_rate_ignores_time_without_demand") {
  SourceRate source_pace;
  for (double now = 0; now < 30; now += kLook) {
    source_pace.restart();  // its converter is full
    CHECK(!source_pace.is_slow({.now = now,
                                .here = 0,
                                .there = 100 * kMB * now,
                                .leader = 100 * kMB * now,
                                .peer_rate = 100 * kMB}));
  }
}

TEST_CASE("source_rate_needs_a_known_rate") {
  CHECK(moves(steady(1 * kMB), steady(100 * kMB), steady(100 * kMB), 0).empty());
}

TEST_CASE("source_joined_after_leader_is_judged_by_best_rate") {
  const Curve all = [](double) { return 1000 * kMB; };
  CHECK(!moves(steady(10 * kMB), all, all, 100 * kMB).empty());
  CHECK(moves(steady(50 * kMB), all, all, 100 * kMB).empty());
}

TEST_CASE("best_rate_needs_half_a_second") {
  BestRate rate;
  rate.add(1, 0, 100 * kMB);  // was buffered
  CHECK(rate.best() == 0);
  for (double at = 0.1; at < 1; at += 0.1) rate.add(1, at, 1 * kMB), rate.add(2, at, 3 * kMB);
  CHECK(rate.best() > 25 * kMB);
  CHECK(rate.best() < 40 * kMB);
  rate.add(1, 5, 1 * kMB);
  CHECK(rate.best() > 25 * kMB);
}
