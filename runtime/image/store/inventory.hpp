#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/store/store.hpp"

namespace spc {

/// What of an image's record says how it is kept. Times are seconds since 1970.
struct StoredRecord {
  Digest manifest;
  std::int64_t public_until = 0;
  std::int64_t fetched = 0;
  std::int64_t last_used = 0;
  std::uint32_t layer_format = 0;
  std::vector<Digest> layers;  ///< by name, bottom layer first
};

struct StoredLayer {
  Digest name;
  std::uint64_t bytes = 0;  ///< that it takes on the disk
  std::int64_t written = 0;
};

/// Everything in the store, as it is at this moment. What is damaged or of an older version is listed without layers.
struct StoreInventory {
  std::vector<StoredRecord> images;
  std::vector<StoredLayer> layers;
};

Result<std::vector<StoredRecord>> list_records(const ImageStore& store);
Result<StoreInventory> take_inventory(const ImageStore& store);

}  // namespace spc
