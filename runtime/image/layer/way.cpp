#include "image/layer/way.hpp"

#include <sys/stat.h>

#include "base/format.hpp"

namespace spc::below {
namespace {

constexpr unsigned kMaxMoved =
    256;  ///< directories within one that moves: they are placed by recursion

Error too_deep() { return Error(ErrorKind::refused, "the directories are nested too deeply"); }

Error in_the_way(std::string_view name) {
  return Error(ErrorKind::refused, formatted("{} in a path is not a directory", in_quotes(name)));
}

Directory& entries_of(Inode& directory) { return std::get<Directory>(directory.content); }

bool is_directory(const Inode& inode) { return std::holds_alternative<Directory>(inode.content); }

/// What the layers below have of `name` in this directory; nothing if the layer hides them.
Result<std::optional<Node>> look_below(const Place& here, std::string_view name,
                                       LayersBelow& layers) {
  if (!here.below || (here.own != nullptr && here.own->opaque)) return std::optional<Node>();
  return SPC_TRY(layers.list(*here.below)).find(name);
}

/// One step: to a directory, or the target of a link that must be followed.
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

/// Gives the layer directories of its own as far as `way` leads. Directories above an unsettled one
/// are unsettled.
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
  std::vector<std::string> targets;  // of the links, which `ahead` refers to
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
    if (!SPC_TRY(follow(target, *next.link, layers_, budget_)))
      continue;  // it leads nowhere: the new directory takes its place
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

/// What the archive has under the directory's real name stays.
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

}  // namespace spc::below
