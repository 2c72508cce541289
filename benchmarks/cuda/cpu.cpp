// The CPU as a substitute for the GPU: it checks the arithmetic. Its speed is meaningless.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "arithmetic.hpp"
#include "device.hpp"

namespace spc::bench {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <typename Real>
std::vector<Force<double>> forces(std::uint64_t bodies, std::uint64_t on) {
  std::vector<Body<Real>> all(bodies);
  for (std::uint64_t i = 0; i < bodies; ++i) all[i] = body_at<Real>(i);
  std::vector<Force<double>> result;
  for (std::uint64_t i = 0; i < on; ++i) {
    Force<Real> force;
    for (const Body<Real>& other : all)
      add_force(force, all[i], other, static_cast<Real>(kSoftening2));
    result.push_back(
        {static_cast<double>(force.x), static_cast<double>(force.y), static_cast<double>(force.z)});
  }
  return result;
}

class Cpu final : public Device {
 public:
  [[nodiscard]] std::string name() const override {
    return "CPU (checks the arithmetic; no measurement)";
  }
  double nbody(std::uint64_t bodies, int iterations, bool fp64) override {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < iterations; ++i)
      forces_ = fp64 ? forces<double>(bodies, bodies) : forces<float>(bodies, bodies);
    const double seconds = seconds_since(begin);
    forces_.resize(std::min<std::size_t>(forces_.size(), kCheckedBodies));
    return seconds;
  }
  [[nodiscard]] const std::vector<Force<double>>& first_forces() const override { return forces_; }
  std::vector<CopyRate> copies(std::size_t bytes, int repeats) override {
    std::vector<unsigned char> from(bytes);
    std::vector<unsigned char> to(bytes);
    std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) std::memcpy(to.data(), from.data(), bytes);
    return {{"host",
             gb_per_second(bytes * static_cast<std::size_t>(repeats), seconds_since(begin), 2),
             from == to}};
  }
  void fill(std::uint64_t first, std::uint64_t count) override {
    values_.resize(count);
    for (std::uint64_t i = 0; i < count; ++i) values_[i] = summand(first + i);
  }
  double sum() override { return std::accumulate(values_.begin(), values_.end(), 0.0); }

 private:
  std::vector<Force<double>> forces_;
  std::vector<double> values_;
};

}  // namespace

Device& cpu() {
  static Cpu only;
  return only;
}

std::vector<Force<double>> reference_forces(std::uint64_t bodies) {
  return forces<double>(bodies, std::min<std::uint64_t>(bodies, kCheckedBodies));
}

double largest_difference(const std::vector<Force<double>>& a,
                          const std::vector<Force<double>>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max({largest, std::fabs(a[i].x), std::fabs(a[i].y), std::fabs(a[i].z)});
    for (const double one : {a[i].x - b[i].x, a[i].y - b[i].y, a[i].z - b[i].z}) {
      if (std::isnan(one)) return INFINITY;
      difference = std::max(difference, std::fabs(one));
    }
  }
  return largest > 0 ? difference / largest : difference;
}

}  // namespace spc::bench
