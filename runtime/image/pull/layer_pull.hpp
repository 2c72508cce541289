#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "base/sha256.hpp"
#include "image/layer/layer_process.hpp"
#include "image/pull/agent_link.hpp"
#include "image/pull/file_sync.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/layer_task.hpp"
#include "image/store/store.hpp"

namespace spc {

/// One layer on its way: its source → SHA-256 → pipe → converter → the agent's file → published. Nothing is published
/// unless blob digest, size and diffID are what manifest and configuration promise. At most 1 MiB waits in memory.
class LayerPull final : public LayerTask, private FetchSink {
 public:
  static Result<std::unique_ptr<LayerPull>> start(MissingLayer layer, std::optional<StoreLock> lock, ImageSource& source,
                                                  AgentLink& agent);

  void watch(std::vector<pollfd>& descriptors) const override;
  Result<bool> advance() override;
  [[nodiscard]] LayerPhase phase() const override;
  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  LayerPull(MissingLayer layer, std::optional<StoreLock> lock, AgentLink& agent, UniqueFd file, LayerProcess converter);

  HttpHandler::Take take(std::span<const std::byte> bytes) override;
  std::span<const std::byte> write_some(std::span<const std::byte> bytes);
  void drain();
  Result<void> check_blob();
  Result<ConvertedLayer> converted();
  Result<void> check_archive();

  MissingLayer layer_;
  std::optional<StoreLock> lock_;
  AgentLink& agent_;
  UniqueFd file_;
  LayerProcess converter_;
  std::unique_ptr<BlobStream> blob_;
  Sha256 hash_;
  std::uint64_t received_ = 0;
  std::vector<std::byte> waiting_;  // bytes that the pipe did not take yet,
  std::size_t waiting_from_ = 0;    // from here on
  bool paused_ = false;
  bool converter_left_ = false;  // it reads no more: the reason comes with finish()
  bool input_closed_ = false;
  std::optional<FileSync> sync_;  // the last step before the agent is asked for the name
  bool asked_for_name_ = false;
};

}  // namespace spc
