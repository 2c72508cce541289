#pragma once

#include <cstddef>
#include <cstdint>

/// Formulas of these programs, independent of CUDA and MPI, so that a test checks them on any
/// machine.
namespace spc::bench {

/// Floating-point operations per interaction of two bodies, as counted by CUDA's sample nbody.
constexpr double kFlopsPerInteractionFp32 = 20;
constexpr double kFlopsPerInteractionFp64 = 30;

/// Returns GFLOP/s. Each body interacts with every body, itself included, as the sample counts.
constexpr double nbody_gflops(std::uint64_t bodies, std::uint64_t iterations, double seconds,
                              bool fp64) {
  const double interactions =
      static_cast<double>(bodies) * static_cast<double>(bodies) * static_cast<double>(iterations);
  return interactions * (fp64 ? kFlopsPerInteractionFp64 : kFlopsPerInteractionFp32) / seconds /
         1e9;
}

/// Rounds up to whole blocks of 256 bodies, as the sample does.
constexpr std::uint64_t rounded_bodies(std::uint64_t bodies) { return (bodies + 255) / 256 * 256; }

/// Returns GB/s with giga = 10^9. `times_moved` is 2 for a copy within the device, which reads and
/// writes its memory.
constexpr double gb_per_second(std::size_t bytes, double seconds, int times_moved = 1) {
  return static_cast<double>(bytes) * times_moved / seconds / 1e9;
}

/// Return the summand at `index`, and the sum of those in [0, count). They are integers that a
/// double represents exactly, so a sum is exactly right or wrong.
constexpr double summand(std::uint64_t index) { return static_cast<double>(index % 1000); }
constexpr double sum_of(std::uint64_t count) {
  const std::uint64_t whole = count / 1000;
  const std::uint64_t rest = count % 1000;
  return static_cast<double>(whole * (999 * 1000 / 2) + (rest == 0 ? 0 : rest * (rest - 1) / 2));
}

/// A rank's part [first, first + count) of `total`: as equal as possible, without gaps.
struct Part {
  std::uint64_t first, count;
};
constexpr Part part_of(std::uint64_t total, int rank, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const auto r = static_cast<std::uint64_t>(rank);
  const std::uint64_t each = total / n;
  const std::uint64_t more = total % n;
  return {r * each + (r < more ? r : more), each + (r < more ? 1 : 0)};
}

}  // namespace spc::bench
