#pragma once

#include <string>

namespace spc {

/// Whether the running kernel can mount a squashfs that is compressed with lz4, as Debian's and Ubuntu's can and Red Hat's cannot:
/// what its configuration says, in a file below `root`. No: or that is not known.
bool reads_lz4(const std::string& root = "");

/// Whether the running kernel has erofs, loaded or built in, and can map its owners (Linux 5.19), as an agent needs that mounts it
/// for a user. `filesystems`: the kernel's list.
bool mounts_erofs(const std::string& filesystems = "/proc/filesystems");

}  // namespace spc
