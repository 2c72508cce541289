#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "image/registry/fetch.hpp"
#include "image/registry/manifest.hpp"
#include "image/shared/shared_store.hpp"

namespace spc {

/// What SharedBlob needs besides the blob.
struct SharedPlace {
  const SharedStore& store;
  std::string place;  ///< registry and repository
  Log& log;
  /// From the registry or a mirror.
  std::function<std::unique_ptr<BlobStream>(FetchSink&)> fetch;
};

/// A layer's blob out of the shared store; if it is not there, from the registry, and into the
/// shared store on the way. What another node is bringing is read while it comes, unless nothing
/// comes any more. Whatever is wrong with the shared store, the registry serves: it is told once,
/// and nothing fails.
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
  /// Puts what came from the registry under its name, in a thread: that waits for the file system.
  /// advance() keeps the lease.
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
  std::uint64_t passed_ = 0;  // bytes that the sink has

  // From a file of the shared store, which may still grow.
  UniqueFd file_;
  bool is_whole_ = false;
  bool has_more_ = false;   // as far as is known
  bool is_broken_ = false;  // it could not be read
  bool is_paused_ = false;
  std::vector<std::byte> chunk_;
  std::size_t from_chunk_ = 0;  // what of it the sink does not have
  WatchedLease others_;
  Clock::time_point waits_since_ = Clock::now();  // for a byte
  Clock::time_point next_look_{};

  // From the registry.
  std::unique_ptr<BlobStream> fetching_;
  std::uint64_t skip_ = 0;  // bytes that come once more
  std::optional<Lease> lease_;
  std::optional<SharedStore::NewBlob> copy_;
  std::thread publishing_;
  std::atomic<bool> is_published_ = false;  // or it could not be
};

}  // namespace spc
