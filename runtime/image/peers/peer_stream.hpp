#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "image/peers/alive_question.hpp"
#include "image/peers/peers.hpp"
#include "image/registry/fetch.hpp"

namespace spc {

/// What a PeerStream brings.
struct PeerBlob {
  Digest digest;
  std::string path;                   ///< below /v2/NAME/
  std::string what;                   ///< in messages
  std::optional<std::uint64_t> size;  ///< empty: not known, and nothing is kept for others
  std::uint64_t limit = 0;            ///< of a size that is not known
  /// What brings it if no node does, from this byte on or from its beginning: `otherwise_at_begin`.
  /// Null: then it is an error.
  std::function<std::unique_ptr<BlobStream>(FetchSink&, std::uint64_t from)> otherwise;
  bool otherwise_at_begin = false;
};

/// A blob from other nodes of the step, while they fetch it themselves. A node that breaks off, or
/// says nothing any more, is left, and the next one goes on at that byte; if there is none, shared
/// store, mirrors and registry do, until a node answers again. Keeps what comes for those who take
/// this node for theirs, and for a converter that is slower than they are.
class PeerStream final : public BlobStream, private FetchSink {
 public:
  PeerStream(Peers& peers, PeerBlob blob, FetchSink& sink);

  void start() override;
  void watch(std::vector<pollfd>& descriptors) const override;
  void advance() override;
  void resume() override;
  [[nodiscard]] bool finished() const override {
    return (is_done_ || (other_ && other_->finished())) && passed_ == came_;
  }
  [[nodiscard]] bool waits_for_node() const override;
  [[nodiscard]] CameFrom comes_from() const override {
    return source_ == nullptr && other_ ? other_->comes_from() : CameFrom::node;
  }
  Result<void> outcome() override;
  [[nodiscard]] const char* whose_fault() const override;
  void proven(bool is_right) override;
  bool blames_nodes() override;

 private:
  using Clock = std::chrono::steady_clock;
  HttpHandler::Take take(std::span<const std::byte> bytes) override;
  void fetch_from(Peers::Source& source);
  void go_on();
  void go_elsewhere();
  bool go_back();
  HttpHandler::Take pass(std::span<const std::byte> bytes);
  void feed();
  void without_spool();
  void settle();
  void look_after_source();
  bool leave_if_slow();
  bool leave_in_doubt();

  Peers& peers_;
  PeerBlob blob_;
  FetchSink& sink_;
  std::optional<Spool::Slot> slot_;
  std::uint64_t came_ = 0;    // bytes
  std::uint64_t passed_ = 0;  // of these, bytes that the sink has; the others are in the spool
  std::uint64_t skip_ = 0;    // that come once more
  bool is_sink_full_ = false;
  bool is_paused_ = false;  // nothing more is to come
  bool is_done_ = false;
  bool is_right_ = false;
  std::optional<Error> failed_;
  std::vector<std::byte> piece_;

  Peers::Source* source_ = nullptr;
  std::unique_ptr<Fetch> fetch_;
  std::set<std::uint32_t> tried_;    // sources
  std::set<std::uint32_t> useless_;  // of these, those that do not just lack it
  std::set<std::uint32_t>
      left_;  // of these, those that were left because they are slow, or in doubt
  std::set<std::uint32_t>
      doubted_;  // of these, those that are come back to before anything else than a node is asked
  std::set<std::uint32_t> full_;  // of these, those that serve as many as they should
  bool insists_ = false;          // there are no others, or they are slow
  std::set<std::uint32_t> used_;  // of these, those whose bytes the sink has
  bool is_second_try_ = false;
  std::uint64_t began_at_ = 0;
  Clock::time_point last_byte_{}, last_growth_{};
  std::optional<AliveQuestion> alive_;
  Clock::time_point asked_{};
  std::string said_;  // when it was last asked
  int misses_ = 0;

  std::unique_ptr<BlobStream> other_;
  unsigned came_back_ = 0;  // nodes, when that began
  int returns_ = 0;
};

}  // namespace spc
