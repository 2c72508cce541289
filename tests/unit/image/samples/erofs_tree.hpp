#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace spc::test {

/// A file, directory, … of an EROFS image made for tests. The same one under several names: hard links.
struct ErofsNode {
  enum class Stored { automatic, flat, chunks, compressed };  ///< automatic: with the inode if it fits, else flat

  mode_t mode = S_IFREG | 0644;
  std::uint32_t mtime = 0;
  std::string data = {};  ///< a file's content or a link's target
  Stored stored = Stored::automatic;
  std::uint32_t device = 0;
  std::vector<std::pair<std::string, std::string>> xattrs = {};  ///< full names: user.*, trusted.*
  std::map<std::string, std::shared_ptr<ErofsNode>> entries = {};

  // Known once the image is there.
  std::uint64_t nid = 0;       ///< 0: not yet
  std::uint64_t index_at = 0;  ///< of a compressed file's index or of the list of chunks, in the image
  std::uint64_t data_at = 0;   ///< of the content's first block or of what stands with the inode
  std::uint32_t links = 0;
};
using ErofsTree = std::shared_ptr<ErofsNode>;

ErofsTree erofs_directory(std::map<std::string, ErofsTree> entries = {});
ErofsTree erofs_file(std::string data, ErofsNode::Stored stored = ErofsNode::Stored::automatic);
ErofsTree erofs_link(std::string target);
/// Whiteouts, FIFOs, devices.
ErofsTree erofs_special(mode_t mode, std::uint32_t device = 0);

/// The image of this tree, in the form of the layer writer: in chunks, all units of zeros are holes, and `compressed` files are
/// compressed where that saves a block.
std::string erofs_image(const ErofsTree& root, bool lz4 = true);

}  // namespace spc::test
