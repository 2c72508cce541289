#pragma once

#include <cstddef>
#include <cstdint>

/// What the figures of these programs are made of. No CUDA and no MPI in here: a test checks it on
/// any machine.
namespace spc::bench {

/// Floating-point operations that CUDA's sample nbody counts for one interaction of two bodies.
constexpr double kFlopsPerInteractionFp32 = 20;
constexpr double kFlopsPerInteractionFp64 = 30;

/// Each of `bodies` feels every one, itself, too, as the sample counts.
constexpr double nbody_gflops(std::uint64_t bodies, std::uint64_t iterations, double seconds,
                              bool fp64) {
  const double interactions =
      static_cast<double>(bodies) * static_cast<double>(bodies) * static_cast<double>(iterations);
  return interactions * (fp64 ? kFlopsPerInteractionFp64 : kFlopsPerInteractionFp32) / seconds /
         1e9;
}

/// The sample rounds the bodies up to whole blocks of 256.
constexpr std::uint64_t rounded_bodies(std::uint64_t bodies) { return (bodies + 255) / 256 * 256; }

/// Giga means 10^9. A copy within the device reads and writes its memory: `times_moved` 2.
constexpr double gb_per_second(std::size_t bytes, double seconds, int times_moved = 1) {
  return static_cast<double>(bytes) * times_moved / seconds / 1e9;
}

/// The value at `index` of what is summed, and the sum of those in [0, count): integers that a
/// double holds, so a sum is right or wrong and not nearly right.
constexpr double summand(std::uint64_t index) { return static_cast<double>(index % 1000); }
constexpr double sum_of(std::uint64_t count) {
  const std::uint64_t whole = count / 1000;
  const std::uint64_t rest = count % 1000;
  return static_cast<double>(whole * (999 * 1000 / 2) + (rest == 0 ? 0 : rest * (rest - 1) / 2));
}

/// A rank's part [first, first + count) of `total`: as even as can be, without gaps.
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
