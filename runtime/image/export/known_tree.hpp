#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "image/export/image_tree.hpp"

namespace spc {

/// What a tree was like at one moment, to be compared with what has become of it. By metadata
/// alone: a change of content gives a file another ctime, which no user can set back, and overlayfs
/// shows files of the image with the numbers that they have there.
class KnownTree {
 public:
  static Result<KnownTree> read(int root);

  /// What was met of it later, for gone().
  struct Met {
    std::set<std::string> paths, directories;
  };
  /// Whether the entry is as it was; of a directory only its mode counts.
  bool is_unchanged(const TreeEntry& entry, Met& met) const;
  /// What is not there any more, in order; not what lies below such a thing.
  [[nodiscard]] std::vector<std::string> gone(const Met& met) const;

 private:
  std::map<std::string, std::uint64_t> marks_;
};

}  // namespace spc
