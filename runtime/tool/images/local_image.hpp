#pragma once

#include <string>

#include "base/result.hpp"
#include "tool/images/image_mount.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {

/// The settings of an image that is a file system of the user, read from its files
/// (launch/inside/image_files.hpp).
inline const std::string kSettingsInFiles = std::string("settings=files") + '\0';

/// An image ready to be mounted.
struct OpenedImage {
  std::string name;
  ImageFiles files;
  std::string settings;  ///< records `key=value\0`: env, workdir, entrypoint, cmd
};

/// The image named by the user: from the user's store, pulled if necessary, or a file or directory.
Result<OpenedImage> open_image(const Places& places, const Config& config, const Wanted& wanted);

/// The same without pulling.
Result<OpenedImage> open_stored_image(int store, const ListedImage& image);

}  // namespace spc::tool
