#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace spc {

/// Where the time of an import went. What happens at once to several layers counts once: as fetching as long as one of them
/// is fetched without being held up, else as waiting for the converter as long as one is converted.
struct ImportTiming {
  using Seconds = std::chrono::duration<double>;

  Seconds others{};  ///< waiting for imports of the same user or of the same layers
  Seconds fetch{};
  Seconds convert{};  ///< waiting for the converter
  Seconds publish{};  ///< writing out, the verifier, publication
  std::size_t layers = 0;
  std::uint64_t bytes = 0;  ///< of these layers' blobs

  /// One line for people. What is in no phase went into finding out which layers are needed.
  [[nodiscard]] std::string line(Seconds total) const;
};

/// Adds the time of its life to one of the phases.
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
