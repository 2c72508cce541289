#include "convert/layers_below.hpp"

#include <lz4.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>

namespace spc::below {

namespace {

/// Bytes, of all layers together.
constexpr std::size_t kCache = 96 << 20;

constexpr std::uint16_t kLz4 = fuse::kLz4Compressor, kZstd = 6;

bool is_ours(std::uint16_t compressor) { return compressor == kLz4 || compressor == kZstd; }

bool unpack(std::uint16_t compressor, std::span<const std::byte> block, std::byte* into,
            std::size_t& size) {
  if (compressor == kLz4) {
    const int got = LZ4_decompress_safe(reinterpret_cast<const char*>(block.data()),
                                        reinterpret_cast<char*>(into),
                                        static_cast<int>(block.size()), static_cast<int>(size));
    size = got < 0 ? 0 : static_cast<std::size_t>(got);
    return got > 0;
  }
  size = ZSTD_decompress(into, size, block.data(), block.size());
  return ZSTD_isError(size) == 0;
}

}  // namespace

Result<LayersBelow> LayersBelow::open(std::vector<UniqueFd> layers, Budget& budget) {
  LayersBelow below(budget);
  const std::size_t cache = kCache / 2 / std::max<std::size_t>(layers.size(), 1);
  for (UniqueFd& file : layers) {
    const off_t size = ::lseek(file.get(), 0, SEEK_END);
    if (size < 0) return Error::from_errno(errno, "read a layer below");
    auto reader = SPC_TRY_DURING(
        "read a layer below",
        fuse::open_image(fuse::ImageFile(file.get(), 0, static_cast<std::uint64_t>(size)),
                         {is_ours, unpack}, {.blocks = cache, .directories = cache}));
    below.layers_.push_back({std::move(file), std::move(reader)});
  }
  return below;
}

Result<fuse::Inode> LayersBelow::inode(std::size_t layer, std::uint64_t reference) {
  auto found = SPC_TRY(counted(layer, [&](auto& reader) { return reader.inode(reference); }));
  if (!found) return fuse::damaged("a device in a layer below");
  return *found;
}

Result<bool> LayersBelow::is_opaque(std::size_t layer, const fuse::Inode& directory) {
  if (!directory.has_xattrs) return false;
  for (const auto& [name, value] :
       SPC_TRY(counted(layer, [&](auto& reader) { return reader.xattrs(directory); }))) {
    SPC_TRY(budget_->walk(1 + value.size() / kBytesOfStep));
    if (name == "trusted.overlay.opaque") return true;
  }
  return false;
}

Result<std::optional<Node>> LayersBelow::root() {
  Node node;
  for (std::size_t layer = layers_.size(); layer-- > 0;) {
    auto top = SPC_TRY(inode(layer, layers_[layer].reader->summary().root));
    node.parts.push_back({layer, std::move(top)});  // overlayfs ignores an opaque mark here
  }
  if (node.parts.empty()) return std::optional<Node>();
  return std::optional(std::move(node));
}

Result<LayersBelow::Listing> LayersBelow::list(const Node& directory) {
  Listing listing;
  listing.layers_ = this;
  for (const auto& part : directory.parts) {
    auto entries = SPC_TRY(
        counted(part.layer, [&](auto& reader) { return reader.directory(part.inode); }));
    listing.parts_.push_back({part.layer, std::move(entries)});
  }
  return listing;
}

Result<std::optional<Node>> LayersBelow::Listing::find(std::string_view name) const {
  Node node;
  SPC_TRY(layers_ != nullptr ? layers_->budget_->walk(parts_.size()) : Result<void>());
  for (const auto& [layer, entries] : parts_) {
    const fuse::Directory::Entry* const entry = entries->find(name);
    if (entry == nullptr) continue;
    const bool is_directory = S_ISDIR(entry->type);
    // a whiteout, or a file below a directory
    node.hides = S_ISCHR(entry->type) || (!is_directory && !node.parts.empty());
    if (node.hides) break;
    auto found = SPC_TRY(layers_->inode(layer, entry->reference));
    node.parts.push_back({layer, std::move(found)});
    node.hides = is_directory && SPC_TRY(layers_->is_opaque(layer, node.parts.back().inode));
    if (!is_directory || node.hides) break;
  }
  if (node.parts.empty()) return std::optional<Node>();
  return std::optional(std::move(node));
}

std::map<std::string_view, mode_t> LayersBelow::Listing::types() const {
  auto types = types_and_whiteouts();
  std::erase_if(types, [](const auto& one) { return S_ISCHR(one.second); });
  return types;
}

std::map<std::string_view, mode_t> LayersBelow::Listing::types_and_whiteouts() const {
  std::map<std::string_view, mode_t> types;
  for (const Part& part : parts_) {
    for (const auto& entry : part.entries->entries)
      types.emplace(part.entries->name(entry), entry.type);
  }
  return types;
}

Result<std::string> LayersBelow::target(const Node& link) {
  return counted(link.parts.front().layer,
                 [&](auto& reader) { return reader.link_target(link.top()); });
}

Result<fuse::Attributes> LayersBelow::xattrs(const Node& node) {
  return counted(node.parts.front().layer, [&](auto& reader) { return reader.xattrs(node.top()); });
}

Result<std::vector<fuse::Piece>> LayersBelow::read(const Node& file, std::uint64_t start,
                                                   std::size_t size) {
  return layers_[file.parts.front().layer].reader->read(file.top(), start, size);
}

}  // namespace spc::below
