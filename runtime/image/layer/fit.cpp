#include "image/layer/fit.hpp"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "base/format.hpp"
#include "image/layer/way.hpp"

namespace spc::below {
namespace {

bool is_whiteout_here(const Inode& inode) { return std::holds_alternative<Whiteout>(inode.content); }

/// `hidden`: a directory above it is opaque, so nothing below counts.
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

/// The copies of files below; two hard links to one file are links of one copy.
class Copies {
 public:
  Copies(LayersBelow& layers, DataWriter& writer) : layers_(layers), writer_(writer) {}

  Result<std::shared_ptr<Inode>> of(const Node& node) {
    auto& copy = made_[{node.parts.front().layer, node.top().reference}];
    if (!copy) copy = SPC_TRY(make(node));
    return copy;
  }

 private:
  static constexpr std::size_t kStep = 1 << 20;

  Result<std::shared_ptr<Inode>> make(const Node& node) {
    auto inode = std::make_shared<Inode>();
    take_attributes(*inode, node, SPC_TRY(layers_.xattrs(node)));
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

  /// Only of large files: of what they leave out the copy would store too much.
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
  std::map<std::pair<std::size_t, std::uint64_t>, std::shared_ptr<Inode>> made_;
};

/// Replaces each hard link to what is below by its copy.
Result<void> copy_linked(Inode& directory, const Way& root, LayersBelow& layers, Copies& copies) {
  for (auto& [name, inode] : std::get<Directory>(directory.content)) {
    if (std::holds_alternative<Directory>(inode->content)) {
      if (inode->unsettled) SPC_TRY(copy_linked(*inode, root, layers, copies));
    } else if (const auto* link = std::get_if<LinkBelow>(&inode->content)) {
      const auto found = SPC_TRY(find_below(root, link->target, layers));
      if (!found || found->is(S_IFDIR)) {
        return Error(ErrorKind::refused, formatted("entry {}: it is a hard link to {}, which is {}", in_quotes(name),
                                                   in_quotes(link->target), found ? "a directory" : "not in the image"));
      }
      inode = SPC_TRY(copies.of(*found));
    }
  }
  return {};
}

/// Last: attributes of implied directories, and whiteouts of nothing. `node`: what is below; empty: nothing.
Result<void> inherit(Inode& directory, const std::optional<Node>& node, LayersBelow& layers) {
  auto& entries = std::get<Directory>(directory.content);
  std::vector<std::pair<Directory::iterator, std::optional<Node>>> inside;
  {
    const bool hidden = directory.opaque || !node;
    const auto listing = hidden ? LayersBelow::Listing() : SPC_TRY(layers.list(*node));
    for (auto entry = entries.begin(); entry != entries.end();) {
      Inode& inode = *entry->second;
      const bool is_directory = std::holds_alternative<Directory>(inode.content) && inode.unsettled;
      std::optional<Node> there;
      if (is_directory || is_whiteout_here(inode)) there = SPC_TRY(listing.find(entry->first));
      if (is_whiteout_here(inode) && !there) {
        entry = entries.erase(entry);
        continue;
      }
      if (there && !there->is(S_IFDIR)) there.reset();
      if (is_directory) inside.emplace_back(entry, std::move(there));
      ++entry;
    }
  }
  for (auto& [entry, there] : inside) {
    Inode& inode = *entry->second;
    if (inode.implied && there) take_attributes(inode, *there, SPC_TRY(layers.xattrs(*there)));
    SPC_TRY(inherit(inode, there, layers));
    // Nothing but whiteouts has implied it.
    if (inode.implied && !there && std::get<Directory>(inode.content).empty()) entries.erase(entry);
  }
  return {};
}

class Merging {
 public:
  Merging(LayersBelow& run, DataWriter& writer, std::uint64_t most_entries)
      : run_(run), copies_(run, writer), most_entries_(most_entries) {}

  Result<void> fill(Inode& directory, const Node& node) {
    take_attributes(directory, node, SPC_TRY(run_.xattrs(node)));
    directory.opaque = node.hides;
    auto& entries = std::get<Directory>(directory.content);
    const auto listing = SPC_TRY(run_.list(node));
    for (const auto& [name, type] : listing.types_and_whiteouts()) {
      if (++entries_ > most_entries_) {
        return Error(ErrorKind::refused, formatted("the layers have more than {} entries", most_entries_));
      }
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
  std::uint64_t most_entries_;
  std::uint64_t entries_ = 0;
};

}  // namespace

bool depends_on_layers_below(Inode& root) { return depends(root, false); }

Result<void> fit(Inode& root, LayersBelow& layers, DataWriter& writer) {
  const auto below = SPC_TRY(layers.root());
  Way start;
  start.push_back({.name = {}, .own = &root, .below = below});
  Settling settling(layers);
  SPC_TRY(settling.settle(start));
  Copies copies(layers, writer);
  SPC_TRY(copy_linked(root, start, layers, copies));
  return inherit(root, below, layers);
}

Result<std::uint64_t> merge(Inode& root, LayersBelow& run, DataWriter& writer, std::uint64_t most_entries) {
  Merging merging(run, writer, most_entries);
  const auto shown = SPC_TRY(run.root());
  if (shown) SPC_TRY(merging.fill(root, *shown));
  return merging.entries();
}

}  // namespace spc::below
