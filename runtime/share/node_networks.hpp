#pragma once

#include <string>
#include <vector>

#include "protocol/tracker.hpp"

namespace spc {

/// A network: the common first `bits` of its addresses. IPv4 addresses are stored as
/// ::ffff:a.b.c.d, with `bits` increased by 96.
struct Network {
  std::array<std::uint8_t, 16> address{};
  unsigned bits = 128;

  /// Parses ADDRESS/BITS, already checked by key::is_network.
  static Network parse(const std::string& text);
  [[nodiscard]] bool has(const std::array<std::uint8_t, 16>& other) const;
};

/// The node's addresses that other nodes can reach, the fastest real interface first. The loopback
/// is used only if there is no other interface.
struct NodeNetworks {
  std::vector<Network> own;  ///< an interface's address and its directly connected network

  static NodeNetworks find();
  /// Returns the networks within one of `wanted`, or all networks if there are none.
  [[nodiscard]] std::vector<Network> in(const std::vector<Network>& wanted) const;
  /// Returns whether this node may ask `at`: its address is in one of `wanted` or, if that is
  /// empty, in a network of this node, and its port is unprivileged. The user may have forged the
  /// address.
  [[nodiscard]] bool may_ask(const PeerAddress& at, const std::vector<Network>& wanted) const;
};

/// Returns http://ADDRESS:PORT.
std::string url_of(const PeerAddress& at);

}  // namespace spc
