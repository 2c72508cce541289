#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "base/sha256.hpp"
#include "image/layer/worker/layer_process.hpp"
#include "image/pull/agent_link.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/layer_task.hpp"
#include "image/store/store.hpp"

namespace spc {

/// One layer being pulled: source → SHA-256 → pipe → converter → a file of the agent's → published.
/// Published only if blob digest, size and diffID match manifest and configuration. Buffers at most
/// 1 MiB.
class LayerPull final : public LayerTask, private FetchSink {
 public:
  static Result<std::unique_ptr<LayerPull>> start(ImageLayer layer, LayerLocks locks,
                                                  ImageSource& source, AgentLink& agent,
                                                  const LayerLimits& limits);

  void watch(std::vector<pollfd>& descriptors) const override;
  Result<bool> advance() override;
  [[nodiscard]] LayerPhase phase() const override;
  [[nodiscard]] bool converts() const override { return true; }
  [[nodiscard]] Digest name() const override { return name_; }
  [[nodiscard]] bool wants_below() const override { return wants_below_; }
  Result<void> give_below(std::span<const int> layers) override;
  [[nodiscard]] int written() const override { return object_->file(); }
  [[nodiscard]] bool waits_for_node() const override { return blob_->waits_for_node(); }
  bool blames_nodes() override { return blob_->blames_nodes(); }
  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  LayerPull(ImageLayer layer, LayerLocks locks, std::shared_ptr<StoreObject> object,
            LayerProcess converter);

  HttpHandler::Take take(std::span<const std::byte> bytes) override;
  std::span<const std::byte> write_some(std::span<const std::byte> bytes);
  void drain();
  Result<void> check_blob();
  Result<ConvertedLayer> converted();
  Result<void> check_archive();

  ImageLayer layer_;
  Digest name_;
  LayerLocks locks_;
  std::shared_ptr<StoreObject> object_;
  LayerProcess converter_;
  std::unique_ptr<BlobStream> blob_;
  Sha256 hash_;
  std::uint64_t received_ = 0;
  std::vector<std::byte> waiting_;  // bytes that the pipe has not taken,
  std::size_t waiting_from_ = 0;    // starting here
  bool paused_ = false;
  bool converter_left_ = false;  // it stopped reading: finish() has the reason
  bool input_closed_ = false;
  bool wants_below_ = false;
  bool asked_for_name_ = false;
};

}  // namespace spc
