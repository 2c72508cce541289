#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spc {

struct Xattr {
  std::string name;
  std::string value;
};

/// A part of a sparse file that has data.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// One entry of the archive, with its extended headers applied.
struct TarEntry {
  enum class Kind { file, hard_link, symlink, device, directory, fifo };
  Kind kind = Kind::file;
  std::string path;    ///< as written: any bytes but NUL
  std::string target;  ///< of links
  std::uint16_t mode = 0;
  std::uint32_t mtime = 0;   ///< whole seconds, clamped to what squashfs can store
  std::uint64_t size = 0;    ///< of the file, including holes
  std::uint64_t stored = 0;  ///< bytes of data that follow in the archive
  bool sparse = false;
  std::vector<Extent>
      extents;  ///< of a sparse file: ascending, disjoint, within size, `stored` bytes in total
  std::vector<Xattr> xattrs;
};

}  // namespace spc
