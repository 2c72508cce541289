#pragma once

#include <string>

#include "base/process/kernel.hpp"

namespace spc {

/// Whether the running kernel can mount a squashfs that is compressed with lz4, as Debian's and Ubuntu's can and Red Hat's cannot:
/// what its configuration says, in a file below `root`. No: or that is not known.
bool reads_lz4(const std::string& root = "");

/// Whether a kernel can map the owners of an erofs, which it has, loaded or built in, and not those of a squashfs: Linux 5.19 to 6.1.
/// `filesystems`: the running kernel's list.
bool maps_only_erofs(KernelVersion kernel = running_kernel(), const std::string& filesystems = "/proc/filesystems");

}  // namespace spc
