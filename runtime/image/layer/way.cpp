#include "image/layer/way.hpp"

#include <sys/stat.h>

#include "base/format.hpp"

namespace spc::below {
namespace {

constexpr unsigned kMaxMoved = 256;  ///< directories within one that moves; each keeps a way

Error too_deep() { return Error(ErrorKind::refused, "the directories are nested too deeply"); }

Error in_the_way(std::string_view name) {
  return Error(ErrorKind::refused, formatted("{} in a path is not a directory", in_quotes(name)));
}

Directory& entries_of(Inode& directory) { return std::get<Directory>(directory.content); }

bool is_directory(const Inode& inode) { return std::holds_alternative<Directory>(inode.content); }

/// What the layers below have of `name` in this directory; nothing if the layer hides them.
Result<std::optional<Node>> look_below(const Place& here, std::string_view name, LayersBelow& layers) {
  if (!here.below || (here.own != nullptr && here.own->opaque)) return std::optional<Node>();
  return SPC_TRY(layers.list(*here.below)).find(name);
}

/// One step: to a directory, or the target of a link that must be followed.
struct Step {
  std::optional<Place> place;
  std::optional<std::string> link;
};

Result<Step> step(const Place& here, std::string_view name, LayersBelow& layers,
                  const LayersBelow::Listing* listing = nullptr) {
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
  auto below = listing != nullptr ? SPC_TRY(listing->find(name)) : SPC_TRY(look_below(here, name, layers));
  if (below && below->is(S_IFLNK) && (own == nullptr || own->implied)) {
    next.link = SPC_TRY(layers.target(*below));
    return next;
  }
  if (below && !below->is(S_IFDIR)) below.reset();
  if (own != nullptr || below) next.place = Place{.name = std::string(name), .own = own, .below = std::move(below)};
  return next;
}

/// Gives the layer directories of its own as far as `way` leads.
Inode& make(Way& way) {
  for (std::size_t i = 1; i < way.size(); ++i) {
    if (way[i].own != nullptr) {
      way[i].own->unsettled = true;
      continue;
    }
    auto directory = new_directory();
    directory->implied = directory->unsettled = true;
    way[i].own = directory.get();
    entries_of(*way[i - 1].own)[way[i].name] = std::move(directory);
  }
  return *way.back().own;
}

}  // namespace

Result<bool> follow(Way& way, std::string_view path, LayersBelow& layers) {
  std::vector<std::string> targets;  // of the links, which `ahead` refers to
  targets.reserve(kMaxLinks);
  std::vector<std::string_view> ahead;
  if (path.starts_with('/')) way.resize(1);
  push_target(ahead, path);
  while (!ahead.empty()) {
    const std::string_view part = ahead.back();
    ahead.pop_back();
    if (part == ".") continue;
    if (part == "..") {
      if (way.size() > 1) way.pop_back();
      continue;
    }
    auto next = SPC_TRY(step(way.back(), part, layers));
    if (next.link) {
      if (targets.size() == kMaxLinks) return false;
      if (next.link->starts_with('/')) way.resize(1);
      push_target(ahead, targets.emplace_back(*std::move(next.link)));
    } else if (next.place && way.size() < kMaxDepth) {
      way.push_back(*std::move(next.place));
    } else {
      return false;
    }
  }
  return true;
}

Result<std::optional<Node>> find_below(const Way& root, std::string_view path, LayersBelow& layers) {
  const auto parts = SPC_TRY(split_path(path));
  Way way = root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i + 1 == parts.size()) {
      if (way.back().own != nullptr) {
        const auto& own = entries_of(*way.back().own);
        const auto found = own.find(parts[i]);
        if (found != own.end() && std::holds_alternative<Whiteout>(found->second->content)) break;
      }
      return look_below(way.back(), parts[i], layers);
    }
    if (!SPC_TRY(follow(way, parts[i], layers))) break;
  }
  return std::optional<Node>();
}

void take_attributes(Inode& inode, const Node& node, std::vector<std::pair<std::string, std::string>> xattrs) {
  inode.mode = static_cast<std::uint16_t>(node.top().mode & 01777U);
  inode.mtime = node.top().mtime;
  inode.xattrs.reset();
  for (auto& [name, value] : xattrs) {
    Xattr xattr{std::move(name), std::move(value)};
    if (!is_kept(xattr)) continue;
    if (!inode.xattrs) inode.xattrs = std::make_unique<std::vector<Xattr>>();
    inode.xattrs->push_back(std::move(xattr));
  }
}

Result<void> Settling::settle(Way& way) {
  if (way.size() >= kMaxDepth) return too_deep();
  Inode& directory = *way.back().own;
  struct Inside {
    std::string name;
    std::shared_ptr<Inode> inode;
    Step next;
  };
  std::vector<Inside> all;
  {
    const bool hidden = directory.opaque || !way.back().below;
    const auto listing = hidden ? LayersBelow::Listing() : SPC_TRY(layers_.list(*way.back().below));
    for (const auto& [name, inode] : entries_of(directory)) {
      if (!is_directory(*inode) || !inode->unsettled) continue;
      auto next = SPC_TRY(step(way.back(), name, layers_, &listing));
      all.push_back({name, inode, std::move(next)});
    }
  }
  for (auto& [name, inode, next] : all) {
    if (!next.link) {
      way.push_back(*std::move(next.place));
      SPC_TRY(settle(way));
      way.pop_back();
      continue;
    }
    Way target = way;
    if (!SPC_TRY(follow(target, *next.link, layers_))) continue;  // it leads nowhere: the new directory takes its place
    entries_of(directory).erase(name);
    SPC_TRY(place_all(*inode, target));
  }
  return {};
}

Result<void> Settling::place_all(const Inode& moved, const Way& way) {
  if (nested_ == kMaxMoved) return too_deep();
  ++nested_;
  Way target = way;
  Inode& directory = make(target);
  if (moved.opaque) directory.opaque = true;
  for (const auto& [name, inode] : std::get<Directory>(moved.content)) SPC_TRY(place(name, inode, target));
  --nested_;
  return {};
}

/// What the archive has under the directory's real name stays.
Result<void> Settling::place(const std::string& name, const std::shared_ptr<Inode>& inode, const Way& way) {
  if (is_directory(*inode)) return place_directory(name, inode, way);
  auto& entries = entries_of(*way.back().own);
  if (std::holds_alternative<Whiteout>(inode->content)) {
    add_whiteout(entries, name, inode->mtime);
    return {};
  }
  auto& there = entries[name];
  if (!there || std::holds_alternative<Whiteout>(there->content)) there = inode;
  return {};
}

Result<void> Settling::place_directory(const std::string& name, const std::shared_ptr<Inode>& inode, const Way& way) {
  auto& entries = entries_of(*way.back().own);
  const auto there = entries.find(name);
  const bool hides = there != entries.end() && std::holds_alternative<Whiteout>(there->second->content);
  Way target = way;
  if (there != entries.end() && is_directory(*there->second) && !inode->implied) {
    Inode& existing = *there->second;
    existing.mode = inode->mode;
    existing.mtime = inode->mtime;
    existing.implied = false;
    existing.xattrs = std::move(inode->xattrs);
    target.push_back(*SPC_TRY(step(way.back(), name, layers_)).place);
    return place_all(*inode, target);
  }
  if (there != entries.end() && !hides) {
    if (!SPC_TRY(follow(target, name, layers_))) return in_the_way(name);
    return place_all(*inode, target);
  }
  if (inode->implied && !hides) {
    auto next = SPC_TRY(step(way.back(), name, layers_));
    if (next.link && SPC_TRY(follow(target, *next.link, layers_))) return place_all(*inode, target);
  }
  if (hides) {
    inode->opaque = true;
    inode->implied = false;
  }
  entries[name] = inode;
  target = way;
  auto next = SPC_TRY(step(way.back(), name, layers_));
  target.push_back(next.place ? *std::move(next.place) : Place{.name = name, .own = inode.get(), .below = {}});
  return settle(target);
}

}  // namespace spc::below
