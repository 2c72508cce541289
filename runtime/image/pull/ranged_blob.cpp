#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "image/pull/image_source.hpp"
#include "registry/client.hpp"

namespace spc {

namespace {

/// A large blob over several connections. One request fetches it from its beginning. Where a server
/// or a link gives each connection a share only, others fetch the chunks that follow, and the first
/// one ends where they begin. Chunks wait in memory until all bytes before them are delivered.
///
/// The number of connections doubles while that makes the blob faster by a fifth. It returns to one
/// if four are no faster, and after failures, and stays while the sink is slower than the source.
class RangedBlob final : public BlobStream {
 public:
  /// `request` has the blob's exact size. `session` and `use` are borrowed.
  RangedBlob(RegistrySession& session, FetchRequest request, FetchSink& sink, RangeUse& use)
      : session_(session),
        request_(std::move(request)),
        sink_(sink),
        use_(use),
        size_(*request_.exact_size),
        position_(request_.begin_at) {}
  ~RangedBlob() override { drop_chunks(); }
  RangedBlob(const RangedBlob&) = delete;
  RangedBlob& operator=(const RangedBlob&) = delete;

  void start() override;
  void advance() override;
  void resume() override;

  [[nodiscard]] bool finished() const override { return outcome_.has_value(); }
  [[nodiscard]] CameFrom comes_from() const override {
    if (rest_) return rest_->comes_from();
    return chunks_.empty() ? CameFrom::registry : chunks_.front().fetch->comes_from();
  }
  Result<void> outcome() override {
    return outcome_ ? *outcome_ : Error(ErrorKind::internal, "the blob has not ended");
  }
  [[nodiscard]] const char* whose_fault() const override {
    return "the registry or a proxy changed it";
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Take = HttpHandler::Take;
  static constexpr std::uint64_t kChunk = 8 << 20, kLeastChunk = 1 << 20;
  static constexpr std::size_t kFirst = 4, kMost = 10;  // connections for chunks
  static constexpr int kMostFailures = 3;
  static constexpr double kFaster = 1.2;
  static constexpr std::chrono::milliseconds kInterval{500};
  static constexpr std::size_t kPiece = 128 << 10;

  struct Chunk final : FetchSink {
    Take take(std::span<const std::byte> more) override {
      bytes.insert(bytes.end(), more.begin(), more.end());
      return Take::taken;
    }
    std::uint64_t begin = 0, end = 0;
    std::vector<std::byte> bytes;
    std::size_t delivered = 0;
    bool ended = false;
    std::unique_ptr<Fetch> fetch;
  };
  struct RestSink final : FetchSink {
    explicit RestSink(RangedBlob& owner) : blob(owner) {}
    Take take(std::span<const std::byte> bytes) override { return blob.take_rest(bytes); }
    RangedBlob& blob;
  };

  void fetch_rest();
  Take take_rest(std::span<const std::byte> bytes);
  void fetch(Chunk& chunk);
  void advance_chunks();
  void chunk_failed(Chunk& chunk, const Error& error);
  void deliver();
  void adapt();
  void add_chunks();
  void drop_chunks();
  void measure_from_now();
  [[nodiscard]] std::uint64_t received() const;

  RegistrySession& session_;
  FetchRequest request_;
  FetchSink& sink_;
  RangeUse& use_;
  const std::uint64_t size_;
  std::uint64_t position_;  // bytes that the sink has
  RestSink rest_sink_{*this};
  std::unique_ptr<Fetch> rest_;  // the request without an end
  bool rest_is_done_ = false;    // it has come to the first chunk
  std::list<Chunk> chunks_;      // in order, without gaps
  std::uint64_t chunks_end_ = 0;
  std::uint64_t chunk_ = kChunk;  // bytes of a chunk
  std::size_t wanted_ = 0;        // connections for chunks
  int failures_ = 0;
  std::optional<Clock::time_point> paused_from_;  // since then the sink takes nothing
  Clock::duration pauses_{};                      // of this interval
  Clock::time_point measured_from_;
  std::uint64_t measured_begin_ = 0;
  double slower_rate_ = 0;  // bytes a second with fewer connections
  std::optional<Result<void>> outcome_;
};

void RangedBlob::start() {
  fetch_rest();
  measure_from_now();
  if (use_.helps != true) return;
  wanted_ = kMost;
  chunk_ = std::clamp((size_ - position_) / kMost, kLeastChunk, kChunk);
  chunks_end_ = position_ + chunk_;
  add_chunks();
}

void RangedBlob::resume() {
  if (paused_from_) pauses_ += Clock::now() - *std::exchange(paused_from_, std::nullopt);
  if (rest_) return rest_->resume();
  deliver();
}

void RangedBlob::fetch_rest() {
  FetchRequest rest = request_;
  rest.begin_at = position_;
  rest_is_done_ = false;
  rest_ = std::make_unique<Fetch>(session_, std::move(rest), rest_sink_);
  rest_->start();
}

HttpHandler::Take RangedBlob::take_rest(std::span<const std::byte> bytes) {
  if (rest_is_done_) return Take::later;
  const std::uint64_t end = chunks_.empty() ? size_ : chunks_.front().begin;
  const bool is_last = !chunks_.empty() && bytes.size() >= end - position_;
  if (is_last) bytes = bytes.first(static_cast<std::size_t>(end - position_));
  if (sink_.take(bytes) == Take::later) {
    paused_from_ = Clock::now();
    return Take::later;
  }
  if (position_ == request_.begin_at) measure_from_now();  // without the request's own time
  position_ += bytes.size();
  rest_is_done_ = is_last;  // advance() ends the request, which libcurl's callback cannot
  return is_last ? Take::later : Take::taken;
}

void RangedBlob::fetch(Chunk& chunk) {
  FetchRequest request = request_;
  request.begin_at = chunk.begin + chunk.bytes.size();
  request.exact_size = request.end_at = chunk.end;
  request.once = true;
  chunk.ended = false;
  chunk.fetch = std::make_unique<Fetch>(session_, std::move(request), chunk);
  chunk.fetch->start();
}

void RangedBlob::advance() {
  if (outcome_) return;
  if (rest_) {
    rest_->advance();
    if (rest_->finished()) {
      outcome_ = rest_->outcome();
      return drop_chunks();
    }
    if (rest_is_done_) rest_.reset();
  }
  advance_chunks();
  if (!rest_ && !paused_from_) deliver();
  if (position_ == size_ && !rest_) {
    outcome_.emplace();
    return;
  }
  adapt();
  add_chunks();
  if (!rest_ && chunks_.empty()) fetch_rest();
}

void RangedBlob::advance_chunks() {
  for (Chunk& chunk : chunks_) {
    chunk.fetch->advance();
    if (chunk.ended || !chunk.fetch->finished()) continue;
    chunk.ended = true;
    const auto fetched = chunk.fetch->outcome();
    if (!fetched) return chunk_failed(chunk, fetched.error());
  }
}

/// A server may have too many requests, or no ranges. One request for the rest then reports errors.
void RangedBlob::chunk_failed(Chunk& chunk, const Error& error) {
  if (error.kind() == ErrorKind::unavailable && ++failures_ < kMostFailures) return fetch(chunk);
  use_.helps = false;
  drop_chunks();
  if (!rest_) fetch_rest();
}

void RangedBlob::deliver() {
  while (!chunks_.empty()) {
    Chunk& first = chunks_.front();
    const auto left = std::span(first.bytes).subspan(first.delivered);
    const auto piece = left.first(std::min(left.size(), kPiece));
    if (!piece.empty()) {
      if (sink_.take(piece) == Take::later) {
        paused_from_ = Clock::now();
        return;
      }
      first.delivered += piece.size();
      position_ += piece.size();
    } else if (first.ended && position_ == first.end) {
      chunks_.pop_front();
      --use_.in_flight;
    } else {
      return;
    }
  }
}

/// Compares the rate of each interval with that of fewer connections.
void RangedBlob::adapt() {
  const std::chrono::duration<double> interval = Clock::now() - measured_from_;
  if (interval < kInterval) return;
  const double rate = static_cast<double>(received() - measured_begin_) / interval.count();
  const bool sink_is_slower = 2 * pauses_ > interval;
  measure_from_now();
  if (sink_is_slower || use_.helps == false) return;
  if (rest_ && chunks_.empty()) {
    const auto before = std::max(kChunk, static_cast<std::uint64_t>(rate));  // in a second
    if (size_ - position_ < before + kLeastRangedBlob) return;
    slower_rate_ = rate;
    wanted_ = kFirst;
    chunks_end_ = position_ + before;
  } else if (rate >= kFaster * slower_rate_) {
    use_.helps = true;
    slower_rate_ = rate;
    wanted_ = std::min(2 * wanted_, kMost);
  } else if (!use_.helps) {
    use_.helps = false;
    wanted_ = 0;
  }
}

void RangedBlob::add_chunks() {
  while (chunks_.size() < wanted_ && chunks_end_ < size_ &&
         (use_.in_flight < kMost || (!rest_ && chunks_.empty()))) {
    Chunk& chunk = chunks_.emplace_back();
    ++use_.in_flight;
    chunk.begin = chunks_end_;
    chunk.end = chunks_end_ = std::min(chunk.begin + chunk_, size_);
    chunk.bytes.reserve(static_cast<std::size_t>(chunk.end - chunk.begin));
    fetch(chunk);
  }
}

void RangedBlob::drop_chunks() {
  use_.in_flight -= chunks_.size();
  chunks_.clear();
  wanted_ = 0;
}

void RangedBlob::measure_from_now() {
  measured_from_ = Clock::now();
  measured_begin_ = received();
  pauses_ = {};
}

std::uint64_t RangedBlob::received() const {
  std::uint64_t bytes = position_;
  for (const Chunk& chunk : chunks_) bytes += chunk.bytes.size() - chunk.delivered;
  return bytes;
}

}  // namespace

std::unique_ptr<BlobStream> open_in_ranges(RegistrySession& session, FetchRequest request,
                                           FetchSink& sink, RangeUse& use) {
  return std::make_unique<RangedBlob>(session, std::move(request), sink, use);
}

}  // namespace spc
