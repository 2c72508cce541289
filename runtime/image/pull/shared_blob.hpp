#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/log.hpp"
#include "image/pull/file_stream.hpp"
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

/// A layer's blob out of the shared store; if it is not there, from the registry, and into the shared store on the way. While another
/// node brings it, it is awaited, unless that node stops or takes too long. Whatever is wrong with the shared store, the registry
/// serves: it is told once, and nothing fails.
class SharedBlob final : public BlobStream, private FetchSink {
 public:
  SharedBlob(SharedPlace from, Descriptor blob, FetchSink& sink) : from_(std::move(from)), blob_(std::move(blob)), sink_(sink) {}
  ~SharedBlob() override;

  void start() override { look(); }
  void watch(std::vector<pollfd>& descriptors) const override;
  void advance() override;
  void resume() override;
  [[nodiscard]] bool finished() const override { return source_ && source_->finished() && !may_go_on(); }
  [[nodiscard]] bool waits_for_node() const override { return !source_; }
  Result<void> outcome() override { return source_->outcome(); }
  [[nodiscard]] const char* whose_fault() const override;
  /// Puts what came from the registry under its name, in a thread: that waits for the file system.
  void proven(bool is_right) override;

 private:
  using Clock = std::chrono::steady_clock;

  void look();
  void fetch();
  HttpHandler::Take take(std::span<const std::byte> bytes) override;
  [[nodiscard]] bool may_go_on() const;
  void without_copy(const Error& error);

  SharedPlace from_;
  Descriptor blob_;
  FetchSink& sink_;
  std::unique_ptr<BlobStream> source_;  // empty: another node brings it
  FileStream* file_ = nullptr;          // the source, if it is a file of the shared store
  std::uint64_t passed_ = 0;            // bytes that the sink has,
  std::uint64_t skip_ = 0;              // and will be given once more
  std::optional<Lease> lease_;
  std::optional<SharedStore::NewBlob> copy_;
  WatchedLease others_;
  std::optional<Clock::time_point> waits_since_;
  Clock::time_point next_look_{};
  std::thread publishing_;
};

}  // namespace spc
