#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "config/config.hpp"
#include "image/pull/pull_layers.hpp"
#include "registry/client.hpp"
#include "registry/manifest.hpp"
#include "registry/signature.hpp"
#include "share/shared_store.hpp"

namespace spc {

// --- shared blob ---

/// Parameters of SharedBlob besides the blob.
struct SharedPlace {
  const SharedStore& store;
  std::string place;  ///< registry and repository
  Log& log;
  /// Opens the blob in the registry or a mirror.
  std::function<std::unique_ptr<BlobStream>(FetchSink&)> fetch;
};

/// A layer's blob read from the shared store. If it is missing there, it is fetched from the
/// registry and written into the shared store at the same time. A blob that another node is
/// fetching is read while it grows, unless it stops growing. If the shared store fails, the
/// registry serves the blob: the failure is reported once and is no error.
class SharedBlob final : public BlobStream, private FetchSink {
 public:
  SharedBlob(SharedPlace from, Descriptor blob, FetchSink& sink)
      : from_(std::move(from)), blob_(std::move(blob)), sink_(sink) {}
  ~SharedBlob() override;

  void start() override { look(); }
  void watch(std::vector<pollfd>& descriptors) const override;
  void advance() override;
  void resume() override;
  [[nodiscard]] bool finished() const override {
    return fetching_ ? fetching_->finished() : passed_ == blob_.size;
  }
  [[nodiscard]] bool waits_for_node() const override { return !fetching_ && !is_whole_; }
  [[nodiscard]] CameFrom comes_from() const override {
    return fetching_ ? fetching_->comes_from() : CameFrom::shared;
  }
  Result<void> outcome() override { return fetching_ ? fetching_->outcome() : Result<void>(); }
  [[nodiscard]] const char* whose_fault() const override;
  /// Publishes bytes from the registry in a thread, because this waits for the file system.
  /// advance() keeps the lease meanwhile.
  void proven(bool is_right) override;

 private:
  using Clock = std::chrono::steady_clock;

  bool find();
  void look();
  void read_file_of(UniqueFd file);
  void read();
  void fetch(std::optional<Lease> lease);
  HttpHandler::Take take(std::span<const std::byte> bytes) override;
  void without_copy(const Error& error);

  SharedPlace from_;
  Descriptor blob_;
  FetchSink& sink_;
  std::uint64_t passed_ = 0;  // bytes passed to the sink

  // File of the shared store, which may still grow.
  UniqueFd file_;
  bool is_whole_ = false;
  bool has_more_ = false;   // according to the last look
  bool is_broken_ = false;  // reading failed
  bool is_paused_ = false;
  std::vector<std::byte> chunk_;
  std::size_t from_chunk_ = 0;  // offset of the bytes not yet passed to the sink
  WatchedLease others_;
  Clock::time_point waits_since_ = Clock::now();  // since the last byte
  Clock::time_point next_look_{};

  // Stream from the registry.
  std::unique_ptr<BlobStream> fetching_;
  std::uint64_t skip_ = 0;  // bytes received a second time
  std::optional<Lease> lease_;
  std::optional<SharedStore::NewBlob> copy_;
  std::thread publishing_;
  std::atomic<bool> is_published_ = false;  // published, or failed to publish
};

// --- turn to convert ---

/// A node's turn to convert an image for all nodes: a lease, renewed by a thread.
class ConvertingTurn {
 public:
  /// `image`: digest of its manifest, of `place`. `shared` and `agent` are borrowed.
  ConvertingTurn(const SharedStore& shared, const std::string& place, const Digest& image,
                 AgentLink& agent)
      : shared_(shared), place_(place + " layers"), image_(image), agent_(agent) {}
  ~ConvertingTurn() { end(); }
  ConvertingTurn(const ConvertingTurn&) = delete;
  ConvertingTurn& operator=(const ConvertingTurn&) = delete;

  /// Waits until `look` returns true, because another node has converted the image, and returns
  /// true. Returns false if the image is to be converted here: it is this node's turn, or the other
  /// node takes too long for an image of `bytes`.
  Result<bool> await(const std::function<Result<bool>()>& look, std::uint64_t bytes);
  /// Lets other nodes convert.
  void end();

 private:
  void keep_beating();

  const SharedStore& shared_;
  std::string place_;
  Digest image_;
  AgentLink& agent_;
  std::optional<Lease> lease_;  // used by the thread while it runs
  std::jthread beating_;
};

// --- layer sharing ---

/// `[shared] keep = "layers"`: one node converts an image's layers, the other nodes copy the files.
/// Nodes trust each other about the content. The kernel is protected in any case: the agent's
/// verifier checks each file before it is published.
class LayerSharing {
 public:
  /// `place`: registry and repository. `image`: digest of its manifest. Both stores, `agent` and
  /// `rights` are borrowed.
  LayerSharing(const SharedStore& shared, const std::string& place, const Digest& image,
               const LayerLimits& form, const ImageStore& store, AgentLink& agent,
               LayerRights& rights);
  /// Copies the missing layers that the shared store has. While another node converts the rest,
  /// waits for it.
  Result<void> take(PulledLayers& layers);
  /// Copies layers that were missing and have been converted here into the shared store. A layer
  /// that cannot be copied is logged.
  void give(const std::vector<ImageLayer>& missing, const std::vector<HeldLayer>& held);

 private:
  Result<bool> take_all(PulledLayers& layers);
  Result<std::optional<Digest>> take_one(const ImageLayer& layer);
  Result<bool> copy_as(const ImageLayer& layer, const Digest& name);
  [[nodiscard]] bool is_wanted(const ImageLayer& layer) const {
    return !name_in_store(layer, store_);
  }
  [[nodiscard]] SharedStore::Layer shared_layer(const ImageLayer& layer, const Digest& name) const;

  const SharedStore& shared_;
  std::string place_;
  std::string form_;
  std::uint32_t processors_;
  const ImageStore& store_;
  AgentLink& agent_;
  LayerRights& rights_;
  ConvertingTurn turn_;
};

// --- image in place ---

/// Runs `work` in a thread and waits a few seconds for it. Empty if the file system that it reads
/// does not answer: the thread then stays, with its own copy of everything that it uses, until the
/// process ends.
template <typename Work>
auto unless_dead(Work work) -> std::optional<decltype(work())> {
  constexpr std::chrono::seconds kPatience{5};
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
  return result.get();
}

/// `[shared] use = "in-place"`: the step's `fuse` servers read the layers of an image in the shared
/// store, and verify every chunk. The node keeps only the image's record.
class InPlaceSource {
 public:
  /// Reads the site's public key. `form`: of this node's layers. `agent` is borrowed. Error: the
  /// key cannot be read.
  static Result<InPlaceSource> open(std::shared_ptr<const SharedStore> shared,
                                    const SharedConfig& config, std::string place,
                                    const LayerLimits& form, AgentLink& agent);

  /// Starts the server of an image with so many layers, which serve() will then use, if it starts
  /// while this process asks the registry. A failure is repeated by serve().
  void prepare(std::size_t layers);
  /// Has the layers served, if the shared store has a note on the image that the site's key has
  /// signed. Empty if it has none.
  Result<std::optional<ImageInPlace>> serve(const Digest& manifest);
  /// Returns whether this node may write notes: the site signs none, or has its key here.
  [[nodiscard]] bool may_give() const { return !place_.key || !signing_key_.empty(); }
  /// Stores the layers, which this node has, and the image's note.
  Result<void> give(const Digest& manifest, const std::vector<HeldLayer>& layers,
                    const std::string& facts);

 private:
  /// A note, and the files that it names.
  struct Found {
    ImageInPlace image;
    std::vector<SharedStore::OpenLayer> layers;
  };
  /// Where to find notes. A thread has a copy.
  struct Place {
    std::shared_ptr<const SharedStore> shared;
    std::string place, form;
    std::shared_ptr<const PublicKey> key;  // null: none

    [[nodiscard]] Result<std::optional<Found>> find(const Digest& manifest) const;
  };
  InPlaceSource(Place place, AgentLink& agent) : place_(std::move(place)), agent_(agent) {}

  Place place_;
  AgentLink& agent_;
  std::string signing_key_;         // a path
  std::vector<UniqueFd> prepared_;  // sockets of the layers' server
};

}  // namespace spc
