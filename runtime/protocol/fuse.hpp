#pragma once

#include <cstddef>
#include <cstdint>

#include "base/digest.hpp"
#include "protocol/wire_error.hpp"

namespace spc {

/// `fuse` (the job's user) serves squashfs files and layers, so that no kernel parser reads user
/// data. The agent starts one for all layers of an image, and one for each file of the user, as
/// `fuse OFFSET`, OFFSET in bytes of the squashfs in each file. With kFuseForRoot appended to the
/// number the content belongs to root instead of the server's user. The server inherits only three
/// descriptors for each file, beginning with these of the first:
inline constexpr char kFuseForRoot[] = "r";
/// /dev/fuse, to be served once it is mounted; not used yet in a joining server. The server makes
/// the devices of several files non-blocking, because each thread serves all of them.
inline constexpr int kFuseDevice = 3;
inline constexpr int kFuseImage = 4;   ///< the file, open for reading, or the socket for a FuseLoan
inline constexpr int kFuseStatus = 5;  ///< SEQPACKET: FuseStatus, then FuseOrder
inline constexpr int kFusePerFile = 3;

/// `scontainer` starts `fuse together OFFSET,OFFSET...` for all images of a container, before it
/// enters the container's user namespace. There are no devices at first and one status socket, the
/// first. FuseOrder::devices passes a device for each file, opened in that namespace, before the
/// server reports its status. Devices of several files must be non-blocking.
inline constexpr char kFuseTogetherWord[] = "together";
inline constexpr std::size_t kMostTogether = 200;  ///< files; one message passes all devices

/// The server first reports that it has read the super block, or the reason why it cannot serve the
/// file. The builder then mounts the device and sends `begin`. The server ends with its mounts, on
/// `finish`, or when the other end of a status socket is closed before `begin`.
struct FuseStatus {
  WireError error;  ///< not set: success
};

/// Orders from the builder or `scontainer`, and later from the agent, which expects no reply.
///
/// A container that another step joins must not lose its files with the step that started it, in
/// whose cgroups the server is. So each step has a server of its own for the same mount. The agent
/// of the first step passes one end of a new pair of sockets to its server (`lend`) and the other
/// to the joining agent, which starts a `fuse` on it. That server makes its device a second one of
/// the mount (FUSE_DEV_IOC_CLONE). The kernel gives each request to the server that reads first.
/// The servers share no state, because file numbers are positions in the image.
enum class FuseOrder : std::uint32_t {
  begin = 1,
  lend,    ///< with a socket: send a FuseLoan on it
  finish,  ///< answer the requests already read, and end; other servers answer the rest
  devices  ///< with the devices of all files
};

/// Sent with the file to serve: by the leader with a file of the user, by `import` with a layer of
/// the shared store that is used in place, or by a server to a joining one with the device of the
/// mount before the file. The receiver closes the passed device once it is cloned: the kernel fails
/// a server's pending requests when all holders have closed its device. Senders are processes of
/// the same user, or the service user.
struct FuseLoan {
  std::uint64_t offset = 0;
  bool for_root = false;
  bool joins = false;  ///< the device precedes the file
  /// Not 0: an image in place, of which each read is verified. The list of hashes follows the file.
  std::uint64_t verified_bytes = 0;  ///< of the image
  Digest layer;                      ///< for messages
  Digest hashes;                     ///< SHA-256 of the list
};

/// The list of an image's hashes: the SHA-256 of each chunk of this size, the last one shorter,
/// without anything else.
inline constexpr std::uint64_t kVerifiedChunk = 64 << 10;
inline constexpr std::uint64_t kMostVerified = std::uint64_t{1} << 40U;  ///< bytes of an image

}  // namespace spc
