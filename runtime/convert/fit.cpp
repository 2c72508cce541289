// Adapts a layer's tree to the layers below it, and merges layers.

#include "convert/fit.hpp"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "base/format.hpp"

namespace spc::below {

// --- path walk ---

namespace {

/// levels of directories within a moved one, which are placed by recursion
constexpr unsigned kMaxMoved = 256;

Error too_deep() { return Error(ErrorKind::refused, "the directories are nested too deeply"); }

Error in_the_way(std::string_view name) {
  return Error(ErrorKind::refused, formatted("{} in a path is not a directory", in_quotes(name)));
}

Directory& entries_of(Inode& directory) { return std::get<Directory>(directory.content); }

bool is_directory(const Inode& inode) { return std::holds_alternative<Directory>(inode.content); }

/// Returns the node of `name` in the layers below this directory. Empty if there is none or the
/// layer hides it.
Result<std::optional<Node>> look_below(const Place& here, std::string_view name,
                                       LayersBelow& layers) {
  if (!here.below || (here.own != nullptr && here.own->opaque)) return std::optional<Node>();
  return SPC_TRY(layers.list(*here.below)).find(name);
}

/// One step: into a directory, or a link target to follow.
struct Step {
  std::shared_ptr<Place> place;
  std::optional<std::string> link;
};

Result<std::shared_ptr<Place>> make_place(std::string_view name, Inode* own,
                                          std::optional<Node> below, Budget& budget) {
  const std::size_t parts = below ? below->parts.size() : 0;
  auto memory = SPC_TRY(budget.lend(sizeof(Place) + name.size() + parts * sizeof(Node::Part)));
  return std::make_shared<Place>(Place{.name = std::string(name),
                                       .own = own,
                                       .below = std::move(below),
                                       .up = {},
                                       .memory = std::move(memory)});
}

Result<Step> step(const Place& here, std::string_view name, LayersBelow& layers, Budget& budget,
                  const LayersBelow::Listing* listing = nullptr) {
  SPC_TRY(budget.walk());
  Inode* own = nullptr;
  if (here.own != nullptr) {
    const auto found = entries_of(*here.own).find(name);
    if (found != entries_of(*here.own).end()) own = found->second.get();
  }
  Step next;
  if (own != nullptr && !is_directory(*own)) {
    if (const auto* link = std::get_if<Symlink>(&own->content)) next.link = link->target;
    return next;
  }
  auto below =
      listing != nullptr ? SPC_TRY(listing->find(name)) : SPC_TRY(look_below(here, name, layers));
  if (below && below->is(S_IFLNK) && (own == nullptr || own->implied)) {
    next.link = SPC_TRY(layers.target(*below));
    return next;
  }
  if (below && !below->is(S_IFDIR)) below.reset();
  if (own != nullptr || below)
    next.place = SPC_TRY(make_place(name, own, std::move(below), budget));
  return next;
}

/// Creates the layer's own directories along `way`. Directories above an unsettled one become
/// unsettled.
Result<Inode*> make(const Way& way, Budget& budget) {
  std::vector<Place*> changed;
  for (Place* place = &way.last(); place->up && (place->own == nullptr || !place->own->unsettled);
       place = place->up.get()) {
    changed.push_back(place);
  }
  for (auto place = changed.rbegin(); place != changed.rend(); ++place) {
    SPC_TRY(budget.walk());
    if ((*place)->own != nullptr) {
      (*place)->own->unsettled = true;
      continue;
    }
    SPC_TRY(budget.keep(kEntryBytes + (*place)->name.size()));
    auto directory = new_directory();
    directory->implied = directory->unsettled = true;
    (*place)->own = directory.get();
    entries_of(*(*place)->up->own)[(*place)->name] = std::move(directory);
  }
  return way.last().own;
}

}  // namespace

Result<bool> follow(Way& way, std::string_view path, LayersBelow& layers, Budget& budget) {
  std::vector<std::string> targets;  // link targets, which `ahead` refers to
  targets.reserve(kMaxLinks);
  std::vector<std::string_view> ahead;
  if (path.starts_with('/')) way.back_to_root();
  push_target(ahead, path);
  while (!ahead.empty()) {
    const std::string_view part = ahead.back();
    ahead.pop_back();
    SPC_TRY(budget.walk());
    if (part == ".") continue;
    if (part == "..") {
      way.go_up();
      continue;
    }
    auto next = SPC_TRY(step(way.last(), part, layers, budget));
    if (next.link) {
      if (targets.size() == kMaxLinks) return false;
      if (next.link->starts_with('/')) way.back_to_root();
      push_target(ahead, targets.emplace_back(*std::move(next.link)));
    } else if (next.place && way.size() < kMaxDepth) {
      way.enter(std::move(next.place));
    } else {
      return false;
    }
  }
  return true;
}

Result<std::optional<Node>> find_below(const Way& root, std::string_view path, LayersBelow& layers,
                                       Budget& budget) {
  const auto parts = SPC_TRY(split_path(path));
  Way way = root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 == parts.size()) {
      if (way.last().own != nullptr) {
        const auto& own = entries_of(*way.last().own);
        const auto found = own.find(parts[i]);
        if (found != own.end() && std::holds_alternative<Whiteout>(found->second->content)) break;
      }
      return look_below(way.last(), parts[i], layers);
    }
    if (!SPC_TRY(follow(way, parts[i], layers, budget))) break;
  }
  return std::optional<Node>();
}

Result<void> take_attributes(Inode& inode, const Node& node, LayersBelow& layers, Budget& budget) {
  inode.mode = static_cast<std::uint16_t>(node.top().mode & 01777U);
  inode.mtime = node.top().mtime;
  inode.xattrs.reset();
  for (auto& [name, value] : SPC_TRY(layers.xattrs(node))) {
    Xattr xattr{std::move(name), std::move(value)};
    if (!is_kept(xattr)) continue;
    SPC_TRY(budget.keep(bytes_of(xattr)));
    if (!inode.xattrs) inode.xattrs = std::make_unique<std::vector<Xattr>>();
    inode.xattrs->push_back(std::move(xattr));
  }
  return {};
}

Result<void> Settling::settle(const Way& way) {
  if (way.size() >= kMaxDepth) return too_deep();
  Inode& directory = *way.last().own;
  struct Inside {
    std::string name;
    std::shared_ptr<Inode> inode;
    Step next;
  };
  std::vector<Inside> all;
  {
    const bool hidden = directory.opaque || !way.last().below;
    const auto listing = hidden ? LayersBelow::Listing() : SPC_TRY(layers_.list(*way.last().below));
    for (const auto& [name, inode] : entries_of(directory)) {
      SPC_TRY(budget_.walk());
      if (!is_directory(*inode) || !inode->unsettled) continue;
      auto next = SPC_TRY(step(way.last(), name, layers_, budget_, &listing));
      all.push_back({name, inode, std::move(next)});
    }
  }
  for (auto& [name, inode, next] : all) {
    Way target = way;
    if (!next.link) {
      target.enter(std::move(next.place));
      SPC_TRY(settle(target));
      continue;
    }
    // a dangling link: the new directory replaces it
    if (!SPC_TRY(follow(target, *next.link, layers_, budget_))) continue;
    entries_of(directory).erase(name);
    SPC_TRY(place_all(*inode, target));
  }
  return {};
}

Result<void> Settling::place_all(const Inode& moved, const Way& way) {
  if (nested_ == kMaxMoved) return too_deep();
  ++nested_;
  Inode& directory = *SPC_TRY(make(way, budget_));
  if (moved.opaque) directory.opaque = true;
  for (const auto& [name, inode] : std::get<Directory>(moved.content))
    SPC_TRY(place(name, inode, way));
  --nested_;
  return {};
}

/// Keeps the archive's entry under the directory's real name.
Result<void> Settling::place(const std::string& name, const std::shared_ptr<Inode>& inode,
                             const Way& way) {
  SPC_TRY(budget_.walk());
  if (is_directory(*inode)) return place_directory(name, inode, way);
  auto& entries = entries_of(*way.last().own);
  if (std::holds_alternative<Whiteout>(inode->content)) {
    add_whiteout(entries, name, inode->mtime);
    return {};
  }
  auto& there = entries[name];
  if (!there || std::holds_alternative<Whiteout>(there->content)) there = inode;
  return {};
}

Result<void> Settling::place_directory(const std::string& name, const std::shared_ptr<Inode>& inode,
                                       const Way& way) {
  auto& entries = entries_of(*way.last().own);
  const auto there = entries.find(name);
  const bool hides =
      there != entries.end() && std::holds_alternative<Whiteout>(there->second->content);
  Way target = way;
  if (there != entries.end() && is_directory(*there->second) && !inode->implied) {
    Inode& existing = *there->second;
    existing.mode = inode->mode;
    existing.mtime = inode->mtime;
    existing.implied = false;
    existing.xattrs = std::move(inode->xattrs);
    target.enter(SPC_TRY(step(way.last(), name, layers_, budget_)).place);
    return place_all(*inode, target);
  }
  if (there != entries.end() && !hides) {
    if (!SPC_TRY(follow(target, name, layers_, budget_))) return in_the_way(name);
    return place_all(*inode, target);
  }
  if (inode->implied && !hides) {
    auto next = SPC_TRY(step(way.last(), name, layers_, budget_));
    if (next.link && SPC_TRY(follow(target, *next.link, layers_, budget_)))
      return place_all(*inode, target);
  }
  if (hides) {
    inode->opaque = true;
    inode->implied = false;
  }
  entries[name] = inode;
  target = way;
  auto next = SPC_TRY(step(way.last(), name, layers_, budget_));
  target.enter(next.place ? std::move(next.place)
                          : SPC_TRY(make_place(name, inode.get(), {}, budget_)));
  return settle(target);
}

// --- fitting ---

namespace {

bool is_whiteout_here(const Inode& inode) {
  return std::holds_alternative<Whiteout>(inode.content);
}

/// `hidden`: a directory above is opaque, so the layers below do not matter.
bool depends(Inode& directory, bool hidden) {
  hidden = hidden || directory.opaque;
  bool found = false;
  auto& entries = std::get<Directory>(directory.content);
  for (auto entry = entries.begin(); entry != entries.end();) {
    Inode& inode = *entry->second;
    if (is_whiteout_here(inode) && hidden) {
      entry = entries.erase(entry);
      continue;
    }
    if (std::holds_alternative<Directory>(inode.content)) {
      const bool inside = depends(inode, hidden);
      inode.unsettled = inside || (inode.implied && !hidden);
      found = inode.unsettled || found;
    } else {
      found = is_whiteout_here(inode) || std::holds_alternative<LinkBelow>(inode.content) || found;
    }
    ++entry;
  }
  return found;
}

/// Copies of files below. Two hard links to one file become links to one copy.
class Copies {
 public:
  Copies(LayersBelow& layers, DataWriter& writer, Budget& budget)
      : layers_(layers), writer_(writer), budget_(budget) {}

  Result<std::shared_ptr<Inode>> of(const Node& node) {
    auto& copy = made_[{node.parts.front().layer, node.top().reference}];
    if (!copy) copy = SPC_TRY(make(node));
    return copy;
  }

 private:
  static constexpr std::size_t kStep = 1 << 20;

  Result<std::shared_ptr<Inode>> make(const Node& node) {
    auto inode = std::make_shared<Inode>();
    SPC_TRY(budget_.keep(kEntryBytes + (node.is(S_IFLNK) ? node.top().size : 0)));
    SPC_TRY(take_attributes(*inode, node, layers_, budget_));
    if (node.is(S_IFREG)) {
      inode->content.emplace<FileData>();
      SPC_TRY(copy_data(node, inode));
    } else if (node.is(S_IFLNK)) {
      inode->content = Symlink{SPC_TRY(layers_.target(node))};
      inode->mode = 0777;
    } else {
      inode->content = Fifo();
    }
    return inode;
  }

  /// Checks only large files: without the hole, the copy would store too much.
  Result<bool> has_hole(const Node& node) {
    constexpr std::uint64_t kLarge = 16 << 20;
    const std::uint64_t size = node.top().size;
    for (std::uint64_t at = 0; size > kLarge && at < size;) {
      for (const fuse::Piece& piece : SPC_TRY(layers_.read(node, at, kStep))) {
        if (!piece.block) return true;
        at += piece.size;
      }
    }
    return false;
  }

  Result<void> copy_data(const Node& node, const std::shared_ptr<Inode>& inode) {
    const std::uint64_t size = node.top().size;
    SPC_TRY(budget_.fill(size));
    const bool sparse = SPC_TRY(has_hole(node));
    SPC_TRY(writer_.begin(inode, size, sparse));
    for (std::uint64_t at = 0; at < size;) {
      for (const fuse::Piece& piece : SPC_TRY(layers_.read(node, at, kStep))) {
        at += piece.size;
        if (!piece.block) {
          SPC_TRY(writer_.add_zeros(piece.size));
        } else {
          SPC_TRY(writer_.add_copy({piece.block->bytes.get() + piece.offset, piece.size}));
        }
      }
    }
    return writer_.end();
  }

  LayersBelow& layers_;
  DataWriter& writer_;
  Budget& budget_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::shared_ptr<Inode>> made_;
};

/// Replaces hard links to files below by copies.
class LinksBelow {
 public:
  LinksBelow(const Way& root, LayersBelow& layers, DataWriter& writer, Budget& budget)
      : root_(root), layers_(layers), budget_(budget), copies_(layers, writer, budget) {}

  Result<void> copy(Inode& directory) {
    for (auto& [name, inode] : std::get<Directory>(directory.content)) {
      if (std::holds_alternative<Directory>(inode->content)) {
        if (inode->unsettled) SPC_TRY(copy(*inode));
      } else if (const auto* link = std::get_if<LinkBelow>(&inode->content)) {
        SPC_TRY_DURING("entry " + in_quotes(name), replace(inode, link->target));
      }
    }
    return {};
  }

 private:
  /// Replaces a link. Looks up the target once for all names of the link.
  Result<void> replace(std::shared_ptr<Inode>& inode, const std::string& target) {
    auto& copy = copied_[inode];
    if (!copy) {
      const auto found = SPC_TRY(find_below(root_, target, layers_, budget_));
      if (!found || found->is(S_IFDIR)) {
        return Error(ErrorKind::refused,
                     formatted("it is a hard link to {}, which is {}", in_quotes(target),
                               found ? "a directory" : "not in the image"));
      }
      copy = SPC_TRY(copies_.of(*found));
    }
    inode = copy;
    return {};
  }

  const Way& root_;
  LayersBelow& layers_;
  Budget& budget_;
  Copies copies_;
  std::map<std::shared_ptr<Inode>, std::shared_ptr<Inode>> copied_;
};

/// Last step: sets attributes of implied directories and drops whiteouts without a target.
class Inheriting {
 public:
  Inheriting(LayersBelow& layers, Budget& budget) : layers_(layers), budget_(budget) {}

  /// `node`: the directory below, empty if there is none.
  Result<void> inherit(Inode& directory, const std::optional<Node>& node) {
    auto& entries = std::get<Directory>(directory.content);
    for (auto& [entry, there, memory] : SPC_TRY(look_below(directory, node))) {
      Inode& inode = *entry->second;
      if (inode.implied && there) SPC_TRY(take_attributes(inode, *there, layers_, budget_));
      SPC_TRY(inherit(inode, there));
      // A directory that only whiteouts implied is empty now.
      if (inode.implied && !there && std::get<Directory>(inode.content).empty())
        entries.erase(entry);
    }
    return {};
  }

 private:
  struct Inside {
    Directory::iterator entry;
    std::optional<Node> there;
    Budget::Loan memory;
  };

  /// Returns the subdirectories with their nodes below. Drops whiteouts without a target.
  Result<std::vector<Inside>> look_below(Inode& directory, const std::optional<Node>& node) {
    auto& entries = std::get<Directory>(directory.content);
    std::vector<Inside> inside;
    const bool hidden = directory.opaque || !node;
    const auto listing = hidden ? LayersBelow::Listing() : SPC_TRY(layers_.list(*node));
    for (auto entry = entries.begin(); entry != entries.end();) {
      SPC_TRY(budget_.walk());
      Inode& inode = *entry->second;
      const bool is_directory = std::holds_alternative<Directory>(inode.content) && inode.unsettled;
      std::optional<Node> there;
      if (is_directory || is_whiteout_here(inode)) there = SPC_TRY(listing.find(entry->first));
      if (is_whiteout_here(inode) && !there) {
        entry = entries.erase(entry);
        continue;
      }
      if (there && !there->is(S_IFDIR)) there.reset();
      if (is_directory) {
        auto memory = SPC_TRY(
            budget_.lend(sizeof(Inside) + (there ? there->parts.size() * sizeof(Node::Part) : 0)));
        inside.push_back({entry, std::move(there), std::move(memory)});
      }
      ++entry;
    }
    return inside;
  }

  LayersBelow& layers_;
  Budget& budget_;
};

class Merging {
 public:
  Merging(LayersBelow& run, DataWriter& writer, std::uint64_t most_entries, Budget& budget)
      : run_(run), copies_(run, writer, budget), budget_(budget), most_entries_(most_entries) {}

  Result<void> fill(Inode& directory, const Node& node) {
    SPC_TRY(take_attributes(directory, node, run_, budget_));
    directory.opaque = node.hides;
    auto& entries = std::get<Directory>(directory.content);
    const auto listing = SPC_TRY(run_.list(node));
    for (const auto& [name, type] : listing.types_and_whiteouts()) {
      if (++entries_ > most_entries_) {
        return Error(ErrorKind::refused,
                     formatted("the layers have more than {} entries", most_entries_));
      }
      SPC_TRY(budget_.keep(kEntryBytes + name.size()));
      const auto shown = SPC_TRY(listing.find(name));
      if (!shown) {
        add_whiteout(entries, name, directory.mtime);
      } else if (shown->is(S_IFDIR)) {
        auto inside = new_directory();
        SPC_TRY(fill(*inside, *shown));
        entries.emplace(name, std::move(inside));
      } else {
        entries.emplace(name, SPC_TRY(copies_.of(*shown)));
      }
    }
    return {};
  }
  [[nodiscard]] std::uint64_t entries() const { return entries_; }

 private:
  LayersBelow& run_;
  Copies copies_;
  Budget& budget_;
  std::uint64_t most_entries_;
  std::uint64_t entries_ = 0;
};

/// Adds whiteouts for everything that is listed under `root`.
Result<void> hide(const LayersBelow::Listing& listing, Inode& root, Budget& budget) {
  auto& entries = std::get<Directory>(root.content);
  for (const auto& [name, type] : listing.types()) {
    SPC_TRY(budget.keep(kEntryBytes + name.size()));
    add_whiteout(entries, name, root.mtime);
  }
  return {};
}

}  // namespace

bool depends_on_layers_below(Inode& root) { return depends(root, false) || root.opaque; }

Result<void> fit(Inode& root, LayersBelow& layers, DataWriter& writer, Budget& budget) {
  const auto below = SPC_TRY(layers.root());
  const bool hides_all = std::exchange(root.opaque, false) && below;
  auto first = std::make_shared<Place>();
  first->own = &root;
  if (!hides_all) first->below = below;
  const Way start(std::move(first));
  SPC_TRY(Settling(layers, budget).settle(start));
  SPC_TRY(LinksBelow(start, layers, writer, budget).copy(root));
  SPC_TRY(Inheriting(layers, budget).inherit(root, start.last().below));
  return hides_all ? hide(SPC_TRY(layers.list(*below)), root, budget) : Result<void>();
}

Result<std::uint64_t> merge(Inode& root, LayersBelow& run, DataWriter& writer,
                            std::uint64_t most_entries, Budget& budget) {
  Merging merging(run, writer, most_entries, budget);
  const auto shown = SPC_TRY(run.root());
  if (shown) SPC_TRY(merging.fill(root, *shown));
  return merging.entries();
}

}  // namespace spc::below
