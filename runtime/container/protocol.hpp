#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/digest.hpp"
#include "base/policy_record.hpp"

namespace spc {

/// How the tasks of a step and its agent speak: fixed-size messages over SEQPACKET sockets, nothing to parse.
///
///   task   ── join (own socket, own mount namespace) ──►  agent        on the step's common socket
///   the first task leads, the others only wait for ready or failed:
///   agent  ── lead (policy) ──►            lead
///   lead   ── source …, start ──►          agent        which host directories, which image
///   agent  ── progress, warning … ──►      every task
///   builder ── furnish (namespace) ──►     lead         the root exists; nothing is attached to it yet
///   lead   ── target (descriptor) ──►      builder      one at a time, since a target may lie in an earlier one
///   builder ── attached (errno) ──►        lead
///   lead   ── furnished ──►                builder
///   agent  ── ready (namespace, record) or failed ──►  every task
enum class TaskMessageKind : std::uint32_t {
  join = 1,
  lead,
  source,
  start,
  progress,
  warning,
  furnish,
  target,
  attached,
  furnished,
  ready,
  failed,
};

/// Trees that the builder takes from the host by itself; the lead only says where they go.
enum class HostTree : std::uint32_t { proc, sys, dev, tmp, count };

/// Phases of a preparation as --container-verbose and the benchmarks show them.
enum class Phase : std::uint32_t { import, sources, layers, overlay, pivot, furnish, count };
using PhaseTimes = std::array<std::uint32_t, static_cast<std::size_t>(Phase::count)>;  ///< microseconds

struct TaskMessage {
  TaskMessageKind kind{};

  // source: how the tree of the passed descriptor is mounted
  enum SourceFlags : std::uint32_t { source_read_only = 1, source_not_recursive = 2, source_no_exec = 4 };
  std::uint32_t source_flags = 0;

  // start, with two descriptors. Of an image for the store: the request for `import`, and the socket on which `import` asks
  // the user's side (base/user_source_protocol.hpp). Of the other kinds: a sealed memory file in the form of an image record
  // (base/image_record.hpp, settings only), which all tasks are given as it is, and the opened image.
  enum StartFlags : std::uint32_t {
    start_read_only = 1,
    start_known = 2,      ///< `manifest` is tried first; `import` runs only if it is not in the store or not public
    start_squashfs = 4,   ///< the image is a regular file with a squashfs at `offset`: served by `fuse` as the user
    start_directory = 8,  ///< the image is a directory
  };
  std::uint32_t start_flags = 0;
  Digest manifest;
  std::uint64_t offset = 0;  ///< bytes

  // target: a source in the order sent, or count of sources + a HostTree; attached: errno, 0 = done
  std::uint32_t index = 0;
  std::int32_t error = 0;

  // ready
  PhaseTimes times{};
  std::uint32_t layers = 0;
  std::uint32_t layers_shared = 0;  ///< whose super block another step had mounted already

  PolicyRecord policy;  // lead
  char text[600] = {};  // progress, warning, failed; furnished and ready: from the first task for the others, as it is
};

/// The step's end of the common socket in the agent; its other descriptors are 0-2 on /dev/null.
inline constexpr int kAgentSocket = 3;

/// More mounts than this in one container are refused: the kernel's own default limit is far above (fs.mount-max).
inline constexpr std::uint32_t kMaxSources = 512;

}  // namespace spc
