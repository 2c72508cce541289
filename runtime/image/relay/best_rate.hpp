#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace spc {

/// The best rate at which one of several gets bytes: each measured over half a second and more, so
/// that what was only lying in a buffer is no rate. Used by relay and by benchmarks/peers.
class BestRate {
 public:
  void add(std::uint32_t who, double seconds, double bytes) {
    const auto [found, is_new] = open_.try_emplace(who, Window{seconds, 0});
    if (is_new) return;  // the time in which the first ones came is not known
    Window& window = found->second;
    window.bytes += bytes;
    if (seconds - window.since < kWindow) return;
    best_ = std::max(best_, window.bytes / (seconds - window.since));
    window = {seconds, 0};
  }
  void forget(std::uint32_t who) { open_.erase(who); }
  [[nodiscard]] double best() const { return best_; }  ///< bytes a second; 0: not known

 private:
  static constexpr double kWindow = 0.5;
  struct Window {
    double since, bytes;
  };
  std::map<std::uint32_t, Window> open_;
  double best_ = 0;
};

}  // namespace spc
