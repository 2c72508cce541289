#pragma once

#include <array>
#include <cstdint>

#include "base/digest.hpp"
#include "protocol/bytes_from.hpp"

namespace spc {

/// Where the nodes of a step that lack bytes of the same image find each other: they ask srun, over
/// one TCP connection each, which nodes to take the image from. The user's `user-source` speaks for
/// the node's `import` and passes these records on, both ways; `import` believes none of what they
/// say but where it may try to find blobs, whose digests it knows. Fixed-size records in memory
/// layout: all processors that Slurm runs on today have the same byte order.
inline constexpr std::uint32_t kMostSources = 12;

/// Where srun listens: "PORT:TOKEN" in this variable of the step, which no program of the user's
/// sees. The name starts with SLURM because --export=NONE removes all others. srun's address is in
/// SLURM_LAUNCH_NODE_IPADDR.
inline constexpr char kMeetingVariable[] = "SLURM_SCONTAINER_MEETING";
using MeetingToken = std::array<std::uint8_t, 16>;

/// What a node says first on its connection, and srun to nobody.
struct MeetingHello {
  std::array<char, 8> magic{'s', 'p', 'c', 'm', 'e', 'e', 't', '3'};
  MeetingToken token{};
  std::array<char, 64> node{};  ///< its name, with a 0 at the end
};

/// The address at which a node's relay answers; IPv4 as ::ffff:a.b.c.d.
struct PeerAddress {
  std::array<std::uint8_t, 16> ip{};  ///< all zero: none
  std::uint16_t port = 0;             ///< host byte order
  std::array<std::uint8_t, 6> unused{};
};

/// A node whose bytes may be taken. Its index is smaller than that of whoever is told of it: so
/// nobody waits for himself.
struct PeerSource {
  std::uint32_t index = 0;
  std::uint32_t unused = 0;
  PeerAddress at;
};

/// Proves to a relay that whoever asks is of the same step and has been sent by the same srun,
/// which makes one up for each image.
using PeerKey = std::array<std::uint8_t, 32>;

enum class MeetingKind : std::uint32_t {
  // node -> srun
  join = 1,      ///< this node lacks bytes of `image`, or the right to them, and has a relay at
                 ///< `addresses`
  more = 2,      ///< the sources in `indices` are dead, or have nothing: name others
  progress = 3,  ///< done, total: bytes, and `from`, for one line of srun's; no answer
  done = 4,      ///< this node has the image, its relay goes on; `from`; no answer
  left = 5,      ///< its relay has ended, or never began: nobody is to be sent there; no answer
  slow = 6,  ///< as more, but the sources in `indices` are only slow: if there are no better ones,
             ///< the place is as before
  cut_off = 7,  ///< none of its sources can be reached, by a firewall perhaps; no answer

  // srun -> node
  place =
      16,  ///< index, key, sources: the answer to join, more and slow. No sources: ask the registry
};

struct MeetingRecord {
  MeetingKind kind{};
  std::uint32_t index = 0;  ///< of this node among those that lack `image`: 0, 1, 2 ... in the
                            ///< order in which they asked
  std::uint32_t node_id =
      0;  ///< SLURM_NODEID: near numbers are near in the network, if Slurm knows its topology
  std::uint32_t count = 0;  ///< of sources or indices
  Digest image;  ///< made of what was asked for and the platform: nodes that lack the same meet
  std::uint64_t done = 0, total = 0;       ///< bytes
  std::array<PeerAddress, 2> addresses{};  ///< of a join's relay, best first; nodes have one. A
                                           ///< port without an address: as srun sees it
  std::array<PeerSource, kMostSources> sources{};
  std::array<std::uint32_t, kMostSources> indices{};
  PeerKey key{};
  BytesFrom from;
};

}  // namespace spc
