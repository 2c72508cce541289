#pragma once

#include <vector>

#include "image/verify/meta_stream.hpp"
#include "image/verify/super_block.hpp"

namespace spc::verify {

/// The sets of extended attributes that inodes refer to by number: user.* from images, and
/// overlayfs's mark of an opaque directory. A set has each name once.
class Attributes {
 public:
  static Result<Attributes> read(LayerBytes& layer, const Layout& layout);

  /// Every set belongs to an inode, and inodes refer to sets in order of first use.
  Result<void> use(std::uint32_t set, bool by_directory);
  [[nodiscard]] bool all_used() const { return used_ == hides_.size(); }

 private:
  std::vector<bool> hides_;  ///< for each set: it has overlayfs's mark
  std::size_t used_ = 0;
};

inline constexpr std::uint32_t kNoAttributes = 0xffffffff;

}  // namespace spc::verify
