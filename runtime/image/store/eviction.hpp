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

/// Limits of the store.
struct StoreLimits {
  std::uint64_t max_bytes = 0;       ///< of all layers; 0: no limit
  std::uint32_t high_percent = 100;  ///< of the file system: above it, images are evicted
  std::uint32_t low_percent = 100;   ///< until it is down to this
  std::uint64_t layer_bytes = 0;     ///< now in the store
};

/// Space that must stay free, for records and other growth.
std::uint64_t margin_of(const StoreSpace& space);

/// Bytes to free before `needed` more are added.
std::uint64_t bytes_to_free(const StoreLimits& limits, const StoreSpace& space,
                            std::uint64_t needed);

/// Whether so many bytes more, for which nothing is evicted, stay within the limit and the file
/// system. `limits.layer_bytes`: as they will be.
bool fits_beside(const StoreLimits& limits, const StoreSpace& space, std::uint64_t bytes);

/// What would be removed from the store.
struct EvictionPlan {
  std::vector<StoredRecord> images;  ///< the least recently used first
  std::vector<StoredLayer> layers;   ///< that no other image has
  std::uint64_t bytes = 0;           ///< of the layers
  std::size_t staying = 0;           ///< unneeded layers that must stay for now
};

/// What must stay.
struct Kept {
  std::set<Digest> layers;                             ///< needed by the caller
  std::function<bool(const Digest& layer)> is_in_use;  ///< by a container or an import
};

/// Chooses what to evict: first layers without an image that are older than a day (left by a
/// crash); then the least recently used images, until `bytes` are free. `bytes` = 0: only leftovers
/// of crashes. An image is evicted only if none of its layers is in use and it was not used within
/// the last minute: a start may be about to use it.
EvictionPlan plan_eviction(const StoreInventory& inventory, std::uint64_t bytes, const Kept& kept,
                           std::int64_t now);

/// These images, in use or not, and their layers that no other image has.
EvictionPlan plan_removal(const StoreInventory& inventory, const std::set<Digest>& images,
                          const Kept& kept);

/// Unusable data: leftovers of crashes, as in plan_eviction(), and images that are damaged or lack
/// layers.
EvictionPlan plan_cleaning(const StoreInventory& inventory, const Kept& kept, std::int64_t now);

/// Removes one layer from the store. False: it is in use.
using RemoveLayer = std::function<Result<bool>(const Digest& layer)>;

/// Result of a plan.
struct Evicted {
  std::size_t images = 0;
  std::size_t layers = 0;
  std::uint64_t bytes = 0;  ///< freed bytes
};

/// Executes the plan: each image's record with all users' rights to it, then its layers. Whatever
/// was used meanwhile stays.
Result<Evicted> evict(const ImageStore& store, const EvictionPlan& plan, const RemoveLayer& remove);

}  // namespace spc
