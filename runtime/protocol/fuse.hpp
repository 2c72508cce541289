#pragma once

#include "protocol/wire_error.hpp"

namespace spc {

/// `fuse` (the job's user) serves one squashfs file, so that no kernel parser ever sees what a user wrote. The agent starts
/// it as `fuse OFFSET`, OFFSET in bytes of the squashfs in the file, with these descriptors and nothing else:
inline constexpr int kFuseDevice = 3;  ///< /dev/fuse, to be served once it is mounted
inline constexpr int kFuseImage = 4;   ///< the file, opened by the user, for reading
inline constexpr int kFuseStatus = 5;  ///< SEQPACKET: FuseStatus

/// First the server says that it has read the super block, or why it cannot serve the file; the builder then mounts and
/// answers with an empty one, upon which the server begins. It ends with its mount, or with the other end of this socket if
/// that closes before.
struct FuseStatus {
  WireError error;  ///< not set: all is well
};

}  // namespace spc
