// A squashfs that a user brings, as fuse reads it: whatever is in it, reading ends, in an error or in bytes.

#include <sys/stat.h>

#include "image/fuse/squashfs_reader.hpp"
#include "memory_file.hpp"
#include "property.hpp"

using namespace spc;
using namespace spc::fuse;
using namespace spc::fuzz;

namespace {

/// Looks at everything below an inode, as find and cat would, but no more than so much of it.
class Walk {
 public:
  explicit Walk(SquashfsReader& reader) : reader_(reader) {}

  void enter(std::uint64_t reference, int depth) {
    if (left_ == 0 || depth > 8) return;
    --left_;
    const auto inode = reader_.inode(reference);
    if (!inode) return must_be_readable(inode.error());
    if (!*inode) return;
    look(**inode, depth);
  }

 private:
  void look(const Inode& inode, int depth) {
    must((inode.mode & (S_ISUID | S_ISGID)) == 0, "nothing lends an identity");
    must(!S_ISBLK(inode.mode) && (!S_ISCHR(inode.mode) || inode.device == 0), "whiteouts are the only devices");
    if (const auto attributes = reader_.xattrs(inode); !attributes) must_be_readable(attributes.error());
    if (S_ISLNK(inode.mode)) {
      if (const auto target = reader_.link_target(inode)) must(target->size() == inode.size, "a link has its size");
    } else if (S_ISREG(inode.mode)) {
      for (const std::uint64_t start : {std::uint64_t{0}, inode.size / 2, inode.size - std::min<std::uint64_t>(inode.size, 3)}) {
        read(inode, start);
      }
    } else if (S_ISDIR(inode.mode)) {
      const auto directory = reader_.directory(inode);
      if (!directory) return must_be_readable(directory.error());
      for (const auto& entry : (*directory)->entries) {
        const auto name = (*directory)->name(entry);
        must(!name.empty() && name.size() <= 255 && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
                 name.find('\0') == std::string_view::npos,
             "names are names");
        must((*directory)->find(name) == &entry, "each name is there once and found");
        enter(entry.reference, depth + 1);
      }
    }
  }

  void read(const Inode& file, std::uint64_t start) {
    constexpr std::size_t kMost = 300'000;
    const auto pieces = reader_.read(file, start, kMost);
    if (!pieces) return must_be_readable(pieces.error());
    std::uint64_t sum = 0;
    for (const fuse::Piece& piece : *pieces) {
      must(!piece.block || (piece.offset <= piece.block->size && piece.size <= piece.block->size - piece.offset),
           "a piece lies in its block");
      sum += piece.size;
    }
    must(sum == std::min<std::uint64_t>(kMost, file.size - std::min(start, file.size)), "only the end of the file is short");
  }

  SquashfsReader& reader_;
  unsigned left_ = 200;
};

}  // namespace

FUZZ_TARGET(squashfs) {
  const std::string_view text = text_of(data, size);
  const auto super = parse_squashfs_super(std::as_bytes(std::span(data, std::min(size, SquashfsSuper::kBytes))), size);
  const UniqueFd file = memory_file(text);
  auto image = ImageBytes::open(file.get(), 0);
  if (!image) {
    must_be_readable(image.error());
    return 0;
  }
  must(super.has_value(), "an image that can be read has a super block");
  const std::uint64_t root = (*image)->super().root;
  SquashfsReader reader(std::move(image).value());
  Walk(reader).enter(root, 0);
  return 0;
}
