#include "image/layer/layer_facts.hpp"

#include <algorithm>
#include <cstdint>

#include "base/text.hpp"
#include "image/facts/facts.hpp"
#include "image/layer/below/layers_below.hpp"

namespace spc {
namespace {

constexpr std::size_t kReadAtOnce = 1 << 20;
constexpr int kDeepest = 200;
constexpr int kMostLinks = 40;
constexpr std::uint64_t kMostEntries = 4'000'000;

class LayeredFiles final : public SeenFiles {
 public:
  explicit LayeredFiles(below::LayersBelow& layers) : layers_(layers) {}

  Result<void> walk(const std::function<void(const std::string&, bool)>& visit) override {
    const auto root = SPC_TRY(layers_.root());
    return root ? walk(*root, "", 0, visit) : Result<void>();
  }

  std::string text(const std::string& path, std::size_t limit) override {
    const auto file = find(path);
    if (!file || !*file || !(*file)->is(S_IFREG)) return {};
    limit = static_cast<std::size_t>(std::min<std::uint64_t>(limit, (*file)->top().size));
    std::string text;
    while (text.size() < limit) {
      const auto pieces =
          layers_.read(**file, text.size(), std::min(limit - text.size(), kReadAtOnce));
      const std::size_t before = text.size();
      for (const fuse::Piece& piece : pieces ? *pieces : std::vector<fuse::Piece>()) {
        const char* const bytes =
            piece.block ? reinterpret_cast<const char*>(piece.block->bytes.get()) + piece.offset
                        : nullptr;
        bytes == nullptr ? text.append(piece.size, '\0') : text.append(bytes, piece.size);
      }
      if (text.size() == before) return {};
    }
    return text;
  }

 private:
  Result<void> walk(const below::Node& directory, const std::string& path, int depth,
                    const std::function<void(const std::string&, bool)>& visit) {
    if (depth > kDeepest)
      return Error(ErrorKind::corrupt, "the image's directories are nested too deeply");
    const auto listing = SPC_TRY(layers_.list(directory));
    for (const auto& [name, type] : listing.types()) {
      if (++entries_ > kMostEntries)
        return Error(ErrorKind::refused, "the image has too many files");
      const std::string here = path + std::string(name);
      visit(here, S_ISDIR(type));
      if (!S_ISDIR(type) || holds_no_facts(name)) continue;
      const auto found = SPC_TRY(listing.find(name));
      if (found) SPC_TRY(walk(*found, here + "/", depth + 1, visit));
    }
    return {};
  }

  Result<std::optional<below::Node>> find(const std::string& path) {
    const std::optional<below::Node> none;
    auto root = SPC_TRY(layers_.root());
    if (!root) return none;
    std::vector<below::Node> way{*std::move(root)};
    std::vector<std::string> rest;  // the next one last
    const auto go = [&](std::string_view to) {
      const auto parts = split(to, '/');
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) rest.emplace_back(*part);
    };
    go(path);
    for (int links = 0; !rest.empty();) {
      const std::string name = std::move(rest.back());
      rest.pop_back();
      if (name.empty() || name == ".") continue;
      if (name == "..") {
        if (way.size() > 1) way.pop_back();
        continue;
      }
      if (!way.back().is(S_IFDIR)) return none;
      const auto listing = SPC_TRY(layers_.list(way.back()));
      auto found = SPC_TRY(listing.find(name));
      if (!found) return none;
      if (!found->is(S_IFLNK)) {
        way.push_back(*std::move(found));
        continue;
      }
      if (++links > kMostLinks) return none;
      const std::string target = SPC_TRY(layers_.target(*found));
      if (target.starts_with('/')) way.erase(way.begin() + 1, way.end());
      go(target);
    }
    return std::optional(std::move(way.back()));
  }

  below::LayersBelow& layers_;
  std::uint64_t entries_ = 0;
};

}  // namespace

Result<std::string> facts_of_layers(std::vector<UniqueFd> layers) {
  Budget budget;
  auto opened = SPC_TRY(below::LayersBelow::open(std::move(layers), budget));
  LayeredFiles files(opened);
  const FactSheet sheet = SPC_TRY(facts_of(files));
  return fact_records(sheet);
}

}  // namespace spc
