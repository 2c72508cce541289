#pragma once

#include <functional>
#include <queue>
#include <vector>

#include "image/verify/erofs/content.hpp"
#include "image/verify/erofs/directory.hpp"

namespace spc::verify::erofs {

/// All inodes that the root leads to, in their order in the image: first directories, each of which
/// lies behind its parent, then what they name. Nothing is read twice.
class Tree {
 public:
  Tree(Window& image, const SuperBlock& super)
      : image_(image), super_(super), used_(image.size() / kBlock) {}

  Result<void> check();

 private:
  /// A directory that an entry has named.
  struct Named {
    std::uint64_t nid = 0;
    std::uint64_t parent = 0;
    std::uint32_t depth = 0;
    bool operator>(const Named& other) const { return nid > other.nid; }
  };
  using Waiting = std::priority_queue<Named, std::vector<Named>, std::greater<>>;

  Result<void> check_directories();
  Result<void> check_directory(const Named& named);
  /// True if the entry names a directory below this one.
  Result<bool> check_entry(const Named& directory, const Directory::Entry& entry);
  Result<void> check_behind_root(std::uint64_t end);
  Result<void> check_others();
  Result<void> check_other(std::uint64_t nid, EntryType type, std::uint64_t names);
  Result<void> check_target(const Inode& inode);

  Window& image_;
  const SuperBlock& super_;
  Used used_;
  Waiting waiting_;
  std::vector<std::uint64_t> names_;  ///< of non-directories: the inode's number and the type
  std::uint64_t inodes_ = 0;
};

}  // namespace spc::verify::erofs
