#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.hpp"
#include "base/hash.hpp"
#include "base/result.hpp"
#include "image/pull/agent_link.hpp"
#include "image/pull/image_source.hpp"
#include "image/pull/layer_process.hpp"
#include "image/store/store.hpp"
#include "protocol/bytes_from.hpp"
#include "registry/manifest.hpp"
#include "share/peers.hpp"

namespace spc {

// --- import timing ---

/// Times of a layer's decompressor, in milliseconds.
struct LayerTimes {
  std::size_t number = 0;  ///< in the image, from 1 on; 0: none
  std::uint64_t bytes = 0;
  std::uint64_t link = 0;     ///< waiting for bytes of the blob
  std::uint64_t inflate = 0;  ///< working
  std::uint64_t write = 0;    ///< waiting for the hash and the disk
  [[nodiscard]] std::uint64_t total() const { return link + inflate + write; }
};

/// Timing breakdown of an import. At each moment one phase is measured: fetching while any layer is
/// being fetched without back-pressure, otherwise waiting for the converter while any layer is
/// being converted.
struct ImportTiming {
  using Seconds = std::chrono::duration<double>;

  Seconds others{};  ///< waiting for other imports of the user or of the same layers
  Seconds fetch{};
  Seconds convert{};  ///< waiting for the converter
  Seconds publish{};  ///< writing back, verifier, publishing
  std::size_t layers = 0;
  std::size_t converted = 0;   ///< number of these that were converted
  std::uint64_t bytes = 0;     ///< size of their blobs
  BytesFrom from;              ///< received bytes, including layers that were only verified
  bool told = false;           ///< progress was shown
  std::size_t all_layers = 0;  ///< of the image
  LayerTimes longest;          ///< the converted layer that took longest

  /// Returns one line for the user. Time outside all phases was spent on determining which layers
  /// are needed.
  [[nodiscard]] std::string line(Seconds total) const;
  /// Returns the last line of shown progress: `pulled app:1: 482 MB in 5.3 s, 3 of 4 layers`.
  [[nodiscard]] std::string closing_line(const std::string& image, Seconds total) const;
};

/// Adds its lifetime to one of the phases.
class TimedPhase {
 public:
  explicit TimedPhase(ImportTiming::Seconds& phase) : phase_(phase) {}
  TimedPhase(const TimedPhase&) = delete;
  TimedPhase& operator=(const TimedPhase&) = delete;
  ~TimedPhase() { phase_ += Clock::now() - began_; }

 private:
  using Clock = std::chrono::steady_clock;
  ImportTiming::Seconds& phase_;
  Clock::time_point began_ = Clock::now();
};

// --- layer task ---

/// A layer of an image.
struct ImageLayer {
  Descriptor blob;
  Digest diff_id;     ///< of the uncompressed archive, from the image configuration
  LayerNames names;   ///< its possible names in the store
  std::size_t place;  ///< number of layers below it
};

/// Name for messages.
inline std::string name_of(const ImageLayer& layer) {
  return "layer " + in_quotes(layer.blob.digest.str());
}

/// Locks held while a layer is pulled, so that no other process pulls it under the same name.
struct LayerLocks {
  std::optional<StoreLock> alone, fitted;
};

/// The operation that a layer waits for.
enum class LayerPhase { fetching, converting, publishing };

/// One layer being pulled. Destruction aborts it.
class LayerTask {
 public:
  virtual ~LayerTask() = default;
  /// Descriptors to poll.
  virtual void watch(std::vector<pollfd>& descriptors) const = 0;
  /// Advances without blocking. Returns true when the layer is complete.
  virtual Result<bool> advance() = 0;
  [[nodiscard]] virtual LayerPhase phase() const = 0;
  /// Returns whether the task creates the layer, not only verifies it.
  [[nodiscard]] virtual bool converts() const { return false; }
  /// Returns the layer's name in the store, once it is complete.
  [[nodiscard]] virtual Digest name() const = 0;
  /// Returns whether the task needs the layers below it. They are passed when all are complete,
  /// bottom layer first.
  [[nodiscard]] virtual bool wants_below() const { return false; }
  virtual Result<void> give_below(std::span<const int>) { return {}; }
  /// Returns the layer's file for reading, as it will be published. -1 while it is being written.
  [[nodiscard]] virtual int written() const { return -1; }
  /// Returns whether another node is writing the blob into the shared store.
  [[nodiscard]] virtual bool waits_for_node() const = 0;
  /// Returns whether to retry after an error: some bytes came from peers, from which this blob is
  /// not requested again.
  virtual bool blames_nodes() = 0;
  /// Returns the number of received bytes of the blob.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
  /// Returns the received bytes by source. Peers has more detail on those from other nodes.
  [[nodiscard]] const BytesFrom& came() const { return came_; }
  /// Returns the times of a converted layer, once it is complete.
  [[nodiscard]] const LayerTimes& times() const { return times_; }

 protected:
  BytesFrom came_;
  LayerTimes times_;
};

// --- blob feed ---

/// Hashes a blob's bytes and writes them to the converter's pipe. A large blob has a thread for
/// this, so that the thread of the network only copies bytes. Buffers at most 1 MiB.
class BlobFeed {
 public:
  /// Blobs from this size on have a thread of their own, in bytes.
  static constexpr std::uint64_t kLeastForThread = 8 << 20;

  /// `output` is the pipe, non-blocking and borrowed, or -1: the bytes are only hashed.
  BlobFeed(int output, std::uint64_t size);
  ~BlobFeed();
  BlobFeed(const BlobFeed&) = delete;
  BlobFeed& operator=(const BlobFeed&) = delete;

  /// Returns false if the buffer is full. Then wait until has_room().
  [[nodiscard]] bool take(std::span<const std::byte> bytes);
  /// Writes what the pipe accepts now.
  void advance();
  [[nodiscard]] bool has_room();
  /// Returns whether all bytes are hashed and written.
  [[nodiscard]] bool is_empty();
  /// Wakes poll when has_room() or is_empty() may have changed.
  void watch(std::vector<pollfd>& descriptors) const;

  /// Returns whether the reader of the pipe has closed it.
  [[nodiscard]] bool is_cut() const { return cut_; }
  /// Writes no more bytes, but hashes them.
  void cut();
  /// Returns the digest of all bytes. Call it once, when is_empty().
  Digest finish() { return hash_.finish(); }

 private:
  std::span<const std::byte> write_some(std::span<const std::byte> bytes);
  void run();
  void write_all_of(std::span<const std::byte> bytes);

  const int output_;
  Sha256 hash_;  // of the thread, if there is one
  std::atomic<bool> cut_ = false;
  // Without a thread: hashed bytes that did not fit into the pipe, and where they start.
  std::vector<std::byte> waiting_;
  std::size_t waiting_from_ = 0;

  // With a thread, which exchanges the two buffers.
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<std::byte> filling_;
  bool working_ = false, stopped_ = false;
  bool awaited_ = false;  // the owner waits for changed_
  UniqueFd changed_, stop_;
  std::thread thread_;
};

// --- layer proof ---

/// A layer that is in the store, but was delivered by another origin. A request with its digest
/// proves nothing, so this source must deliver every byte, which is only counted and hashed.
class LayerProof final : public LayerTask, private FetchSink {
 public:
  /// `name` is the layer's name in the store.
  static std::unique_ptr<LayerProof> start(ImageLayer layer, const Digest& name, LayerLocks locks,
                                           ImageSource& source);

  void watch(std::vector<pollfd>& descriptors) const override;
  Result<bool> advance() override;
  [[nodiscard]] LayerPhase phase() const override { return LayerPhase::fetching; }
  [[nodiscard]] Digest name() const override { return name_; }
  [[nodiscard]] bool waits_for_node() const override { return blob_->waits_for_node(); }
  bool blames_nodes() override { return blob_->blames_nodes(); }
  [[nodiscard]] std::uint64_t received() const override { return received_; }

 private:
  LayerProof(ImageLayer layer, const Digest& name, LayerLocks locks)
      : layer_(std::move(layer)),
        name_(name),
        locks_(std::move(locks)),
        feed_(-1, layer_.blob.size) {}
  HttpHandler::Take take(std::span<const std::byte> bytes) override;

  ImageLayer layer_;
  Digest name_;
  LayerLocks locks_;
  std::uint64_t received_ = 0;
  bool paused_ = false;
  BlobFeed feed_;
  std::unique_ptr<BlobStream> blob_;
};

// --- layer rights ---

/// The layers of the store that an image from `origin` may use without fetching them: layers of
/// images that are public now, and layers that this origin has delivered. Knowing a layer's digest
/// gives no access to it.
class LayerRights {
 public:
  /// `store` is borrowed.
  LayerRights(const ImageStore& store, std::string origin)
      : store_(store), origin_(std::move(origin)) {}

  Result<bool> may_take(const Digest& layer);
  /// Records that the origin has delivered the layer.
  Result<void> delivered(const Digest& layer) { return store_.note_delivery(layer, origin_); }

 private:
  const ImageStore& store_;
  std::string origin_;
  std::optional<std::set<Digest>> public_;  // read once, on demand
};

// --- layer pull ---

/// One layer being pulled: source → SHA-256 → pipe → converter → the agent's file → store.
/// Published only if blob digest, size and diffID match manifest and configuration.
class LayerPull final : public LayerTask, private FetchSink {
 public:
  static Result<std::unique_ptr<LayerPull>> start(ImageLayer layer, LayerLocks locks,
                                                  ImageSource& source, AgentLink& agent,
                                                  LayerLimits limits);

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
  Result<ConvertedLayer> converted();
  Result<void> check_archive();

  ImageLayer layer_;
  Digest name_;
  LayerLocks locks_;
  std::shared_ptr<StoreObject> object_;
  LayerProcess converter_;
  BlobFeed feed_;  // borrows the converter's pipe
  std::unique_ptr<BlobStream> blob_;
  std::uint64_t received_ = 0;
  bool paused_ = false;
  bool input_closed_ = false;
  bool wants_below_ = false;
  bool asked_for_name_ = false;
};

// --- pull of all layers ---

struct PullContext {
  HttpClient& http;
  ImageSource& source;
  const ImageStore& store;
  AgentLink& agent;
  LayerRights& rights;
  std::string image;       ///< for messages
  std::size_t layers = 0;  ///< of the image, including those in the store
  std::size_t max_parallel = 2;
  std::size_t small_in_slot = 1;  ///< small layers that take the place of one of these
  LayerLimits limits;
  bool meter = false;      ///< progress as numbers instead of lines
  bool bar = false;        ///< progress as lines with a bar, four times a second
  Peers* peers = nullptr;  ///< receives the progress; null: none
  ImageFacts& facts;       ///< receives the layers as soon as all are written
  ImportTiming& timing;
};

/// A layer of the store that the import may use. It cannot be evicted while it is held.
struct HeldLayer {
  Digest name;
  UniqueFd file;  ///< empty if the layer is being evicted
};

/// Returns the layer's name in the store, alone or fitted.
std::optional<Digest> name_in_store(const ImageLayer& layer, const ImageStore& store);

/// The layers of one image, by their places.
struct PulledLayers {
  std::vector<std::optional<HeldLayer>> held;
  std::vector<ImageLayer> missing;  ///< layers of the other places
};

/// Returns whether two adjacent layers are in one merged file.
inline bool is_same_file(const HeldLayer& layer, const HeldLayer& above) {
  return layer.name == above.name;
}

/// Pulls every missing layer into the store, the largest first, several in parallel. A layer that
/// the store has from another origin is fetched as well, but only verified. If another process on
/// this node is pulling a layer, waits for it. If that process dies or takes too long, pulls the
/// layer here. A layer that must be fitted waits until the layers below it are complete, without
/// using a slot. Reports progress at once, then at most once a second. The first error ends all.
/// Returns all layers, by their places.
Result<std::vector<HeldLayer>> pull_layers(const PullContext& context, PulledLayers layers);

/// Merges each run of several layers into one file and publishes it. Returns the files of the
/// image, one for each run. The unmerged layers stay in the store until their space is needed, or
/// for a day.
Result<std::vector<HeldLayer>> merge_layers(const PullContext& context,
                                            std::span<const LayerRun> runs,
                                            std::span<const ImageLayer> layers,
                                            std::vector<HeldLayer> held);

}  // namespace spc
