#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "image/layer/below/layers_below.hpp"
#include "image/layer/tree.hpp"

namespace spc::below {

/// A directory of the image as it is with the layer on top: what the layer itself has of it, what
/// lies below, or both.
struct Place {
  std::string name;
  Inode* own = nullptr;
  std::optional<Node> below;
  std::shared_ptr<Place> up;  ///< the directory that it is in; the root has none
  std::size_t depth = 1;      ///< places from the root to here
  Budget::Loan memory;
};
/// The directories from the root to one of them. Ways that begin alike share their places.
class Way {
 public:
  explicit Way(std::shared_ptr<Place> root) : root_(std::move(root)), last_(root_) {}

  [[nodiscard]] Place& last() const { return *last_; }
  [[nodiscard]] std::size_t size() const { return last_->depth; }
  void back_to_root() { last_ = root_; }
  /// The root stays.
  void go_up() {
    if (last_->up) last_ = last_->up;
  }
  /// The place is new.
  void enter(std::shared_ptr<Place> place) {
    place->depth = size() + 1;
    place->up = std::exchange(last_, place);
  }

 private:
  std::shared_ptr<Place> root_, last_;
};

/// Follows `path` (a link's target, or one name) from the end of `way`, links included, and never
/// above the root. True if it leads to a directory, where `way` then ends.
Result<bool> follow(Way& way, std::string_view path, LayersBelow& layers, Budget& budget);

/// What lies below under this path; its last name is not followed. Empty: nothing.
Result<std::optional<Node>> find_below(const Way& root, std::string_view path, LayersBelow& layers,
                                       Budget& budget);

/// Permissions, date and the user's attributes of what lies below.
Result<void> take_attributes(Inode& inode, const Node& node, LayersBelow& layers, Budget& budget);

/// Moves the entries of implied directories that are links below to where these lead.
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
  unsigned nested_ = 0;  ///< calls of place_all
};

}  // namespace spc::below
