#pragma once

#include <array>
#include <cstdint>

#include "base/digest.hpp"
#include "protocol/bytes_from.hpp"

namespace spc {

/// Protocol with which the nodes of a step that lack bytes of the same image find each other. They
/// ask srun, over one TCP connection each, which nodes to pull the image from. The user's
/// `user-source` relays these records for the node's `import`, both ways. `import` uses only the
/// addresses in them, to look for blobs whose digests it knows. Records have a fixed size and
/// memory layout: all processors that Slurm runs on today have the same byte order.
inline constexpr std::uint32_t kMostSources = 12;

/// Address at which srun listens: "PORT:TOKEN" in this variable of the step, which is removed
/// before the user's programs start. The name starts with SLURM because --export=NONE removes all
/// others. srun's address is in SLURM_LAUNCH_NODE_IPADDR.
inline constexpr char kTrackerVariable[] = "SLURM_SCONTAINER_TRACKER";
using TrackerToken = std::array<std::uint8_t, 16>;

/// The first record of a node on its connection. srun sends none.
struct TrackerHello {
  std::array<char, 8> magic{'s', 'p', 'c', 't', 'r', 'a', 'k', '3'};
  TrackerToken token{};
  std::array<char, 64> node{};  ///< the node's name, NUL-terminated
};

/// The address at which a node's relay answers; IPv4 as ::ffff:a.b.c.d.
struct PeerAddress {
  std::array<std::uint8_t, 16> ip{};  ///< all zero: none
  std::uint16_t port = 0;             ///< host byte order
  std::array<std::uint8_t, 6> unused{};
};

/// A node to pull from. Its index is smaller than that of the node that receives it, so the sources
/// cannot form a cycle.
struct PeerSource {
  std::uint32_t index = 0;
  std::uint32_t unused = 0;
  PeerAddress at;
};

/// Proves to a relay that the requesting node is of the same step and was referred by the same
/// srun, which generates one for each image.
using PeerKey = std::array<std::uint8_t, 32>;

enum class TrackerKind : std::uint32_t {
  // node -> srun
  /// this node lacks bytes of `image`, or access to them, and has a relay at `addresses`
  join = 1,
  more = 2,      ///< the sources in `indices` have failed or have no bytes: send others
  progress = 3,  ///< done, total: bytes, and `from`, for one line of srun's; no answer
  done = 4,      ///< this node has the image, its relay continues; `from`; no answer
  left = 5,      ///< its relay has ended, or never began: refer no node to it; no answer
  /// as more, but the sources in `indices` are only slow: if there are no better ones, the answer
  /// contains them again
  slow = 6,
  /// none of its sources can be reached, for example because of a firewall; no answer
  cut_off = 7,

  // srun -> node
  /// index, key, sources: the answer to join, more and slow. No sources: ask the registry
  place = 16,
};

struct TrackerRecord {
  TrackerKind kind{};
  /// index of this node among those that lack `image`, in the order of their requests, from 0
  std::uint32_t index = 0;
  /// SLURM_NODEID: close numbers are close in the network, if Slurm knows its topology
  std::uint32_t node_id = 0;
  std::uint32_t count = 0;  ///< number of sources or indices
  /// derived from the requested image and platform: nodes that lack the same image share it
  Digest image;
  std::uint64_t done = 0, total = 0;  ///< bytes
  /// join: addresses of the node's relay, best first. An address of zeros with a port means the
  /// address that srun sees
  std::array<PeerAddress, 2> addresses{};
  std::array<PeerSource, kMostSources> sources{};
  std::array<std::uint32_t, kMostSources> indices{};
  PeerKey key{};
  BytesFrom from;
};

}  // namespace spc
