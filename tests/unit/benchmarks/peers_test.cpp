// Properties of the peer order in simulation. benchmarks/README.md compares them with measurements.
#include <cmath>

#include "benchmarks/peers/simulation.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc::bench;

namespace {

constexpr double kMeasured = 0.14e9, kFast = 1e9;

Scenario step_of_1024(double gbits, double rate, Fault fault = Fault::none) {
  Scenario one;
  one.link = gbits * 1e9 / 8;
  one.rate = rate;
  one.fault = fault;
  one.chunk = 8 << 20;  // an eighth of the simulation time
  return one;
}

Outcome all_ready(const Scenario& scenario) {
  const auto outcome = simulate(scenario);
  CHECK(outcome.ready == outcome.counted);
  return outcome;
}

}  // namespace

TEST_CASE("peers_1024_nodes_fetch_image_once_in_1_3_times") {
  for (const double gbits : {25., 100.}) {
    for (const double rate : {kMeasured, kFast}) {
      INFO(gbits << " Gb/s, " << rate);
      const auto outcome = all_ready(step_of_1024(gbits, rate));
      CHECK(outcome.counted == 1024);
      CHECK(outcome.registry == 1.0);
      CHECK(outcome.askers == 1);
      CHECK(outcome.ratio() <= 1.3);
      CHECK(outcome.ratio() >= 1.0);
      CHECK(outcome.egress_max <= 2.0);
      CHECK(outcome.moves + outcome.failovers + outcome.refused == 0);
    }
  }
}

TEST_CASE("peers_simulation_matches_tree_arithmetic") {
  for (const std::uint32_t fanout : {2U, 4U}) {
    auto one = step_of_1024(25, 0);  // the leader has the image
    one.fanout = fanout;
    one.spread = one.jitter = one.connect = 0;
    const double depth = fanout == 2 ? 10 : 5;
    const double wanted =
        fanout * one.image / one.link + depth * (fanout * one.chunk / one.link + one.latency);
    const double found = simulate(one).longest;
    INFO(found << " s, by arithmetic " << wanted);
    CHECK(std::fabs(found - wanted) < 0.1 * wanted);
  }
}

TEST_CASE("peers_leader_death_costs_less_than_2_5_s") {
  const double sound = all_ready(step_of_1024(25, kFast)).longest;
  const auto killed = all_ready(step_of_1024(25, kFast, Fault::leader_killed));
  CHECK(killed.longest - sound < 2);
  CHECK(killed.registry <= 1.1);
  CHECK(killed.askers == 2);
  const auto lost = all_ready(step_of_1024(25, kFast, Fault::leader_lost));
  CHECK(lost.longest - sound < 2.5);
  CHECK(lost.longest > killed.longest);
  CHECK(lost.askers == 2);
}

TEST_CASE("peers_dead_relays_cost_at_most_1_4_times") {
  for (const double rate : {kMeasured, kFast}) {
    INFO(rate);
    const auto killed = all_ready(step_of_1024(25, rate, Fault::relays_killed));
    CHECK(killed.ratio() <= 1.4);
    CHECK(killed.registry == 1.0);
    CHECK(killed.failovers > 0);
  }
  const auto lost = all_ready(step_of_1024(25, kMeasured, Fault::relays_lost));
  CHECK(lost.ratio() <= 1.4);
  CHECK(lost.registry == 1.0);
  // A fast node needs less than two seconds without bytes. It reaches 1.4 only if it gives up
  // earlier.
  auto fast = step_of_1024(25, kFast, Fault::relays_lost);
  fast.silence = fast.answer = 0.1;
  CHECK(all_ready(fast).ratio() <= 1.4);
}

TEST_CASE("peers_partition_asks_registry_by_few_nodes") {
  const auto parted = all_ready(step_of_1024(25, kMeasured, Fault::partition));
  CHECK(parted.counted == 1024);
  CHECK(parted.registry <= 3);
  CHECK(parted.askers <= 4);
  CHECK(parted.ratio() <= 1.6);
}

TEST_CASE("peers_slow_relay_delays_only_nodes_below") {
  auto slow = step_of_1024(25, kFast, Fault::slow_relay);
  const auto left = all_ready(slow);
  CHECK(left.ratio() <= 2.2);
  CHECK(left.moves > 0);
  CHECK(left.moves <= 8);
  CHECK(left.registry == 1.0);
  slow.leaves_slow = false;
  CHECK(all_ready(slow).ratio() > 5);
}

TEST_CASE("peers_on_slow_links_keep_their_sources") {
  const auto full = all_ready(step_of_1024(10, kFast));
  CHECK(full.moves == 0);
  CHECK(full.ratio() <= 1.7);
}

TEST_CASE("peers_slow_converters_do_not_delay_others") {
  auto straggling = step_of_1024(25, kFast);
  straggling.stragglers = 0.01;
  const auto others = all_ready(straggling);
  CHECK(others.counted < 1024);
  CHECK(others.ratio() <= 1.3);
  CHECK(others.moves == 0);
}
