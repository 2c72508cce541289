#pragma once

#include <memory>
#include <optional>

#include "base/sha256.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/layer_task.hpp"
#include "image/store/store.hpp"

namespace spc {

/// A layer that is already in the store, but from elsewhere: knowing its digest proves nothing, so this source must
/// deliver every byte, which is only counted and hashed.
class LayerProof final : public LayerTask, private FetchSink {
 public:
  static std::unique_ptr<LayerProof> start(MissingLayer layer, std::optional<StoreLock> lock, ImageSource& source);

  void watch(std::vector<pollfd>& descriptors) const override { blob_->watch(descriptors); }
  Result<bool> advance() override;
  [[nodiscard]] LayerPhase phase() const override { return LayerPhase::fetching; }
  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  LayerProof(MissingLayer layer, std::optional<StoreLock> lock) : layer_(std::move(layer)), lock_(std::move(lock)) {}
  HttpHandler::Take take(std::span<const std::byte> bytes) override;

  MissingLayer layer_;
  std::optional<StoreLock> lock_;
  Sha256 hash_;
  std::uint64_t received_ = 0;
  std::unique_ptr<BlobStream> blob_;
};

}  // namespace spc
