#include "image/layer/fit.hpp"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "base/format.hpp"
#include "image/layer/way.hpp"

namespace spc::below {
namespace {

bool is_whiteout_here(const Inode& inode) {
  return std::holds_alternative<Whiteout>(inode.content);
}

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

/// Replaces hard links to what is below by copies.
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
  /// Names of one link are looked up once.
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

/// Last: attributes of implied directories, and whiteouts of nothing.
class Inheriting {
 public:
  Inheriting(LayersBelow& layers, Budget& budget) : layers_(layers), budget_(budget) {}

  /// `node`: what is below; empty: nothing.
  Result<void> inherit(Inode& directory, const std::optional<Node>& node) {
    auto& entries = std::get<Directory>(directory.content);
    for (auto& [entry, there, memory] : SPC_TRY(look_below(directory, node))) {
      Inode& inode = *entry->second;
      if (inode.implied && there) SPC_TRY(take_attributes(inode, *there, layers_, budget_));
      SPC_TRY(inherit(inode, there));
      // Nothing but whiteouts has implied it.
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

  /// The directories in it, and what is below them. Takes away whiteouts of nothing.
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

/// Hides everything that is listed under `root`.
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
