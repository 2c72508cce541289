#pragma once

#include <sys/stat.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "filesystem/image_reader.hpp"
#include "filesystem/tree.hpp"
#include "protocol/layer.hpp"

namespace spc::below {

// --- layers below ---

/// An entry of the layers below: of a directory, its parts in all merged layers, topmost first; of
/// any other type, the visible one.
struct Node {
  struct Part {
    std::size_t layer = 0;
    fuse::Inode inode;
  };
  std::vector<Part> parts;
  /// directories: entries of this name in layers below those of `parts` are hidden
  bool hides = false;

  [[nodiscard]] const fuse::Inode& top() const { return parts.front().inode; }
  [[nodiscard]] bool is(mode_t type) const { return (top().mode & S_IFMT) == type; }
};

/// The merged view of the layers under the one being converted, as overlayfs shows it. They are
/// layers of the store, accepted by layer-verifier.
class LayersBelow {
 public:
  /// Opens the layers, bottom layer first. Lookups count as steps of `budget`, which is borrowed.
  static Result<LayersBelow> open(std::vector<UniqueFd> layers, Budget& budget);

  /// Returns the root. Empty if there are no layers.
  Result<std::optional<Node>> root();

  /// The entries of one directory. Must not outlive LayersBelow.
  class Listing {
   public:
    /// Returns the entry of this name. Empty if there is none.
    Result<std::optional<Node>> find(std::string_view name) const;
    /// Returns the types of all visible entries, by name.
    [[nodiscard]] std::map<std::string_view, mode_t> types() const;
    /// As types(), with the names that whiteouts hide, as S_IFCHR.
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
  /// Returns full names and values.
  Result<fuse::Attributes> xattrs(const Node& node);
  /// Reads part of a file's content.
  Result<std::vector<fuse::Piece>> read(const Node& file, std::uint64_t start, std::size_t size);

 private:
  struct Layer {
    UniqueFd file;
    std::unique_ptr<fuse::ImageReader> reader;
  };
  static constexpr std::uint64_t kBytesOfStep = 64;  ///< bytes unpacked in the time of one step

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

namespace spc {

// --- layer descriptors ---

/// Receives the layers over kLayerBelow, bottom layer first.
inline Result<std::vector<UniqueFd>> receive_layers(int socket) {
  std::vector<UniqueFd> layers;
  LayersBelowAnswer answer{.more = 1};
  while (answer.more != 0) {
    auto some = SPC_TRY(receive_struct(socket, answer, kMaxDescriptorsPerMessage));
    for (UniqueFd& layer : some) layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace spc
