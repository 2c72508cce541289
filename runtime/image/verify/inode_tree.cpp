#include "image/verify/inode_tree.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "base/format.hpp"

namespace spc::verify {
namespace {

constexpr std::size_t kSmallestInode = 20;
constexpr std::uint32_t kMaxHeight = 2048;  ///< no longer path can be opened
constexpr std::uint32_t kMaxTarget = 4095;
constexpr std::uint32_t kDots =
    3;  ///< a directory's size counts its listing and this for `.` and `..`, which are not in it

/// Types of inodes. The long forms say more.
enum Type : std::uint16_t {
  kDirectory = 1,
  kFile = 2,
  kSymlink = 3,
  kCharacterDevice = 5,
  kFifo = 6,
  kLongDirectory = 8,
  kLongFile = 9,
};

/// Sticky and permissions: no setuid, no setgid. The type is in a field of its own, and the kernel
/// would add another's bits.
constexpr std::uint16_t kPermissions = 01777;

}  // namespace

struct InodeTree::Common {
  std::uint16_t type, mode, owner, group;
  std::uint32_t date, number;
  explicit Common(Fields fields)
      : type(fields.take<std::uint16_t>()),
        mode(fields.take<std::uint16_t>()),
        owner(fields.take<std::uint16_t>()),
        group(fields.take<std::uint16_t>()),
        date(fields.take<std::uint32_t>()),
        number(fields.take<std::uint32_t>()) {}
};

struct InodeTree::DirectoryFields {
  std::uint32_t links = 0;
  std::uint32_t size = 0;
  std::uint32_t parent = 0;
  MetaStream::Position listing;
  std::uint32_t attributes = kNoAttributes;
  std::uint16_t indexes = 0;
};

/// Follows one directory's entries and knows whether their inodes lie where the writer puts them.
class InodeTree::Order {
 public:
  void directory(const Inode& inode) {
    right_ = right_ && (directories_ == 0 || inode.first == behind_directories_);
    if (directories_++ == 0) first_ = inode.first;
    behind_directories_ = inode.order + 1;
  }
  void other(const Inode& inode) {
    right_ = right_ && (others_ == 0 || inode.order == behind_others_);
    if (others_++ == 0) first_other_ = inode.order;
    behind_others_ = inode.order + 1;
  }
  /// True if all is right and the directory comes next. `first`: of the inodes below it.
  bool ends_at(std::uint32_t order, std::uint32_t& first) const {
    const std::uint32_t behind = others_ > 0        ? behind_others_
                                 : directories_ > 0 ? behind_directories_
                                                    : order;
    first = directories_ > 0 ? first_ : others_ > 0 ? first_other_ : order;
    return right_ && behind == order &&
           (directories_ == 0 || others_ == 0 || first_other_ == behind_directories_);
  }
  [[nodiscard]] std::uint32_t directories() const { return directories_; }

 private:
  bool right_ = true;
  std::uint32_t directories_ = 0, others_ = 0;
  std::uint32_t first_ = 0, behind_directories_ = 0, first_other_ = 0, behind_others_ = 0;
};

InodeTree::InodeTree(LayerBytes& layer, const Layout& layout, DataArea& data,
                     Attributes& attributes)
    : layout_(layout),
      data_(data),
      attributes_(attributes),
      inodes_(layer, layout.codec, "inodes", layout.inodes.begin, layout.inodes.end),
      listings_(layer, layout.codec, "directories", layout.directories.begin,
                layout.directories.end) {}

Result<void> InodeTree::check() {
  const std::uint64_t blocks = (layout_.inodes.end - layout_.inodes.begin) / 3 + 1;
  if (layout_.inode_count > blocks * kMetaBytes / kSmallestInode)
    return refused("fewer inodes than stated");
  // The system gives zeros, and memory only for what is touched: a count that is too large costs
  // nothing.
  known_.reset(static_cast<Inode*>(std::calloc(layout_.inode_count, sizeof(Inode))));
  if (!known_) throw std::bad_alloc();

  for (std::uint32_t i = 0; i < layout_.inode_count; ++i) {
    const auto place = inodes_.position();
    SPC_TRY_DURING(formatted("inode {} at {}:{}", i, place.block, place.offset), check_inode(i));
  }
  SPC_TRY(inodes_.expect_end());
  SPC_TRY(listings_.expect_end());
  if (names_left_ != 0) return refused("an inode has fewer names than stated");
  if (!attributes_.all_used()) return refused("attributes: a set belongs to no inode");

  const Inode& root = known_[layout_.inode_count - 1];
  if (root.kind != Kind::directory || root.named || root.order != layout_.inode_count - 1 ||
      layout_.root != (std::uint64_t{root.block} << 16U | root.offset)) {
    return refused("the root is not the last inode");
  }
  if (root.first != 0) return refused("an inode is not reached from the root");
  if (root.link_left != layout_.inode_count + 1) return refused("the root has a parent");
  return {};
}

Result<void> InodeTree::check_inode(std::uint32_t order) {
  const auto place = inodes_.position();
  const auto bytes = SPC_TRY(inodes_.take<16>());
  const Common common{Fields(bytes)};
  if (common.owner != 0 || common.group != layout_.group) return refused("its owner is not 0");
  if ((common.mode & ~unsigned{kPermissions}) != 0)
    return refused("mode bits other than permissions and sticky");
  if (common.number == 0 || common.number > layout_.inode_count)
    return refused("its number is too large");
  Inode& inode = known_[common.number - 1];
  if (inode.kind != Kind::none) return refused("duplicate number");
  if (place.block > 0xffffffff) return refused("its position is too large");
  inode.block = static_cast<std::uint32_t>(place.block);
  inode.offset = static_cast<std::uint16_t>(place.offset);
  inode.order = order;

  switch (common.type) {
    case kFile:
    case kLongFile: inode.kind = Kind::file; return check_file(inode, common.type == kLongFile);
    case kDirectory:
    case kLongDirectory:
      inode.kind = Kind::directory;
      return check_directory(inode, common.number, common.type == kLongDirectory);
    case kSymlink:
      if (common.mode != 0777) return refused("a link with permissions");
      inode.kind = Kind::symlink;
      SPC_TRY(check_symlink(inode));
      break;
    case kCharacterDevice: {
      const auto fields = SPC_TRY(inodes_.take<8>());
      inode.kind = Kind::whiteout;
      inode.link_left = Fields(fields).take<std::uint32_t>();
      const auto device = Fields(std::span(fields).subspan(4)).take<std::uint32_t>();
      if (device != 0 || inode.link_left != 1 || common.mode != 0)
        return refused("a device other than a whiteout");
      break;
    }
    case kFifo: {
      const auto fields = SPC_TRY(inodes_.take<4>());
      inode.kind = Kind::fifo;
      inode.link_left = Fields(fields).take<std::uint32_t>();
      break;
    }
    default: return refused("unused type");
  }
  names_left_ += inode.link_left;
  return {};
}

Result<void> InodeTree::check_symlink(Inode& inode) {
  const auto bytes = SPC_TRY(inodes_.take<8>());
  Fields fields(bytes);
  inode.link_left = fields.take<std::uint32_t>();
  const auto size = fields.take<std::uint32_t>();
  if (size == 0 || size > kMaxTarget) return refused("the link's target has a wrong length");
  std::array<std::byte, kMaxTarget> target;
  const auto text = std::span(target).first(size);
  SPC_TRY(inodes_.read(text));
  if (std::find(text.begin(), text.end(), std::byte{0}) != text.end())
    return refused("the link's target contains NUL");
  return {};
}

Result<void> InodeTree::check_file(Inode& inode, bool is_long) {
  FileData file;
  inode.link_left = 1;
  if (!is_long) {
    const auto bytes = SPC_TRY(inodes_.take<16>());
    Fields fields(bytes);
    file.start = fields.take<std::uint32_t>();
    file.fragment = fields.take<std::uint32_t>();
    file.fragment_offset = fields.take<std::uint32_t>();
    file.size = fields.take<std::uint32_t>();
  } else {
    const auto bytes = SPC_TRY(inodes_.take<40>());
    Fields fields(bytes);
    file.start = fields.take<std::uint64_t>();
    file.size = fields.take<std::uint64_t>();
    file.holes = fields.take<std::uint64_t>();
    inode.link_left = fields.take<std::uint32_t>();
    file.fragment = fields.take<std::uint32_t>();
    file.fragment_offset = fields.take<std::uint32_t>();
    const auto attributes = fields.take<std::uint32_t>();
    if (inode.link_left == 1 && attributes == kNoAttributes && file.holes == 0 &&
        file.start <= 0xffffffff && file.size <= 0xffffffff) {
      return refused("unnecessary long form");
    }
    SPC_TRY(attributes_.use(attributes, false));
  }
  names_left_ += inode.link_left;
  return data_.check_file(file, inodes_);
}

Result<InodeTree::DirectoryFields> InodeTree::read_directory(bool is_long) {
  DirectoryFields directory;
  if (!is_long) {
    const auto bytes = SPC_TRY(inodes_.take<16>());
    Fields fields(bytes);
    directory.listing.block = fields.take<std::uint32_t>();
    directory.links = fields.take<std::uint32_t>();
    directory.size = fields.take<std::uint16_t>();
    directory.listing.offset = fields.take<std::uint16_t>();
    directory.parent = fields.take<std::uint32_t>();
  } else {
    const auto bytes = SPC_TRY(inodes_.take<24>());
    Fields fields(bytes);
    directory.links = fields.take<std::uint32_t>();
    directory.size = fields.take<std::uint32_t>();
    directory.listing.block = fields.take<std::uint32_t>();
    directory.parent = fields.take<std::uint32_t>();
    directory.indexes = fields.take<std::uint16_t>();
    directory.listing.offset = fields.take<std::uint16_t>();
    directory.attributes = fields.take<std::uint32_t>();
    if (directory.attributes == kNoAttributes && directory.size <= 0xffff) {
      return refused("unnecessary long form");
    }
  }
  if (directory.size < kDots) return refused("wrong size");
  return directory;
}

/// The inode, if it says of itself what the entry says.
Result<InodeTree::Inode*> InodeTree::named_by(const Listing::Entry& entry) {
  if (entry.number == 0 || entry.number > layout_.inode_count)
    return refused("an entry refers to a missing inode");
  Inode& inode = known_[entry.number - 1];
  if (inode.kind == Kind::none || static_cast<std::uint16_t>(inode.kind) != entry.kind ||
      inode.block != entry.block || inode.offset != entry.offset) {
    return refused("an entry refers to a missing inode");
  }
  return &inode;
}

/// In the inode of a long directory: where a group begins, and its first name.
Result<void> InodeTree::check_index(const Listing::Begin& begin, std::string_view name) {
  const auto bytes = SPC_TRY(inodes_.take<12>());
  Fields fields(bytes);
  const bool right = fields.take<std::uint32_t>() == begin.at &&
                     fields.take<std::uint32_t>() == begin.block &&
                     fields.take<std::uint32_t>() == name.size() - 1;
  if (!right) return refused("its index does not match its listing");
  std::array<char, 255> found;
  const auto text = std::span(found).first(name.size());
  SPC_TRY(inodes_.read(std::as_writable_bytes(text)));
  if (!std::equal(text.begin(), text.end(), name.begin()))
    return refused("its index does not match its listing");
  return {};
}

Result<void> InodeTree::check_directory(Inode& inode, std::uint32_t number, bool is_long) {
  const auto directory = SPC_TRY(read_directory(is_long));
  SPC_TRY(attributes_.use(directory.attributes, true));
  if (directory.listing != listings_.position()) return refused("wrong position of its listing");
  inode.link_left = directory.parent;

  Listing listing(listings_, directory.size - kDots);
  Order order;
  std::uint32_t indexes = 0;
  for (;;) {
    const auto entry = SPC_TRY(listing.next());
    if (!entry) break;
    if (is_long && listing.group_begin()) {
      ++indexes;
      SPC_TRY(check_index(*listing.group_begin(), entry->name));
    }
    Inode* const child = SPC_TRY(named_by(*entry));
    if (child->kind == Kind::directory) {
      if (child->named || child->link_left != number)
        return refused("names a directory that has another parent");
      order.directory(*child);
      inode.height = std::max(inode.height, child->height + 1);
    } else {
      if (child->link_left == 0) return refused("names an inode that has no name left");
      if (!child->named) order.other(*child);
      --child->link_left;
      --names_left_;
    }
    child->named = true;
  }
  if (is_long && indexes != directory.indexes)
    return refused("its index does not match its listing");
  if (directory.links != 2 + order.directories()) return refused("wrong link count");
  if (inode.height >= kMaxHeight) return refused("the directories are nested too deeply");
  if (!order.ends_at(inode.order, inode.first)) return refused("unexpected order of inodes");
  return {};
}

}  // namespace spc::verify
