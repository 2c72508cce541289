#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "meeting/gatherings.hpp"
#include "protocol/meeting.hpp"

namespace spc {

/// What one node and srun say to each other, without the socket: a hello with the step's token,
/// then one record after the other.
class MeetingTalk {
 public:
  /// `gatherings` outlives it.
  MeetingTalk(Gatherings& gatherings, const PeerAddress& seen_at)
      : gatherings_(gatherings), seen_at_(seen_at) {}

  /// Where the next bytes belong; never empty.
  [[nodiscard]] std::span<char> room();

  struct Heard {
    bool goes_on = true;                    ///< false: nothing more is expected from it
    std::optional<MeetingKind> kind{};      ///< of the record that is complete now
    std::optional<MeetingRecord> answer{};  ///< to that
  };
  /// So many bytes have come into `room()`, at this time.
  Heard take(std::size_t bytes, const MeetingToken& token, Gatherings::Seconds now);

  [[nodiscard]] bool has_greeted() const { return has_greeted_; }
  /// The node says nothing more.
  void end() {
    if (seat_) gatherings_.gone(*seat_);
  }

 private:
  [[nodiscard]] std::size_t wanted() const {
    return has_greeted_ ? sizeof(MeetingRecord) : sizeof(MeetingHello);
  }
  bool greet(const MeetingToken& token);
  Heard hear(Gatherings::Seconds now);

  Gatherings& gatherings_;
  PeerAddress seen_at_;
  bool has_greeted_ = false;
  std::string node_;
  std::optional<Gatherings::Seat> seat_;
  std::size_t received_ = 0;
  std::array<char, sizeof(MeetingRecord)> bytes_{};
};

}  // namespace spc
