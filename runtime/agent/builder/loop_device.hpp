#pragma once

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace spc::agent {

/// A loop device over a layer file. The kernel frees it (autoclear) with its last user: this descriptor or a mount.
struct LoopDevice {
  UniqueFd device;
  int number = -1;
  bool shared = false;  ///< set up by another step on this node
};

/// The loop device of this layer: the one that a running step uses, or a new one. Steps that use the same device share
/// the layer's super block and page cache. The file has the number of its last device as an attribute, which is only
/// a hint, checked against the kernel's state of the device.
Result<LoopDevice> loop_device_of(int layer_file);

}  // namespace spc::agent
