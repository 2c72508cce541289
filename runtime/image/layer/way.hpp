#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "image/layer/below/layers_below.hpp"
#include "image/layer/tree.hpp"

namespace spc::below {

/// A directory of the image as it is with the layer on top: what the layer itself has of it, what lies below, or both.
struct Place {
  std::string name;
  Inode* own = nullptr;
  std::optional<Node> below;
};
/// The directories from the root to one of them.
using Way = std::vector<Place>;

/// Follows `path` (a link's target, or one name) from the end of `way`, links included, and never above the root. True if it leads
/// to a directory, where `way` then ends.
Result<bool> follow(Way& way, std::string_view path, LayersBelow& layers);

/// What lies below under this path; its last name is not followed. Empty: nothing.
Result<std::optional<Node>> find_below(const Way& root, std::string_view path, LayersBelow& layers);

/// Permissions, date and the user's attributes of what lies below.
void take_attributes(Inode& inode, const Node& node, std::vector<std::pair<std::string, std::string>> xattrs);

/// Moves the entries of implied directories that are links below to where these lead.
class Settling {
 public:
  /// `layers` is borrowed.
  explicit Settling(LayersBelow& layers) : layers_(layers) {}

  /// What is in the directory at the end of `way`, which is as before afterwards.
  Result<void> settle(Way& way);

 private:
  Result<void> place_all(const Inode& moved, const Way& way);
  Result<void> place(const std::string& name, const std::shared_ptr<Inode>& inode, const Way& way);
  Result<void> place_directory(const std::string& name, const std::shared_ptr<Inode>& inode, const Way& way);

  LayersBelow& layers_;
  unsigned nested_ = 0;  ///< calls of place_all
};

}  // namespace spc::below
