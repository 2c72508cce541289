// The formulas of benchmarks/, and the CPU replacements of GPUs.
#include <array>
#include <cmath>

#include "benchmarks/cuda/arithmetic.hpp"
#include "benchmarks/cuda/device.hpp"
#include "benchmarks/nccl/exchange.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc::bench;

namespace {

bool near(double value, double wanted, double relative = 1e-12) {
  return std::fabs(value - wanted) <= relative * std::fabs(wanted);
}

}  // namespace

TEST_CASE("nbody_counts_20_or_30_operations_per_interaction") {
  CHECK(near(nbody_gflops(1000, 1, 1.0, false), 0.02));
  CHECK(near(nbody_gflops(1000, 1, 1.0, true), 0.03));
  // 200192 bodies, 10 iterations: 3.927 s correspond to 3061.6 GFLOP/s.
  CHECK(near(nbody_gflops(200192, 10, 3.927, true), 3061.6, 1e-3));
  CHECK(rounded_bodies(200'000) == 200'192);
  CHECK(rounded_bodies(256) == 256);
  CHECK(rounded_bodies(1) == 256);
}

TEST_CASE("copy_bandwidth_counts_bytes_twice") {
  CHECK(near(gb_per_second(1'000'000'000, 0.5), 2));
  CHECK(near(gb_per_second(1'000'000'000, 0.5, 2), 4));
}

TEST_CASE("reduction_expected_sum_is_exact") {
  double sum = 0;
  for (std::uint64_t i = 0; i < 12'345; ++i) {
    REQUIRE(sum_of(i) == sum);
    sum += summand(i);
  }
}

TEST_CASE("partition_of_ranks_is_complete_and_even") {
  for (const int ranks : {1, 2, 3, 7, 64}) {
    for (const auto total : std::to_array<std::uint64_t>({0, 1, 63, 64, 1'000'003})) {
      std::uint64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Part part = part_of(total, rank, ranks);
        CHECK(part.first == next);
        CHECK(part.count <= total / static_cast<unsigned>(ranks) + 1);
        next += part.count;
      }
      CHECK(next == total);
    }
  }
}

TEST_CASE("nbody_forces_on_cpu_agree_in_both_precisions") {
  const auto reference = reference_forces(512);
  REQUIRE(reference.size() == kCheckedBodies);
  cpu().nbody(512, 1, true);
  CHECK(largest_difference(reference, cpu().first_forces()) == 0);
  cpu().nbody(512, 1, false);
  const double difference = largest_difference(reference, cpu().first_forces());
  CHECK(difference > 0);
  CHECK(difference < 1e-3);
  auto wrong = reference;
  wrong[7].y *= 1.01;
  CHECK(largest_difference(reference, wrong) > 1e-4);
  wrong[7].y = NAN;
  CHECK_FALSE(largest_difference(reference, wrong) < 1e-3);
  wrong.pop_back();
  CHECK(std::isinf(largest_difference(reference, wrong)));
}

TEST_CASE("nbody_two_bodies_attract_each_other") {
  const Body<double> one{0, 0, 0, 2};
  const Body<double> other{3, 4, 0, 5};
  Force<double> on_one;
  Force<double> on_other;
  add_force(on_one, one, other, 0.0);
  add_force(on_other, other, one, 0.0);
  CHECK(near(on_one.x, 3.0 * 5 / 125));
  CHECK(near(on_one.y, 4.0 * 5 / 125));
  CHECK(near(on_one.x * one.mass, -on_other.x * other.mass));
}

TEST_CASE("reduction_parts_on_cpu_give_the_sum") {
  double sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const Part part = part_of(1'000'003, rank, 3);
    cpu().fill(part.first, part.count);
    sum += cpu().sum();
  }
  CHECK(sum == sum_of(1'000'003));
}

TEST_CASE("collective_bandwidth_follows_nccl_tests") {
  CHECK(near(algorithm_bandwidth(1'000'000'000, 0.01), 100));
  for (const Collective collective : {Collective::broadcast, Collective::send_recv}) {
    CHECK(near(bus_factor(collective, 1), 1));
    CHECK(near(bus_factor(collective, 8), 1));
  }
  CHECK(bus_factor(Collective::all_reduce, 1) == 0);
  CHECK(near(bus_factor(Collective::all_reduce, 2), 1));
  CHECK(near(bus_factor(Collective::all_reduce, 8), 1.75));
  CHECK(near(bus_factor(Collective::all_gather, 8), 0.875));
}

TEST_CASE("collective_exchange_on_threads_detects_wrong_number") {
  for (const int ranks : {1, 2, 5}) {
    const auto exchange = threads(ranks);
    for (const Collective collective : {Collective::all_reduce, Collective::all_gather,
                                        Collective::broadcast, Collective::send_recv}) {
      std::size_t wrong = 1;
      CHECK(exchange->run(collective, 1000, 1, 2, wrong) > 0);
      INFO(name_of(collective) << " of " << ranks);
      CHECK(wrong == 0);
    }
  }
  CHECK(expected(Collective::all_reduce, 0, 3, 1, 10) == 1 + 8 + 15);
  CHECK(expected(Collective::all_gather, 0, 3, 21, 10) == given(2, 1));
  CHECK(expected(Collective::broadcast, 2, 3, 5, 10) == given(0, 5));
  CHECK(expected(Collective::send_recv, 0, 3, 5, 10) == given(2, 5));
}
