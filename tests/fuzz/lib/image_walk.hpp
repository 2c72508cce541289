#pragma once

#include <sys/stat.h>

#include <algorithm>

#include "filesystem/image_reader.hpp"
#include "property.hpp"

namespace spc::fuzz {

/// A bounded traversal of an image that reads everything as find and cat do.
class ImageWalk {
 public:
  static void over(fuse::ImageReader& reader) { ImageWalk(reader).enter(reader.summary().root, 0); }

 private:
  explicit ImageWalk(fuse::ImageReader& reader) : reader_(reader) {}

  void enter(std::uint64_t reference, int depth) {
    if (left_ == 0 || depth > 8) return;
    --left_;
    const auto inode = reader_.inode(reference);
    if (!inode) return must_be_readable(inode.error());
    if (!*inode) return;
    look(**inode, depth);
  }

  void look(const fuse::Inode& inode, int depth) {
    must((inode.mode & (S_ISUID | S_ISGID)) == 0, "nothing lends an identity");
    must(!S_ISBLK(inode.mode) && (!S_ISCHR(inode.mode) || inode.device == 0),
         "whiteouts are the only devices");
    if (const auto attributes = reader_.xattrs(inode); !attributes)
      must_be_readable(attributes.error());
    if (S_ISLNK(inode.mode)) {
      if (const auto target = reader_.link_target(inode))
        must(target->size() == inode.size, "a link has its size");
    } else if (S_ISREG(inode.mode)) {
      for (const std::uint64_t start : {std::uint64_t{0}, inode.size / 2,
                                        inode.size - std::min<std::uint64_t>(inode.size, 3)}) {
        read(inode, start);
      }
    } else if (S_ISDIR(inode.mode)) {
      const auto directory = reader_.directory(inode);
      if (!directory) return must_be_readable(directory.error());
      for (const auto& entry : (*directory)->entries) {
        const auto name = (*directory)->name(entry);
        must(!name.empty() && name.size() <= 255 && name != "." && name != ".." &&
                 name.find('/') == std::string_view::npos &&
                 name.find('\0') == std::string_view::npos,
             "names are names");
        must((*directory)->find(name) == &entry, "each name is there once and found");
        enter(entry.reference, depth + 1);
      }
    }
  }

  void read(const fuse::Inode& file, std::uint64_t start) {
    constexpr std::size_t kMost = 300'000;
    const auto pieces = reader_.read(file, start, kMost);
    if (!pieces) return must_be_readable(pieces.error());
    std::uint64_t sum = 0;
    for (const fuse::Piece& piece : *pieces) {
      must(!piece.block || (piece.offset <= piece.block->size &&
                            piece.size <= piece.block->size - piece.offset),
           "a piece lies in its block");
      sum += piece.size;
    }
    must(sum == std::min<std::uint64_t>(kMost, file.size - std::min(start, file.size)),
         "only the end of the file is short");
  }

  fuse::ImageReader& reader_;
  unsigned left_ = 200;
};

}  // namespace spc::fuzz
