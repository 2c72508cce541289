#pragma once

namespace spc {

/// enroot-mount [--root DIR] [--pass N] FSTAB...|-: mounts what the files say below DIR, as the
/// tool of that name of enroot does for its hooks. In a step the start of the container mounts
/// (protocol/hook_mount.hpp); elsewhere this process does, in the user namespace it is in. Gives
/// back the exit status.
int enroot_mount(int argc, char** argv);

}  // namespace spc
