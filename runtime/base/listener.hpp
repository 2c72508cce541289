#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc {

/// Ports from `first` to `last`; both 0: any free port.
struct PortRange {
  std::uint16_t first = 0, last = 0;

  /// Parses FIRST-LAST, from 1024 on; an empty text means any port.
  static std::optional<PortRange> parse(std::string_view text);
  bool operator==(const PortRange&) const = default;
};

/// An address of this machine; IPv4 as ::ffff:a.b.c.d.
using ListenAddress = std::array<std::uint8_t, 16>;

/// A listening TCP socket for IPv6 and IPv4, or without IPv6 for IPv4 only. Non-blocking,
/// close-on-exec.
struct Listener {
  UniqueFd socket;
  std::uint16_t port = 0;

  /// Binds a free port of the range, at this address or, without one, at all addresses of this
  /// machine.
  static Result<Listener> open(const PortRange& ports, const std::optional<ListenAddress>& at = {});
};

}  // namespace spc
