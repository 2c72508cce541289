#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "base/result.hpp"
#include "image/store/inventory.hpp"
#include "image/store/store.hpp"

namespace spc {

/// How full the store may become.
struct StoreLimits {
  std::uint64_t max_bytes = 0;       ///< of all layers; 0: no limit
  std::uint32_t high_percent = 100;  ///< of the file system: above it images are evicted
  std::uint32_t low_percent = 100;   ///< until it is as empty as this
  std::uint64_t layer_bytes = 0;     ///< that are in the store now
};

/// What should stay free whatever comes, for records and what else grows.
std::uint64_t margin_of(const StoreSpace& space);

/// How many bytes have to go before `needed` more may come.
std::uint64_t bytes_to_free(const StoreLimits& limits, const StoreSpace& space, std::uint64_t needed);

/// What would be taken out of the store.
struct EvictionPlan {
  std::vector<StoredRecord> images;  ///< the least recently used first
  std::vector<StoredLayer> layers;   ///< that no other image has
  std::uint64_t bytes = 0;           ///< of the layers
  std::size_t staying = 0;           ///< layers that nothing needs but that must stay for now
};

/// What must stay.
struct Kept {
  std::set<Digest> layers;                             ///< whoever makes room needs them
  std::function<bool(const Digest& layer)> is_in_use;  ///< by a container or an import
};

/// Chooses what goes: first layers that no image has and that are older than a day, which a crash has left; then images, the
/// least recently used first, until `bytes` are free. `bytes` = 0: only what a crash has left. An image goes only if nobody
/// uses any of its layers and if it was not used within the last minute: somebody may be about to.
EvictionPlan plan_eviction(const StoreInventory& inventory, std::uint64_t bytes, const Kept& kept, std::int64_t now);

/// These images, in use or not, and their layers as far as no other image has them.
EvictionPlan plan_removal(const StoreInventory& inventory, const std::set<Digest>& images, const Kept& kept);

/// What is good for nothing: what a crash has left, as in plan_eviction(), and images that are damaged or lack layers.
EvictionPlan plan_cleaning(const StoreInventory& inventory, const Kept& kept, std::int64_t now);

/// Takes one layer out of the store. False: it is in use.
using RemoveLayer = std::function<Result<bool>(const Digest& layer)>;

/// What came of a plan.
struct Evicted {
  std::size_t images = 0;
  std::size_t layers = 0;
  std::uint64_t bytes = 0;  ///< that are free now
};

/// Does what is planned, each image's record, with every user's right to it, before its layers. What was used in the
/// meantime stays.
Result<Evicted> evict(const ImageStore& store, const EvictionPlan& plan, const RemoveLayer& remove);

}  // namespace spc
