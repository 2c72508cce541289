#pragma once

#include <string>

#include "base/result.hpp"

namespace spc::enroot {

/// The environment, with enroot's names and defaults.
struct EnrootSettings {
  std::string data_path;  ///< ENROOT_DATA_PATH: one directory per container
  std::string
      config_path;  ///< ENROOT_CONFIG_PATH: directory of `.credentials`, read by user-source
  std::string
      cache_path;  ///< ENROOT_CACHE_PATH: parent of the image store; empty: scontainer's default
  bool writable = false;    ///< ENROOT_ROOTFS_WRITABLE
  bool remap_root = false;  ///< ENROOT_REMAP_ROOT
  bool mount_home = false;  ///< ENROOT_MOUNT_HOME

  /// Reads the environment, and changes it so that scontainer has its store in `cache_path`.
  static Result<EnrootSettings> take_from_environment();
};

}  // namespace spc::enroot
