#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "base/result.hpp"
#include "image/store/store.hpp"

namespace spc {

/// Limits of the store.
struct StoreLimits {
  std::uint64_t max_bytes = 0;       ///< of all layers; 0: no limit
  std::uint32_t high_percent = 100;  ///< of the file system's space: images are evicted above it
  std::uint32_t low_percent = 100;   ///< eviction stops here
  std::uint64_t layer_bytes = 0;     ///< current size of the store
};

/// Returns the space that must stay free, for records and other growth.
std::uint64_t margin_of(const StoreSpace& space);

/// Returns the bytes to free before `needed` more are added.
std::uint64_t bytes_to_free(const StoreLimits& limits, const StoreSpace& space,
                            std::uint64_t needed);

/// Returns whether `bytes` more, without any eviction, stay within the limit and the file system.
/// `limits.layer_bytes` must include the needed ones.
bool fits_beside(const StoreLimits& limits, const StoreSpace& space, std::uint64_t bytes);

/// Images and layers to remove from the store.
struct EvictionPlan {
  std::vector<StoredRecord> images;  ///< the least recently used first
  std::vector<StoredLayer> layers;   ///< layers of no other image
  std::uint64_t bytes = 0;           ///< size of the layers
  std::size_t staying = 0;           ///< unneeded layers that cannot be removed now
};

/// Layers to keep.
struct Kept {
  std::set<Digest> layers;                             ///< needed by the caller
  std::function<bool(const Digest& layer)> is_in_use;  ///< by a container or an import
};

/// Chooses what to evict: first layers without an image that are older than a day (left by a
/// crash), then the least recently used images, until `bytes` are free. With `bytes` = 0, only
/// leftovers of crashes. Evicts an image only if none of its layers is in use and it was not used
/// within the last minute, because a start may be about to use it.
EvictionPlan plan_eviction(const StoreInventory& inventory, std::uint64_t bytes, const Kept& kept,
                           std::int64_t now);

/// Plans removal of these images, in use or not, and of their layers that no other image has.
EvictionPlan plan_removal(const StoreInventory& inventory, const std::set<Digest>& images,
                          const Kept& kept);

/// Plans removal of unusable data: leftovers of crashes, as in plan_eviction(), and images that are
/// damaged or lack layers.
EvictionPlan plan_cleaning(const StoreInventory& inventory, const Kept& kept, std::int64_t now);

/// Removes one layer from the store. Returns false if it is in use.
using RemoveLayer = std::function<Result<bool>(const Digest& layer)>;

/// Result of executing a plan.
struct Evicted {
  std::size_t images = 0;
  std::size_t layers = 0;
  std::uint64_t bytes = 0;  ///< freed bytes
};

/// Executes the plan: removes each image's record with all users' rights to it, then its layers.
/// Keeps images and layers that were used meanwhile.
Result<Evicted> evict(const ImageStore& store, const EvictionPlan& plan, const RemoveLayer& remove);

}  // namespace spc
