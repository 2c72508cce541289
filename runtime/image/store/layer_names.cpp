// The names of layers, and which of them are merged. Apart from the store's files, because the
// names are digests: programs that only start containers do without libcrypto.

#include <algorithm>
#include <cstdint>
#include <set>

#include "base/hash.hpp"
#include "image/store/store.hpp"

namespace spc {

namespace {

/// Number of layers. Up to here an image is cheap to mount, and is not merged.
constexpr std::size_t kFewLayers = 16;
/// Bytes. Blobs up to this size are merged; images mostly share larger ones.
constexpr std::uint64_t kSmallLayer = 16 << 20;
/// Layers of one run: few at the bottom, where images share a base, and many above a number of
/// layers. 500 small layers make 15 files.
constexpr std::size_t kShortRun = 8, kLongRun = 64;

}  // namespace

Digest layer_name(const Digest& blob, std::uint32_t format) {
  Digest name = blob;
  name.bytes.back() ^= static_cast<std::uint8_t>(format - 1);
  return name;
}

std::vector<Digest> distinct_layers(std::span<const Digest> blobs) {
  std::vector<Digest> layers;
  std::set<Digest> seen;
  for (std::size_t i = blobs.size(); i-- > 0;) {
    if (seen.insert(blobs[i]).second) layers.push_back(blobs[i]);
  }
  std::ranges::reverse(layers);
  return layers;
}

std::vector<LayerNames> layer_names(std::span<const Digest> blobs, std::uint32_t format) {
  std::vector<LayerNames> names;
  Digest below;
  for (const Digest& blob : blobs) {
    Sha256 hash;
    if (!names.empty()) hash.update(std::as_bytes(std::span(below.bytes)));
    hash.update(std::as_bytes(std::span(blob.bytes)));
    below = hash.finish();
    Digest fitted = below;
    for (auto& byte : fitted.bytes) byte = static_cast<std::uint8_t>(~byte);
    names.push_back({.alone = layer_name(blob, format), .fitted = layer_name(fitted, format)});
  }
  return names;
}

std::vector<LayerRun> plan_runs(std::span<const std::uint64_t> sizes) {
  std::vector<LayerRun> runs;
  for (std::size_t place = 0; place < sizes.size(); ++place) {
    const bool is_small = sizes.size() > kFewLayers && sizes[place] <= kSmallLayer;
    const bool joins =
        is_small && place > 0 && sizes[place - 1] <= kSmallLayer &&
        place - runs.back().begin < (runs.back().begin < kLongRun ? kShortRun : kLongRun);
    if (joins) {
      runs.back().end = place + 1;
    } else {
      runs.push_back({place, place + 1});
    }
  }
  return runs;
}

Digest merged_name(std::size_t begin, const LayerNames& top) {
  const std::uint64_t place = begin;
  Sha256 hash;
  hash.update(std::as_bytes(std::span(top.fitted.bytes)));
  hash.update(std::as_bytes(std::span(&place, 1)));
  Digest name = hash.finish();
  for (auto& byte : name.bytes) byte = static_cast<std::uint8_t>(~byte);
  return name;
}

std::optional<std::vector<LayerRun>> runs_of(std::span<const Digest> files,
                                             std::span<const LayerNames> layers) {
  std::vector<LayerRun> runs;
  std::size_t begin = 0;
  for (const Digest& file : files) {
    if (begin == layers.size()) return std::nullopt;
    std::size_t end = begin + 1;
    if (file != layers[begin].alone && file != layers[begin].fitted) {
      const std::size_t most = std::min(begin + kLongRun, layers.size());
      do {
        if (++end > most) return std::nullopt;
      } while (file != merged_name(begin, layers[end - 1]));
    }
    runs.push_back({begin, end});
    begin = end;
  }
  if (begin != layers.size()) return std::nullopt;
  return runs;
}

}  // namespace spc
