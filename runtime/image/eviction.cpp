#include "eviction.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "store_files.hpp"

namespace spc {
namespace {

constexpr std::int64_t kStrayAge = 24 * 3600;
constexpr std::int64_t kAboutToBeUsed = 60;

std::uint64_t excess(std::uint64_t is, std::uint64_t may_be) { return is > may_be ? is - may_be : 0; }

/// A layer may be there several times in one image.
std::set<Digest> distinct_layers(const StoredRecord& image) { return {image.layers.begin(), image.layers.end()}; }

bool was_used_since(const ImageStore& store, const StoredRecord& image) {
  struct stat status {};
  return ::fstatat(store.images(), image.manifest.hex().c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         status.st_atim.tv_sec != image.last_used;
}

/// Names in refs/ that stand for one of these images: without a record they lead nowhere.
Result<void> remove_names_of(const ImageStore& store, const std::set<Digest>& images) {
  for (const auto& name : SPC_TRY(names_in(store.refs()))) {
    const auto ref = SPC_TRY(store.ref(name));
    if (ref && images.contains(ref->manifest)) SPC_TRY(store.remove_ref(name));
  }
  return {};
}

}  // namespace

std::uint64_t margin_of(const StoreSpace& space) { return std::min<std::uint64_t>(64 << 20, space.total / 50); }

std::uint64_t bytes_to_free(const StoreLimits& limits, const StoreSpace& space, std::uint64_t needed) {
  std::uint64_t bytes = excess(needed + margin_of(space), space.free);
  const std::uint64_t hundredth = space.total / 100;
  if (space.used + needed > hundredth * limits.high_percent) {
    bytes = std::max(bytes, excess(space.used + needed, hundredth * limits.low_percent));
  }
  if (limits.max_bytes > 0) bytes = std::max(bytes, excess(limits.layer_bytes + needed, limits.max_bytes));
  return bytes;
}

EvictionPlan plan_eviction(const StoreInventory& inventory, std::uint64_t bytes, const Kept& kept, std::int64_t now) {
  std::map<Digest, std::size_t> users;
  for (const auto& image : inventory.images) {
    for (const Digest& layer : distinct_layers(image)) ++users[layer];
  }
  const auto must_stay = [&](const Digest& layer) { return kept.layers.contains(layer) || kept.is_in_use(layer); };
  std::map<Digest, const StoredLayer*> files;
  EvictionPlan plan;
  const auto take = [&](const StoredLayer& layer) {
    plan.layers.push_back(layer);
    plan.bytes += layer.bytes;
  };
  for (const auto& layer : inventory.layers) {
    files.emplace(layer.name, &layer);
    if (!users.contains(layer.name) && layer.written < now - kStrayAge && !must_stay(layer.name)) take(layer);
  }

  std::vector<const StoredRecord*> oldest_first;
  for (const auto& image : inventory.images) oldest_first.push_back(&image);
  std::stable_sort(oldest_first.begin(), oldest_first.end(),
                   [](const auto* a, const auto* b) { return a->last_used < b->last_used; });
  for (const StoredRecord* image : oldest_first) {
    if (plan.bytes >= bytes) break;
    if (image->last_used > now - kAboutToBeUsed) continue;
    const auto layers = distinct_layers(*image);
    if (std::any_of(layers.begin(), layers.end(), kept.is_in_use)) continue;
    plan.images.push_back(*image);
    for (const Digest& layer : layers) {
      const bool last = --users[layer] == 0;
      if (const auto file = files.find(layer); last && file != files.end() && !must_stay(layer)) take(*file->second);
    }
  }
  return plan;
}

Result<std::uint64_t> evict(const ImageStore& store, const EvictionPlan& plan, const RemoveLayer& remove) {
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
  if (!gone.empty()) SPC_TRY(remove_names_of(store, gone));
  std::uint64_t bytes = 0;
  for (const StoredLayer& layer : plan.layers) {
    // Somebody may be bringing it at this moment for another image.
    const auto lock = SPC_TRY(store.try_lock(layer.name));
    if (!lock || needed.contains(layer.name) || !SPC_TRY(remove(layer.name))) continue;
    SPC_TRY(store.forget_deliveries(layer.name));
    bytes += layer.bytes;
  }
  return bytes;
}

}  // namespace spc
