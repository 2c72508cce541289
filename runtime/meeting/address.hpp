#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/meeting.hpp"

namespace spc {

/// Where srun listens for the nodes of its step: the value of kMeetingVariable.
struct MeetingAddress {
  std::uint16_t port = 0;
  MeetingToken token{};

  [[nodiscard]] std::string variable() const;
  static std::optional<MeetingAddress> parse(std::string_view variable);
};

}  // namespace spc
