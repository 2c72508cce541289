#pragma once

#include <memory>
#include <optional>

#include "base/sha256.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/layer_task.hpp"
#include "image/store/store.hpp"

namespace spc {

/// A layer that is already in the store, but from elsewhere: knowing its digest proves nothing, so
/// this source must deliver every byte, which is only counted and hashed.
class LayerProof final : public LayerTask, private FetchSink {
 public:
  /// `name`: that it has in the store.
  static std::unique_ptr<LayerProof> start(ImageLayer layer, const Digest& name, LayerLocks locks,
                                           ImageSource& source);

  void watch(std::vector<pollfd>& descriptors) const override { blob_->watch(descriptors); }
  Result<bool> advance() override;
  [[nodiscard]] LayerPhase phase() const override { return LayerPhase::fetching; }
  [[nodiscard]] Digest name() const override { return name_; }
  [[nodiscard]] bool waits_for_node() const override { return blob_->waits_for_node(); }
  bool blames_nodes() override { return blob_->blames_nodes(); }
  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  LayerProof(ImageLayer layer, const Digest& name, LayerLocks locks)
      : layer_(std::move(layer)), name_(name), locks_(std::move(locks)) {}
  HttpHandler::Take take(std::span<const std::byte> bytes) override;

  ImageLayer layer_;
  Digest name_;
  LayerLocks locks_;
  Sha256 hash_;
  std::uint64_t received_ = 0;
  std::unique_ptr<BlobStream> blob_;
};

}  // namespace spc
