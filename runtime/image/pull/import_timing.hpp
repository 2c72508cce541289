#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "protocol/bytes_from.hpp"

namespace spc {

/// Timing breakdown of an import. Parallel work counts once: as fetching while any layer is being
/// fetched without back-pressure, otherwise as waiting for the converter while any layer is being
/// converted.
struct ImportTiming {
  using Seconds = std::chrono::duration<double>;

  Seconds others{};  ///< waiting for imports of the same user or layers
  Seconds fetch{};
  Seconds convert{};  ///< waiting for the converter
  Seconds publish{};  ///< writing back, verifier, publishing
  std::size_t layers = 0;
  std::size_t converted = 0;  ///< of these
  std::uint64_t bytes = 0;    ///< of these layers' blobs
  BytesFrom from;             ///< that have come, also of layers that were only checked

  /// One line for the user. Time outside all phases was spent on finding out which layers are
  /// needed.
  [[nodiscard]] std::string line(Seconds total) const;
};

/// Adds its lifetime to one of the phases.
class TimedPhase {
 public:
  explicit TimedPhase(ImportTiming::Seconds& phase) : phase_(phase) {}
  TimedPhase(const TimedPhase&) = delete;
  TimedPhase& operator=(const TimedPhase&) = delete;
  ~TimedPhase() { phase_ += Clock::now() - began_; }

 private:
  using Clock = std::chrono::steady_clock;
  ImportTiming::Seconds& phase_;
  Clock::time_point began_ = Clock::now();
};

}  // namespace spc
