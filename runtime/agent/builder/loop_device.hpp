#pragma once

#include "agent/node/image_store.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// A loop device over a layer file. The kernel frees it (autoclear) with its last user: this
/// descriptor or a mount.
struct LoopDevice {
  UniqueFd device;
  int number = -1;
  bool shared = false;  ///< set up by another step on this node
};

/// How a layer, all of which is owner 0's, becomes the user's.
struct LayerOwner {
  int id_map = -1;                    ///< this user namespace maps the mount; -1: none does
  const ImageStore* store = nullptr;  ///< of a squashfs a copy in there says these numbers
                                      ///< (LayerFormat::owned_squashfs); nullptr: none
  uid_t uid = 0;
  gid_t gid = 0;
};

/// The loop device of this layer, or of the owner's copy of it: the one that a running step uses,
/// or a new one. Steps that use the same device share the layer's super block and page cache. The
/// layer's file has the number of its last device (of owners of copies in 31 of them) as an
/// attribute, which is only a hint, checked against the kernel's state of the device.
Result<LoopDevice> loop_device_of(const LayerFile& layer, const LayerOwner& owner);

}  // namespace spc::agent
