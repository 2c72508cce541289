#pragma once

#include <cstdint>
#include <string>

#include "base/process/kernel.hpp"
#include "protocol/layer.hpp"

namespace spc {

/// Whether the running kernel can mount a squashfs that is compressed with lz4, as Debian's and
/// Ubuntu's can and Red Hat's cannot: what its configuration says, in a file below `root`. No: or
/// that is not known.
bool reads_lz4(const std::string& root = "");

/// Bytes of the kernel's memory that a mounted squashfs layer takes at most, whose memory no cgroup
/// is charged for: caches, and decompressors with a block each for every processor that the node
/// could have, unless the kernel's configuration says that there is one. Files lie below `root`.
std::uint64_t memory_of_squashfs(LayerCompression compression, const std::string& root = "");

/// Has the kernel load its module for erofs, as for everybody who wants to mount one.
void ask_for_erofs();

/// Whether a kernel can map the owners of an erofs, which it has, and not those of a squashfs:
/// Linux 5.19 to 6.1. `filesystems`: the running kernel's list, where a module is once it is
/// loaded; `ask`: loads it.
bool maps_only_erofs(KernelVersion kernel = running_kernel(),
                     const std::string& filesystems = "/proc/filesystems",
                     void (*ask)() = ask_for_erofs);

/// Whether the kernel has erofs and can map its owners, and would take more than 8 MiB of its own
/// memory for each squashfs: `memory`.
bool saves_memory_by_erofs(std::uint64_t memory = memory_of_squashfs(LayerCompression::lz4),
                           KernelVersion kernel = running_kernel(),
                           const std::string& filesystems = "/proc/filesystems",
                           void (*ask)() = ask_for_erofs);

/// Whether the file system can let them (ioctl_ficlone(2)), so that copies of layers need no room.
/// XFS may have been made without, which the first start finds out.
bool files_share_blocks(const char* place);

}  // namespace spc
