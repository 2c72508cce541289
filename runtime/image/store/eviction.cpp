#include "image/store/eviction.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "image/store/store.hpp"

namespace spc {
namespace {

constexpr std::int64_t kStrayAge = 24 * 3600;
constexpr std::int64_t kAboutToBeUsed = 60;

std::uint64_t excess(std::uint64_t is, std::uint64_t may_be) {
  return is > may_be ? is - may_be : 0;
}

/// Returns each layer once: an image may contain a layer several times.
std::set<Digest> distinct_layers(const StoredRecord& image) {
  return {image.layers.begin(), image.layers.end()};
}

bool was_used_since(const ImageStore& store, const StoredRecord& image) {
  struct stat status {};
  return ::fstatat(store.records(), image.manifest.hex().c_str(), &status, AT_SYMLINK_NOFOLLOW) ==
             0 &&
         status.st_mtim.tv_sec != image.last_used;
}

/// Collects images and layers to remove, and counts the images left for each layer.
class Planner {
 public:
  Planner(const StoreInventory& inventory, const Kept& kept) : inventory_(inventory), kept_(kept) {
    for (const auto& layer : inventory.layers) files_.emplace(layer.name, &layer);
    for (const auto& image : inventory.images) {
      for (const Digest& layer : distinct_layers(image)) ++users_[layer];
    }
  }

  [[nodiscard]] bool is_complete(const StoredRecord& image) const {
    return std::all_of(image.layers.begin(), image.layers.end(),
                       [&](const Digest& layer) { return files_.contains(layer); });
  }
  /// Adds layers without an image. `any_age`: includes new ones; layers being pulled for an image
  /// are locked, so only layers that another image could share are lost.
  void take_strays(std::int64_t now, bool any_age = false) {
    for (const auto& layer : inventory_.layers) {
      if (!users_.contains(layer.name) && (any_age || layer.written < now - kStrayAge)) take(layer);
    }
  }
  void take(const StoredRecord& image) {
    plan.images.push_back(image);
    for (const Digest& layer : distinct_layers(image)) {
      const bool is_last = --users_[layer] == 0;
      if (const auto file = files_.find(layer); is_last && file != files_.end())
        take(*file->second);
    }
  }

  EvictionPlan plan;

 private:
  void take(const StoredLayer& layer) {
    if (kept_.layers.contains(layer.name) || kept_.is_in_use(layer.name)) {
      ++plan.staying;
      return;
    }
    plan.layers.push_back(layer);
    plan.bytes += layer.bytes;
  }

  const StoreInventory& inventory_;
  const Kept& kept_;
  std::map<Digest, const StoredLayer*> files_;
  std::map<Digest, std::size_t> users_;
};

}  // namespace

std::uint64_t margin_of(const StoreSpace& space) {
  return std::min<std::uint64_t>(64 << 20, space.total / 50);
}

std::uint64_t bytes_to_free(const StoreLimits& limits, const StoreSpace& space,
                            std::uint64_t needed) {
  std::uint64_t bytes = excess(needed + margin_of(space), space.free);
  const std::uint64_t hundredth = space.total / 100;
  if (space.used + needed > hundredth * limits.high_percent) {
    bytes = std::max(bytes, excess(space.used + needed, hundredth * limits.low_percent));
  }
  if (limits.max_bytes > 0)
    bytes = std::max(bytes, excess(limits.layer_bytes + needed, limits.max_bytes));
  return bytes;
}

bool fits_beside(const StoreLimits& limits, const StoreSpace& space, std::uint64_t bytes) {
  return bytes <= space.free &&
         (limits.max_bytes == 0 || limits.layer_bytes + bytes <= limits.max_bytes);
}

EvictionPlan plan_eviction(const StoreInventory& inventory, std::uint64_t bytes, const Kept& kept,
                           std::int64_t now) {
  Planner planner(inventory, kept);
  planner.take_strays(now, bytes > 0);
  std::vector<const StoredRecord*> oldest_first;
  for (const auto& image : inventory.images) oldest_first.push_back(&image);
  std::stable_sort(oldest_first.begin(), oldest_first.end(),
                   [](const auto* a, const auto* b) { return a->last_used < b->last_used; });
  for (const StoredRecord* image : oldest_first) {
    if (planner.plan.bytes >= bytes) break;
    if (image->last_used > now - kAboutToBeUsed) continue;
    const auto layers = distinct_layers(*image);
    if (std::none_of(layers.begin(), layers.end(), kept.is_in_use)) planner.take(*image);
  }
  return std::move(planner.plan);
}

EvictionPlan plan_removal(const StoreInventory& inventory, const std::set<Digest>& images,
                          const Kept& kept) {
  Planner planner(inventory, kept);
  for (const auto& image : inventory.images) {
    if (images.contains(image.manifest)) planner.take(image);
  }
  return std::move(planner.plan);
}

EvictionPlan plan_cleaning(const StoreInventory& inventory, const Kept& kept, std::int64_t now) {
  Planner planner(inventory, kept);
  planner.take_strays(now);
  for (const auto& image : inventory.images) {
    const bool is_damaged = image.layer_format == 0;
    if (is_damaged || !planner.is_complete(image)) planner.take(image);
  }
  return std::move(planner.plan);
}

Result<Evicted> evict(const ImageStore& store, const EvictionPlan& plan,
                      const RemoveLayer& remove) {
  std::set<Digest> gone;
  std::set<Digest> needed;
  for (const StoredRecord& image : plan.images) {
    if (was_used_since(store, image)) {
      needed.insert(image.layers.begin(), image.layers.end());
      continue;
    }
    SPC_TRY(store.remove_image(image.manifest));
    gone.insert(image.manifest);
  }
  if (!gone.empty()) SPC_TRY(store.forget_names(gone));
  Evicted evicted{.images = gone.size()};
  for (const StoredLayer& layer : plan.layers) {
    // Another import may hold the layer at this moment.
    const auto lock = SPC_TRY(store.try_lock(layer.name));
    if (!lock || needed.contains(layer.name) || !SPC_TRY(remove(layer.name))) continue;
    SPC_TRY(store.forget_deliveries(layer.name));
    ++evicted.layers;
    evicted.bytes += layer.bytes;
  }
  return evicted;
}

}  // namespace spc
