#pragma once

#include "protocol/wire_error.hpp"

namespace spc {

/// `fuse` (the job's user) serves one squashfs file, so that no kernel parser sees user data. The agent starts
/// it as `fuse OFFSET`, OFFSET in bytes of the squashfs in the file, with only these descriptors. With kFuseForRoot behind the
/// number the files belong to root instead of the server's user.
inline constexpr char kFuseForRoot[] = "r";
inline constexpr int kFuseDevice = 3;  ///< /dev/fuse, to be served once it is mounted
inline constexpr int kFuseImage = 4;   ///< the file, opened by the user, for reading
inline constexpr int kFuseStatus = 5;  ///< SEQPACKET: FuseStatus

/// First the server reports that it has read the super block, or why it cannot serve the file; the builder then mounts and
/// replies with an empty message, after which the server starts. It ends with its mount, or earlier with the other end of this
/// socket.
struct FuseStatus {
  WireError error;  ///< not set: success
};

}  // namespace spc
