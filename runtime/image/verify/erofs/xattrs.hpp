#pragma once

#include "image/verify/erofs/inode.hpp"

namespace spc::verify::erofs {

/// The extended attributes behind an inode: user.* from images, and on directories overlayfs's mark
/// of an opaque one, in both of its forms. Each name comes once.
Result<void> check_attributes(Window& image, const Inode& inode);

}  // namespace spc::verify::erofs
