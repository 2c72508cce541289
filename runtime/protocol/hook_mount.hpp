#pragma once

#include <cstdint>

namespace spc {

/// A mount request of enroot-mount in a step: one message per mount over a SEQPACKET socket, with
/// the target (O_PATH) and, unless it is a tmpfs, the source, both opened by the user. The reply is
/// an errno.
struct HookMountRequest {
  std::uint32_t flags = 0;  ///< TaskMessage::SourceFlags without source_squashfs
  std::uint64_t size = 0;   ///< bytes of a tmpfs; 0: the size limit of the writable layer
};
struct HookMountAnswer {
  std::int32_t error = 0;
};

/// The variable with the socket's path.
inline constexpr char kHookMountSocket[] = "SPANK_CONTAINER_MOUNT_SOCKET";

}  // namespace spc
