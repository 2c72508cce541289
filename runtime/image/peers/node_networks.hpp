#pragma once

#include <string>
#include <vector>

#include "protocol/meeting.hpp"

namespace spc {

/// A network: the first `bits` of these addresses are alike. IPv4 is ::ffff:a.b.c.d here, with 96
/// bits more.
struct Network {
  std::array<std::uint8_t, 16> address{};
  unsigned bits = 128;

  /// ADDRESS/BITS, as checked by key::is_network.
  static Network parse(const std::string& text);
  [[nodiscard]] bool has(const std::array<std::uint8_t, 16>& other) const;
};

/// Where this node is: its addresses that others can reach, the fastest real interface first. Only
/// a node that has none but its loopback is found there.
struct NodeNetworks {
  std::vector<Network> own;  ///< address of an interface, and what it reaches directly

  static NodeNetworks find();
  /// Those in one of `wanted`, if there are any of these.
  [[nodiscard]] std::vector<Network> in(const std::vector<Network>& wanted) const;
  /// Whether another node may be asked there: in one of `wanted` or, if there are none, in a
  /// network of this node; with a port that needs no privilege. The user may have written the
  /// address.
  [[nodiscard]] bool may_ask(const PeerAddress& at, const std::vector<Network>& wanted) const;
};

/// http://ADDRESS:PORT
std::string url_of(const PeerAddress& at);

}  // namespace spc
