#pragma once

#include <vector>

#include "image/verify/erofs/inode.hpp"

namespace spc::verify::erofs {

/// Which bytes belong to what: no two things may share any. What belongs to nothing is left by
/// replaced entries.
class Used {
 public:
  explicit Used(std::uint64_t blocks) : blocks_(blocks) {}

  /// Inodes come in ascending order, of directories first and then of everything else.
  Result<void> record(const Inode& inode, std::uint64_t end);
  void begin_others() { last_end_ = 0; }
  /// Blocks of content.
  Result<void> content(std::uint64_t first, std::uint64_t count);
  /// Last.
  Result<void> check_apart();

 private:
  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  using Extents = std::vector<Extent>;

  static void add(Extents& extents, Extent extent);

  std::uint64_t blocks_;
  std::uint64_t last_end_ = 0;
  Extents records_, contents_;  ///< what adjoins the one before is one with it
};

}  // namespace spc::verify::erofs
