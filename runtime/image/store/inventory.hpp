#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "image/store/store.hpp"

namespace spc {

/// What an image's record says about its storage. Times are seconds since 1970.
struct StoredRecord {
  Digest manifest;
  std::int64_t public_until = 0;
  std::int64_t last_used = 0;
  std::uint32_t layer_format = 0;
  std::vector<Digest> layers;  ///< names, bottom layer first
};

struct StoredLayer {
  Digest name;
  std::uint64_t bytes = 0;  ///< disk usage
  std::int64_t written = 0;
};

/// A snapshot of the store. Damaged records, those of an older version and what writers that were
/// killed have left are listed without layers.
struct StoreInventory {
  std::vector<StoredRecord> images;
  std::vector<StoredLayer> layers;
};

Result<std::vector<StoredRecord>> list_records(const ImageStore& store);
Result<StoreInventory> take_inventory(const ImageStore& store);

}  // namespace spc
