#pragma once

#include <cstdint>

#include "protocol/wire_error.hpp"

namespace spc {

/// `fuse` (the job's user) serves one squashfs file, so that no kernel parser sees user data. The
/// agent starts it as `fuse OFFSET`, OFFSET in bytes of the squashfs in the file, with only these
/// descriptors. With kFuseForRoot behind the number the files belong to root instead of the
/// server's user.
inline constexpr char kFuseForRoot[] = "r";
inline constexpr int kFuseDevice =
    3;  ///< /dev/fuse, to be served once it is mounted; of a joining server: unused yet
inline constexpr int kFuseImage = 4;   ///< the file, open for reading, or the socket for a FuseLoan
inline constexpr int kFuseStatus = 5;  ///< SEQPACKET: FuseStatus, then FuseOrder

/// First the server reports that it has read the super block, or why it cannot serve the file; the
/// builder then mounts and orders it to begin. It ends with its mount, when it is told to finish,
/// or, before it has begun, with the other end of this socket.
struct FuseStatus {
  WireError error;  ///< not set: success
};

/// From the builder, or `scontainer`, and then from the agent, which hears no answer.
///
/// A container that another step joins must not lose its files with the step that started it, in
/// whose cgroups the server is. So each step has a server of its own for the same mount. The agent
/// of the first step passes one end of a new pair of sockets to its server (`lend`) and the other
/// to the joining agent, which starts a `fuse` on it. That makes its device a second one of the
/// mount (FUSE_DEV_IOC_CLONE). The kernel gives each request to whichever server asks first; they
/// share no state, as the numbers of files are places in the image.
enum class FuseOrder : std::uint32_t {
  begin = 1,
  lend,    ///< with a socket: send it a FuseLoan
  finish,  ///< answer what has been asked, and end; others answer the rest
};

/// From the leader, with a file of the user's; or from a server to one that joins, with the device
/// of the mount and the file: the device is to be closed once it is cloned (the kernel fails what a
/// server has not answered when its device is closed by all). All are processes of the same user.
struct FuseLoan {
  std::uint64_t offset = 0;
  bool for_root = false;
};

}  // namespace spc
