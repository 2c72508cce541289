#include "filesystem/tree.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {

namespace {

constexpr std::size_t kMaxPath = 4096;
constexpr std::size_t kMaxName = 255;
constexpr unsigned kReadAndSearch = 0500;  ///< permissions of the owner

constexpr std::string_view kWhiteout = ".wh.";
constexpr std::string_view kOpaque = ".wh..wh..opq";
constexpr std::string_view kAufs = ".wh..wh.";

Error refused(std::string_view why) { return Error(ErrorKind::refused, std::string(why)); }

bool is_whiteout(const Inode& inode) { return std::holds_alternative<Whiteout>(inode.content); }

void drop_reserved(Directory& directory) {
  std::erase_if(directory, [](const auto& entry) { return entry.first.starts_with(kWhiteout); });
  for (auto& [name, inode] : directory) {
    if (auto* const inner = std::get_if<Directory>(&inode->content)) drop_reserved(*inner);
  }
}

}  // namespace

Result<std::vector<std::string_view>> split_path(std::string_view path) {
  if (path.size() > kMaxPath) return refused("the path is longer than 4096 bytes");
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const auto part = next_part(path, '/');
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (parts.empty()) return refused("the path leaves the image's root");
      parts.pop_back();
      continue;
    }
    // The limit holds for the name that a whiteout removes. enter() checks directories again.
    const auto limit = kMaxName + (part.starts_with(kWhiteout) ? kWhiteout.size() : 0);
    if (part.size() > limit) return refused("a name in the path is longer than 255 bytes");
    parts.push_back(part);
  }
  return parts;
}

void push_target(std::vector<std::string_view>& ahead, std::string_view target) {
  const auto rest = ahead.size();
  while (!target.empty()) {
    const auto part = next_part(target, '/');
    if (!part.empty()) ahead.push_back(part);
  }
  std::reverse(ahead.begin() + static_cast<std::ptrdiff_t>(rest), ahead.end());
}

std::shared_ptr<Inode> new_directory() {
  auto inode = std::make_shared<Inode>();
  inode->content = Directory();
  inode->mode = 0755;
  return inode;
}

bool is_kept(const Xattr& xattr) {
  return xattr.name.starts_with("user.") && !xattr.name.starts_with("user.overlay.") &&
         xattr.name.size() > 5 && xattr.name.size() <= kMaxName && xattr.value.size() <= 65536;
}

void add_whiteout(Directory& directory, std::string_view name, std::uint32_t mtime) {
  if (name.empty() || name == "." || name == "..") return;
  const auto found = directory.find(name);
  if (found == directory.end()) {
    auto inode = std::make_shared<Inode>();
    inode->content = Whiteout();
    inode->mtime = mtime;
    directory.emplace(name, std::move(inode));
  } else if (std::holds_alternative<Directory>(found->second->content)) {
    found->second->opaque = true;
    found->second->implied = false;  // the archive has an entry for the directory
  }
}

Tree::Tree(Budget& budget, bool has_below)
    : budget_(budget), root_(new_directory()), has_below_(has_below) {}

/// Walks from the root and creates missing directories.
Result<Inode*> Tree::enter(const Parts& directories) {
  std::vector<Inode*> here{root_.get()};
  Parts ahead(directories.rbegin(), directories.rend());
  unsigned links = 0;
  while (!ahead.empty()) {
    const std::string_view part = ahead.back();
    ahead.pop_back();
    SPC_TRY(budget_.walk());
    if (part == ".") continue;
    if (part == "..") {
      if (here.size() > 1) here.pop_back();  // the root's parent is the root, as after chroot
      continue;
    }
    if (part.size() > kMaxName)
      return refused("a name in the path, or in a link's target, is longer than 255 bytes");
    if (part.starts_with(kWhiteout)) has_reserved_ = true;

    // A directory that is missing or whited out is created.
    auto& directory = std::get<Directory>(here.back()->content);
    auto found = directory.find(part);
    if (found == directory.end()) {
      SPC_TRY(budget_.keep(kEntryBytes + part.size()));
      found = directory.emplace(part, new_directory()).first;
      found->second->implied = true;
    }
    if (is_whiteout(*found->second)) {
      found->second = new_directory();
      found->second->opaque = true;
    }

    // Enter the directory, or follow the link.
    Inode& inode = *found->second;
    if (std::holds_alternative<Directory>(inode.content)) {
      if (here.size() >= kMaxDepth) return refused("the directories are nested too deeply");
      here.push_back(&inode);
    } else if (const auto* link = std::get_if<Symlink>(&inode.content)) {
      if (++links > kMaxLinks) return refused("link loop at " + in_quotes(part));
      if (link->target.starts_with('/')) here.resize(1);
      push_target(ahead, link->target);
    } else {
      return refused(in_quotes(part) + " in the path is not a directory");
    }
  }
  return here.back();
}

/// Returns the inode of `path`. Does not follow a link at the last part. Null if it does not exist.
Result<std::shared_ptr<Inode>> Tree::find(std::string_view path) {
  auto parts = SPC_TRY(split_path(path));
  if (parts.empty()) return root_;
  const auto name = parts.back();
  parts.pop_back();
  auto& directory = std::get<Directory>(SPC_TRY(enter(parts))->content);
  const auto found = directory.find(name);
  if (found == directory.end() || is_whiteout(*found->second)) return std::shared_ptr<Inode>();
  return found->second;
}

/// Sets attributes of the inode. If a name occurs twice, the last value is kept, at the position of
/// the first.
Result<void> Tree::set_attributes(Inode& inode, TarEntry& entry) {
  inode.mode = entry.mode & 01777U;  // no setuid or setgid
  inode.implied = false;
  inode.mtime = entry.mtime;
  inode.xattrs.reset();
  // The kernel allows user.* only on files and directories.
  const bool may_have =
      entry.kind == TarEntry::Kind::file || entry.kind == TarEntry::Kind::directory;
  const auto kept = [&](const Xattr& xattr) { return may_have && is_kept(xattr); };
  const auto dropped =
      std::erase_if(entry.xattrs, [&](const Xattr& xattr) { return !kept(xattr); });
  dropped_xattrs_ += dropped;
  if (entry.xattrs.empty()) return {};
  std::unordered_map<std::string, std::size_t> places;
  auto& all = *(inode.xattrs = std::make_unique<std::vector<Xattr>>());
  for (Xattr& xattr : entry.xattrs) {
    const auto [place, is_new] = places.try_emplace(xattr.name, all.size());
    if (is_new) {
      if (all.size() == kMaxAttributes)
        return Error(ErrorKind::refused,
                     formatted("it has more than {} attributes", kMaxAttributes))
            .hint("store them in a file");
      all.emplace_back();
    }
    SPC_TRY(budget_.keep(bytes_of(xattr)));
    all[place->second] = std::move(xattr);
  }
  return {};
}

Result<void> Tree::add_root(TarEntry& entry) {
  if (entry.kind != TarEntry::Kind::directory)
    return refused("the image's root can only be a directory");
  SPC_TRY(set_attributes(*root_, entry));
  // Root could always enter such a directory. Here its owner is the user, who is not root and could
  // change no mode before entering it.
  if ((root_->mode & kReadAndSearch) != kReadAndSearch) root_->mode |= 0700U;
  return {};
}

Result<std::shared_ptr<Inode>> Tree::add(TarEntry& entry) {
  using Kind = TarEntry::Kind;
  auto parts = SPC_TRY(split_path(entry.path));
  if (SPC_TRY(drop_device(entry, parts))) return std::shared_ptr<Inode>();
  if (parts.empty()) {
    SPC_TRY(add_root(entry));
    return std::shared_ptr<Inode>();
  }
  const auto name = parts.back();

  parts.pop_back();
  if (parts.size() + 1 >= kMaxDepth) return refused("the directories are nested too deeply");
  SPC_TRY(budget_.keep(kEntryBytes + name.size() + entry.target.size()));
  Inode& parent = *SPC_TRY(enter(parts));
  auto& directory = std::get<Directory>(parent.content);

  if (name == kOpaque) {
    parent.opaque = has_below_ || &parent != root_.get();
    return std::shared_ptr<Inode>();
  }
  if (name.starts_with(kAufs)) return std::shared_ptr<Inode>();
  if (name.starts_with(kWhiteout)) {
    add_whiteout(directory, name.substr(kWhiteout.size()), entry.mtime);
    return std::shared_ptr<Inode>();
  }

  if (entry.kind == Kind::hard_link) {
    auto target = SPC_TRY(find(entry.target));
    if (!target && !has_below_)
      return refused(formatted("it is a hard link to {}, which is not in this layer",
                               in_quotes(entry.target)));
    if (!target) {
      target = std::make_shared<Inode>();
      target->content = LinkBelow{entry.target};
    }
    if (std::holds_alternative<Directory>(target->content)) {
      return refused(
          formatted("it is a hard link to {}, which is a directory", in_quotes(entry.target)));
    }
    directory.insert_or_assign(std::string(name), target);
    return std::shared_ptr<Inode>();
  }

  // A directory keeps its entries if it exists already. A directory that replaces a whiteout is
  // opaque.
  auto& place = directory[std::string(name)];
  if (entry.kind == Kind::directory) {
    if (!place || !std::holds_alternative<Directory>(place->content)) {
      const bool hides = place && is_whiteout(*place);
      place = new_directory();
      place->opaque = hides;
    }
    SPC_TRY(set_attributes(*place, entry));
    return std::shared_ptr<Inode>();
  }

  // All other types replace an existing entry.
  auto inode = std::make_shared<Inode>();
  if (entry.kind == Kind::symlink) {
    if (entry.target.empty() || entry.target.size() >= kMaxPath)
      return refused("a link's target has a wrong length");
    inode->content = Symlink{entry.target};
  } else if (entry.kind == Kind::fifo) {
    inode->content = Fifo();
  } else {
    inode->content = FileData();
  }
  SPC_TRY(set_attributes(*inode, entry));
  if (entry.kind == Kind::symlink) inode->mode = 0777;
  place = inode;
  if (entry.kind != Kind::file) inode.reset();
  return inode;
}

/// Drops device nodes, and hard links to them.
Result<bool> Tree::drop_device(const TarEntry& entry, const Parts& parts) {
  using Kind = TarEntry::Kind;
  const auto whole = [](const Parts& names) {
    std::string path;
    for (const std::string_view name : names) path.append(name).push_back('/');
    return path;
  };
  const bool is_device = entry.kind == Kind::device;
  if (!is_device && dropped_.empty()) return false;
  const bool is_dropped =
      is_device || (entry.kind == Kind::hard_link &&
                    dropped_.contains(whole(SPC_TRY(split_path(entry.target)))));
  std::string path = whole(parts);
  if (is_dropped) {
    SPC_TRY(budget_.keep(kEntryBytes + path.size()));
    ++dropped_devices_;
    dropped_.insert(std::move(path));
  } else {
    dropped_.erase(path);
  }
  return is_dropped;
}

void Tree::finish() {
  if (has_reserved_) drop_reserved(std::get<Directory>(root_->content));
}

}  // namespace spc
