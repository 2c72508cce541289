#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nbody_force.hpp"

/// The measured operations, on a GPU (gpu.cu), or on the CPU to check the arithmetic (cpu.cpp).
namespace spc::bench {

struct CopyRate {
  const char* name;  ///< for example h2d.pinned
  double gb_per_second;
  bool right;  ///< the received data equals the sent data
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns the seconds of `iterations` evaluations of all forces among `bodies`. Keeps the forces
  /// on the first 64 for first_forces().
  virtual double nbody(std::uint64_t bodies, int iterations, bool fp64) = 0;
  [[nodiscard]] virtual const std::vector<Force<double>>& first_forces() const = 0;
  virtual std::vector<CopyRate> copies(std::size_t bytes, int repeats) = 0;
  /// Fills memory with summand(first ...), to be added by sum().
  virtual void fill(std::uint64_t first, std::uint64_t count) = 0;
  virtual double sum() = 0;
};

Device& cpu();
/// Returns the GPU of this process. Without one, returns nullptr and sets `why` to one line with
/// the reason.
Device* gpu(int local_rank, std::string& why);

/// Returns the forces on the first 64 of `bodies`, computed in double precision on the CPU as the
/// reference.
std::vector<Force<double>> reference_forces(std::uint64_t bodies);
/// Returns the largest difference relative to the largest force.
double largest_difference(const std::vector<Force<double>>& a, const std::vector<Force<double>>& b);

constexpr double kSoftening2 = 0.01;
constexpr std::size_t kCheckedBodies = 64;

}  // namespace spc::bench
