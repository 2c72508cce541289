#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/layers_below.hpp"
#include "filesystem/data_writer.hpp"
#include "filesystem/tree.hpp"

namespace spc::below {

// --- path walk ---

/// A directory of the image with the layer on top: the layer's own directory, the one below, or
/// both.
struct Place {
  std::string name;
  Inode* own = nullptr;
  std::optional<Node> below;
  std::shared_ptr<Place> up;  ///< parent directory, null for the root
  std::size_t depth = 1;      ///< number of places from the root to here
  Budget::Loan memory;
};
/// The directories from the root to one of them. Ways with a common beginning share its places.
class Way {
 public:
  explicit Way(std::shared_ptr<Place> root) : root_(std::move(root)), last_(root_) {}

  [[nodiscard]] Place& last() const { return *last_; }
  [[nodiscard]] std::size_t size() const { return last_->depth; }
  void back_to_root() { last_ = root_; }
  /// Goes to the parent. The root has none.
  void go_up() {
    if (last_->up) last_ = last_->up;
  }
  /// Enters a new place.
  void enter(std::shared_ptr<Place> place) {
    place->depth = size() + 1;
    place->up = std::exchange(last_, place);
  }

 private:
  std::shared_ptr<Place> root_, last_;
};

/// Follows `path` (a link's target, or one name) from the end of `way`, including links, and never
/// above the root. Returns whether it leads to a directory, where `way` then ends.
Result<bool> follow(Way& way, std::string_view path, LayersBelow& layers, Budget& budget);

/// Returns the node of this path below. Does not follow a link at its last name. Empty if there is
/// none.
Result<std::optional<Node>> find_below(const Way& root, std::string_view path, LayersBelow& layers,
                                       Budget& budget);

/// Copies permissions, date and user attributes from the node below.
Result<void> take_attributes(Inode& inode, const Node& node, LayersBelow& layers, Budget& budget);

/// Moves the entries of implied directories that are links below to the links' targets.
class Settling {
 public:
  /// `layers` and `budget` are borrowed.
  Settling(LayersBelow& layers, Budget& budget) : layers_(layers), budget_(budget) {}

  /// Returns the entries of the directory at the end of `way`.
  Result<void> settle(const Way& way);

 private:
  Result<void> place_all(const Inode& moved, const Way& way);
  Result<void> place(const std::string& name, const std::shared_ptr<Inode>& inode, const Way& way);
  Result<void> place_directory(const std::string& name, const std::shared_ptr<Inode>& inode,
                               const Way& way);

  LayersBelow& layers_;
  Budget& budget_;
  unsigned nested_ = 0;  ///< nested calls of place_all
};

// --- fitting ---

/// Drops whiteouts that have no effect on any layers below, because their directory is opaque.
/// Returns whether the rest of the layer depends on the layers below: then it has to be fitted to
/// them.
bool depends_on_layers_below(Inode& root);

/// Changes the layer's tree to the difference that extracting its archive over the layers below
/// would make:
///
/// - A directory that the archive only implies keeps the permissions, date and attributes that it
///   has below. If it is a link there, its entries move to the link's target. If it is missing
///   there, or the link is dangling, a new directory with mode 0755 is created.
/// - A hard link to a file below becomes a copy of that file.
/// - A whiteout without a target below is dropped: overlayfs would show it in a directory that no
///   other layer has.
/// - An opaque root, which overlayfs ignores, becomes a whiteout of each name below, and opaque
///   directories.
///
/// `writer` stores the copied data. The work counts for `budget`.
Result<void> fit(Inode& root, LayersBelow& layers, DataWriter& writer, Budget& budget);

/// Fills the empty directory `root` with the merged view of the layers of `run`, as overlayfs shows
/// it. Entries of lower layers that they hide stay hidden, by whiteouts and opaque directories.
/// `writer` stores the data. Returns the number of entries. More than `most_entries` are refused.
Result<std::uint64_t> merge(Inode& root, LayersBelow& run, DataWriter& writer,
                            std::uint64_t most_entries, Budget& budget);

}  // namespace spc::below
