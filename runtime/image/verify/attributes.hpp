#pragma once

#include <vector>

#include "image/verify/meta_stream.hpp"
#include "image/verify/super_block.hpp"

namespace spc::verify {

/// The sets of extended attributes that inodes refer to by their number: user.* as images bring them, and overlayfs'
/// mark of a directory that hides what is below. A set has each name once.
class Attributes {
 public:
  static Result<Attributes> read(LayerBytes& layer, const Layout& layout);

  /// Every set belongs to an inode, and inodes name them in the order in which they first need them.
  Result<void> use(std::uint32_t set, bool by_directory);
  [[nodiscard]] bool all_used() const { return used_ == hides_.size(); }

 private:
  std::vector<bool> hides_;  ///< for each set: it has overlayfs' mark
  std::size_t used_ = 0;
};

inline constexpr std::uint32_t kNoAttributes = 0xffffffff;

}  // namespace spc::verify
