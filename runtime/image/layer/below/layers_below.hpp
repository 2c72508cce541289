#pragma once

#include <sys/stat.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/fuse/image_reader.hpp"
#include "image/layer/below/budget.hpp"

namespace spc::below {

/// Something that the layers below show under one name: of a directory, its parts in all layers
/// that are merged, the topmost first; of anything else, the one that is seen.
struct Node {
  struct Part {
    std::size_t layer = 0;
    fuse::Inode inode;
  };
  std::vector<Part> parts;
  bool hides = false;  ///< directories: what layers below those of `parts` have under this name
                       ///< does not count

  [[nodiscard]] const fuse::Inode& top() const { return parts.front().inode; }
  [[nodiscard]] bool is(mode_t type) const { return (top().mode & S_IFMT) == type; }
};

/// The layers under the one being converted, as overlayfs shows them together. They are layers of
/// the store: layer-verifier has accepted them.
class LayersBelow {
 public:
  /// The bottom layer first. What is looked up counts as steps of `budget`, which is borrowed.
  static Result<LayersBelow> open(std::vector<UniqueFd> layers, Budget& budget);

  /// Empty if there are no layers.
  Result<std::optional<Node>> root();

  /// The entries of one directory, for as long as this lives.
  class Listing {
   public:
    /// What the name shows; empty if nothing.
    Result<std::optional<Node>> find(std::string_view name) const;
    /// The types of everything shown, by name.
    [[nodiscard]] std::map<std::string_view, mode_t> types() const;
    /// Adds the names that whiteouts hide, with the type S_IFCHR.
    [[nodiscard]] std::map<std::string_view, mode_t> types_and_whiteouts() const;

   private:
    friend class LayersBelow;
    struct Part {
      std::size_t layer;
      std::shared_ptr<const fuse::Directory> entries;
    };
    LayersBelow* layers_ = nullptr;
    std::vector<Part> parts_;
  };
  Result<Listing> list(const Node& directory);

  Result<std::string> target(const Node& link);
  /// Full names and values.
  Result<std::vector<std::pair<std::string, std::string>>> xattrs(const Node& node);
  /// Part of a file's content.
  Result<std::vector<fuse::Piece>> read(const Node& file, std::uint64_t start, std::size_t size);

 private:
  struct Layer {
    UniqueFd file;
    std::unique_ptr<fuse::ImageReader> reader;
  };
  static constexpr std::uint64_t kBytesOfStep = 64;  ///< are unpacked in the time of a step

  explicit LayersBelow(Budget& budget) : budget_(&budget) {}
  /// Returns the result of `action` with a layer's reader. Counts the metadata that it had to load.
  template <typename Action>
  auto counted(std::size_t layer, const Action& action)
      -> decltype(action(std::declval<fuse::ImageReader&>())) {
    fuse::ImageReader& reader = *layers_[layer].reader;
    const std::uint64_t before = reader.metadata_loaded();
    auto found = action(reader);
    SPC_TRY(budget_->walk(1 + (reader.metadata_loaded() - before) / kBytesOfStep));
    return found;
  }
  Result<fuse::Inode> inode(std::size_t layer, std::uint64_t reference);
  Result<bool> is_opaque(std::size_t layer, const fuse::Inode& directory);

  Budget* budget_;
  std::vector<Layer> layers_;
};

}  // namespace spc::below
