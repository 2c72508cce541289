#include "image/verify/erofs/tree.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "image/verify/erofs/xattrs.hpp"

namespace spc::verify::erofs {
namespace {

constexpr std::uint32_t kMaxDepth = 2048;  ///< no longer path can be opened
constexpr std::uint64_t kLongestTarget = 4095;
constexpr unsigned kTypeBits = 3;

mode_t mode_of(EntryType type) {
  switch (type) {
    case EntryType::file: return S_IFREG;
    case EntryType::directory: return S_IFDIR;
    case EntryType::whiteout: return S_IFCHR;
    case EntryType::fifo: return S_IFIFO;
    case EntryType::symlink: return S_IFLNK;
  }
  return 0;
}

}  // namespace

Result<void> Tree::check() {
  SPC_TRY(check_directories());
  used_.begin_others();
  SPC_TRY(check_others());
  if (inodes_ != super_.inodes) return refused("wrong number of inodes");
  return used_.check_apart();
}

Result<void> Tree::check_directories() {
  std::uint64_t last = 0;
  waiting_.push({.nid = kRoot, .parent = kRoot, .depth = 0});
  while (!waiting_.empty()) {
    const Named named = waiting_.top();
    waiting_.pop();
    // What comes later is larger than what has named it, and so than all that were read.
    if (named.nid == last)
      return refused(formatted("inode {}: a directory that two entries name", named.nid));
    last = named.nid;
    SPC_TRY_DURING(formatted("inode {}", named.nid), check_directory(named));
    ++inodes_;
  }
  return {};
}

Result<void> Tree::check_directory(const Named& named) {
  const auto inode = SPC_TRY(Inode::read(image_, named.nid));
  if (!inode.is(S_IFDIR)) return refused("an entry names it as something else");
  const std::uint64_t begin = SPC_TRY(place_text(inode, used_));
  SPC_TRY(check_attributes(image_, inode));
  if (named.nid == kRoot)
    SPC_TRY(check_behind_root(inode.layout == DataLayout::inlined ? begin + inode.size
                                                                  : inode.content()));

  Directory entries(image_, begin, inode.size);
  unsigned dots = 0;
  std::uint64_t links = 2;
  for (;;) {
    const auto entry = SPC_TRY(entries.next());
    if (!entry) break;
    if (entry->name == "." || entry->name == "..") {
      const std::uint64_t itself = entry->name == "." ? named.nid : named.parent;
      if (entry->nid != itself || entry->type != EntryType::directory)
        return refused("a wrong entry . or ..");
      ++dots;
    } else if (SPC_TRY(check_entry(named, *entry))) {
      ++links;
    }
  }
  if (dots != 2) return refused("without entries . and ..");
  if (inode.links != links) return refused("wrong link count");
  return {};
}

Result<bool> Tree::check_entry(const Named& directory, const Directory::Entry& entry) {
  if (entry.nid >= image_.size() / kSlot)
    return refused("an entry names an inode beyond the end of the image");
  if (entry.nid < kBlock / kSlot) return refused("an entry names an inode in block 0");
  if (entry.type != EntryType::directory) {
    names_.push_back(entry.nid << kTypeBits | static_cast<std::uint64_t>(entry.type));
    return false;
  }
  if (entry.nid <= directory.nid) return refused("an entry names a directory in front of it");
  if (directory.depth == kMaxDepth) return refused("the directories are nested too deeply");
  waiting_.push({.nid = entry.nid, .parent = directory.nid, .depth = directory.depth + 1});
  return true;
}

Result<void> Tree::check_behind_root(std::uint64_t end) {
  if (!all_zero(SPC_TRY(image_.at(end, kBlock - end))))
    return refused("data behind the root in block 0");
  return {};
}

Result<void> Tree::check_others() {
  std::sort(names_.begin(), names_.end());
  for (std::size_t i = 0; i < names_.size();) {
    const std::uint64_t named = names_[i];
    const std::uint64_t nid = named >> kTypeBits;
    const std::size_t first = i;
    for (; i < names_.size() && names_[i] >> kTypeBits == nid; ++i) {
      if (names_[i] != named)
        return refused(formatted("inode {}: entries name it as different things", nid));
    }
    const auto type = static_cast<EntryType>(named & ((1U << kTypeBits) - 1));
    SPC_TRY_DURING(formatted("inode {}", nid), check_other(nid, type, i - first));
    ++inodes_;
  }
  return {};
}

Result<void> Tree::check_other(std::uint64_t nid, EntryType type, std::uint64_t names) {
  const auto inode = SPC_TRY(Inode::read(image_, nid));
  if (!inode.is(mode_of(type))) return refused("an entry names it as something else");
  if (inode.links != names) return refused("wrong link count");
  switch (type) {
    case EntryType::file:
      SPC_TRY(FileContent(image_, inode, used_).check(super_.is_compressed));
      break;
    case EntryType::symlink: SPC_TRY(check_target(inode)); break;
    default:
      if (inode.layout != DataLayout::plain || inode.size != 0 || inode.start != 0) {
        return refused(type == EntryType::fifo ? "a FIFO with content"
                                               : "a device other than a whiteout");
      }
      if (inode.attributes != 0) return refused("attributes: unexpected for its type");
      SPC_TRY(used_.record(inode, inode.content()));
  }
  return check_attributes(image_, inode);
}

Result<void> Tree::check_target(const Inode& inode) {
  if (inode.size == 0 || inode.size > kLongestTarget)
    return refused("the link's target has a wrong length");
  const std::uint64_t begin = SPC_TRY(place_text(inode, used_));
  std::array<std::byte, kLongestTarget> target;
  const auto text = std::span(target).first(inode.size);
  SPC_TRY(image_.copy(begin, text));
  if (std::find(text.begin(), text.end(), std::byte{0}) != text.end())
    return refused("the link's target contains NUL");
  return {};
}

}  // namespace spc::verify::erofs
