#include "image/pull/layer_rights.hpp"

#include <ctime>

#include "image/store/inventory.hpp"

namespace spc {

Result<bool> LayerRights::may_take(const Digest& layer) {
  if (store_.was_delivered(layer, origin_)) return true;
  if (!public_) {
    public_.emplace();
    const std::int64_t now = std::time(nullptr);
    for (const StoredRecord& record : SPC_TRY(list_records(store_))) {
      if (record.public_until > now) public_->insert(record.layers.begin(), record.layers.end());
    }
  }
  return public_->contains(layer);
}

}  // namespace spc
