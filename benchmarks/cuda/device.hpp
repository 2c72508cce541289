#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nbody_force.hpp"

/// What is measured, on a GPU (gpu.cu) or, to check the arithmetic, on the CPU (cpu.cpp).
namespace spc::bench {

struct CopyRate {
  const char* name;  ///< h2d.pinned
  double gb_per_second;
  bool right;  ///< what arrived is what was sent
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Seconds for `iterations` times all forces among `bodies`; the forces on the first 64 are kept
  /// for first_forces().
  virtual double nbody(std::uint64_t bodies, int iterations, bool fp64) = 0;
  [[nodiscard]] virtual const std::vector<Force<double>>& first_forces() const = 0;
  virtual std::vector<CopyRate> copies(std::size_t bytes, int repeats) = 0;
  /// Fills memory with summand(first ...); then sum() adds them up.
  virtual void fill(std::uint64_t first, std::uint64_t count) = 0;
  virtual double sum() = 0;
};

Device& cpu();
/// The GPU of this process; otherwise nothing, and `why` says in one line what is missing.
Device* gpu(int local_rank, std::string& why);

/// Forces on the first 64 of `bodies`, in double precision on the CPU: what the others must agree
/// with.
std::vector<Force<double>> reference_forces(std::uint64_t bodies);
/// The largest difference, relative to the largest force.
double largest_difference(const std::vector<Force<double>>& a, const std::vector<Force<double>>& b);

constexpr double kSoftening2 = 0.01;
constexpr std::size_t kCheckedBodies = 64;

}  // namespace spc::bench
