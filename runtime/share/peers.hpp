#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/listener.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "registry/client.hpp"
#include "registry/http.hpp"
#include "share/node_networks.hpp"
#include "share/peer_order.hpp"
#include "share/spool.hpp"

namespace spc {

// --- liveness query ---

/// Request for a node's state: whether it lives, its progress, and the progress of the nodes above
/// it.
class AliveQuestion final : private HttpHandler {
 public:
  enum class Answer { none, alive, failed };
  AliveQuestion(HttpClient& http, const RegistryEndpoint& node);
  ~AliveQuestion() override { http_.cancel(*this); }
  AliveQuestion(const AliveQuestion&) = delete;
  AliveQuestion& operator=(const AliveQuestion&) = delete;

  [[nodiscard]] Answer answer() const { return answer_; }
  /// Returns the three numbers of the answer, see Relay.
  [[nodiscard]] const std::string& said() const { return said_; }

 private:
  Take body(const HttpHead& head, std::span<const std::byte> bytes) override;
  void ended(const HttpHead& head, HttpEnd end) override;

  HttpClient& http_;
  Answer answer_ = Answer::none;
  std::string said_;
};

// --- public statement ---

/// Statement that a registry grants everybody access to an image. The `import` that asked the
/// registry signs it, and nodes that fetch the image from that node accept it, so that N nodes send
/// one request. munge proves that the service user of a node of this cluster signed it: a relay,
/// and the step's user, can pass it on but not forge it. It says nothing about the image's content.
///
/// There is no statement about an image that needs credentials: each node asks the registry for its
/// user.
struct PublicStatement {
  std::string place;          ///< registry and repository
  Digest top;                 ///< manifest or index
  std::int64_t asked_at = 0;  ///< seconds since 1970

  /// Returns the name under which a relay offers it, like a blob.
  [[nodiscard]] Digest name() const;
  [[nodiscard]] std::string text() const;
};

/// Signs a statement, valid for a minute. Error: munge is missing or does not answer.
Result<std::string> sign(const PublicStatement& statement);

/// Reads a statement about this image. Error: it was signed by another user than this process's,
/// has expired, or is about another image.
Result<PublicStatement> read_statement(const std::string& place, const Digest& top,
                                       const std::string& is_signed);

// --- peers ---

/// Parameters of Peers.
struct PeersContext {
  HttpClient& http;
  Log& log;
  const PeersConfig& config;
  Platform platform;
  std::uint32_t nodes = 0;  ///< number of nodes of the step
  /// Sends srun a question, and a message that needs no answer: UserSourceLink.
  std::function<Result<TrackerRecord>(const TrackerRecord&)> ask_tracker;
  std::function<Result<void>(const TrackerRecord&)> tell_tracker;
  std::function<Result<UniqueFd>()> new_file;  ///< creates a nameless file in the store
  int agent = -1;                              ///< pidfd, borrowed: the relay ends with it
  const RelayStarter* relay = nullptr;         ///< borrowed, null: this node serves no others
};

/// The other nodes of the step that lack the same image. srun chooses the nodes to ask. Their bytes
/// must match the digest. After any failure here, the blob is fetched from the registry.
class Peers {
 public:
  explicit Peers(PeersContext context);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  enum class Lack { bytes, rights };
  /// Joins the nodes that lack the image that `top` (a manifest or an index) names, for this
  /// platform; or the nodes that have it and need the registry's confirmation that it is still
  /// public. Later calls have no effect.
  void join(const Digest& top, Lack lack = Lack::bytes);

  /// Another node.
  struct Source {
    std::uint32_t index;
    RegistrySession session;
    bool is_dead = false;    ///< does not answer, or has ended: it may come back
    bool is_barred = false;  ///< has sent wrong bytes
    bool is_slow = false;    ///< slower than the achievable rate: used last
    std::chrono::steady_clock::time_point last_byte{};  ///< of any blob
  };
  /// Returns the first node that answers and is not in `tried`, or null.
  Source* next(const std::set<std::uint32_t>& tried);
  /// Asks srun for sources in place of those that are dead or in `useless`. Returns false if there
  /// are none.
  bool ask_for_more(const std::set<std::uint32_t>& useless);
  /// Measures the progress of the source in use and asks srun for another one if it is slow.
  /// `takes_nothing`: this node is currently not reading from it.
  void watch_rate(Source& source, bool takes_nothing);
  void note_bytes(std::uint64_t bytes, CameFrom from);
  /// Counts bytes that were already on this node.
  void note_here(std::uint64_t bytes);
  /// Records that bytes come from the registry or another source that is no node: nodes below see
  /// this node's rate as the achievable one.
  void note_no_source() { leader_ = 0; }
  /// Stops asking the source until it answers look_again().
  void leave(Source& source, const Error& why);
  /// Asks sources that were left, at intervals: a node may just have been busy. Called by streams
  /// that meanwhile read from another source.
  void look_again();
  /// Number of answers from left sources that had what this node has.
  [[nodiscard]] unsigned came_back() const { return came_back_; }
  void bar(const std::set<std::uint32_t>& sources, const Digest& blob);
  /// Reports the peers that sent wrong bytes of the blob, once right ones have arrived. Until then
  /// the registry may be the one that sends wrong bytes.
  void report_wrong(const Digest& blob);
  /// Returns whether peers sent wrong bytes of the blob so often that it must be fetched from the
  /// registry.
  [[nodiscard]] bool were_wrong_twice(const Digest& blob) const;
  [[nodiscard]] bool has_sources() const { return !sources_.empty(); }
  /// Query string appended to each request.
  [[nodiscard]] std::string suffix() const { return "?node=" + std::to_string(index_); }
  [[nodiscard]] HttpClient& http() { return context_.http; }

  // Offers to other nodes.
  void put_document(const Digest& digest, std::string_view bytes);
  /// Declares that no document of that name will be offered.
  void will_not_put(const Digest& digest) {
    if (const auto slot = slot_of(digest, 0)) drop(*slot);
  }
  /// Declares all blobs that will be fetched. `here` bytes of the image are already on this node.
  void will_fetch(const std::vector<std::pair<Digest, std::uint64_t>>& blobs, std::uint64_t here);
  std::optional<Spool::Slot> slot_of(const Digest& blob, std::uint64_t size);
  /// Returns false if the bytes are not kept.
  bool write(Spool::Slot slot, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Returns the number of bytes read, 0 on failure.
  std::size_t read(Spool::Slot slot, std::uint64_t offset, std::span<std::byte> into) const;
  [[nodiscard]] int spool_file() const { return spool_ ? spool_->file() : -1; }
  void complete(Spool::Slot slot);
  void drop(Spool::Slot slot);
  /// Declares that another process of this node pulls or has pulled the layer: peers fetch the blob
  /// elsewhere.
  void will_not_fetch(const Digest& blob, std::uint64_t size);
  /// Stops keeping blobs for other nodes because the file system is nearly full.
  void stop_serving();
  [[nodiscard]] bool is_serving() const { return spool_.has_value(); }

  /// Reports progress for srun's line, at intervals.
  void tell_progress(std::uint64_t done, std::uint64_t total);
  void tell_done();
  [[nodiscard]] bool srun_listens() const { return !is_alone_; }
  [[nodiscard]] const BytesFrom& bytes() const { return from_; }
  /// Returns this node's index among the nodes that lack the image.
  [[nodiscard]] std::uint32_t index() const { return index_; }

 private:
  using Clock = std::chrono::steady_clock;
  void take_place(const TrackerRecord& place);
  void find_reachable();
  void look_for_faster(Source& source);
  bool ask_srun_for_others(const std::set<std::uint32_t>& useless);
  void start_relay(Listener listener, const PeerKey& key);
  void tell(TrackerRecord record, TrackerKind kind);
  /// Returns whether to stop trying new nodes, for example because of a firewall: each would cost a
  /// time-out.
  [[nodiscard]] bool are_unreachable() const {
    return !has_helped_ && unreachable_ >= kMostUnreachable;
  }

  PeersContext context_;
  NodeNetworks networks_;
  std::vector<Network> wanted_;
  bool has_joined_ = false;
  bool is_alone_ = true;  ///< srun does not answer
  Digest order_;          ///< image whose nodes this one has joined
  std::uint32_t index_ = 0;
  PeerKey key_{};
  std::list<Source> sources_;
  std::map<Digest, int> wrong_;
  std::map<Digest, std::vector<std::string>> doubts_;
  int asked_for_more_ = 0;
  static constexpr int kMostUnreachable = 3;
  bool has_helped_ = false;
  int unreachable_ = 0;
  std::list<std::pair<Source*, AliveQuestion>> again_;
  Clock::time_point next_look_{};
  std::chrono::milliseconds look_pause_{};
  unsigned came_back_ = 0;
  std::optional<Spool> spool_;
  Clock::time_point next_word_{};

  BytesFrom from_;
  std::uint64_t here_ = 0, leader_ = 0, peer_rate_ = 0;  // as on the spool index
  Source* watched_ = nullptr;
  std::optional<AliveQuestion> alive_;
  Clock::time_point asked_{}, watched_at_{};
  SourceRate source_rate_;
};

// --- peer stream ---

/// The blob of a PeerStream.
struct PeerBlob {
  Digest digest;
  std::string path;  ///< below /v2/NAME/
  std::string what;  ///< in messages
  /// empty: not known, and the blob is not kept for other nodes
  std::optional<std::uint64_t> size;
  std::uint64_t limit = 0;  ///< upper limit if the size is not known
  /// Opens another source if no node has the blob: from this byte on, or from the beginning if
  /// `otherwise_at_begin`. Null: the stream fails instead.
  std::function<std::unique_ptr<BlobStream>(FetchSink&, std::uint64_t from)> otherwise;
  bool otherwise_at_begin = false;
};

/// A blob read from other nodes of the step while they fetch it themselves. If a node breaks off or
/// falls silent, the next one continues at that byte. If no node is left, the stream continues from
/// the shared store, a mirror or the registry until a node answers again. Keeps the bytes for nodes
/// that read from this one, and for a converter that is slower than the sources.
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
  std::uint64_t passed_ = 0;  // of these, bytes passed to the sink; the others are in the spool
  std::uint64_t skip_ = 0;    // bytes received a second time
  bool is_sink_full_ = false;
  bool is_paused_ = false;  // the sink accepts no more
  bool is_done_ = false;
  bool is_right_ = false;
  std::optional<Error> failed_;
  std::vector<std::byte> piece_;

  Peers::Source* source_ = nullptr;
  std::unique_ptr<Fetch> fetch_;
  std::set<std::uint32_t> tried_;    // sources
  std::set<std::uint32_t> useless_;  // of these, sources with a failure other than lacking the blob
  std::set<std::uint32_t> left_;     // of these, sources left because they are slow or in doubt
  std::set<std::uint32_t>
      doubted_;  // of these, sources to return to before any source other than a node
  std::set<std::uint32_t> full_;  // of these, sources at capacity
  // requests say that there is no better source, so that a full node accepts them
  bool insists_ = false;
  std::set<std::uint32_t> used_;  // of these, sources whose bytes the sink has
  bool is_second_try_ = false;
  std::uint64_t began_at_ = 0;
  Clock::time_point last_byte_{}, last_growth_{};
  std::optional<AliveQuestion> alive_;
  Clock::time_point asked_{};
  std::string said_;  // the source's last answer
  int misses_ = 0;

  std::unique_ptr<BlobStream> other_;
  unsigned came_back_ = 0;  // Peers::came_back() at the time when the other source began
  int returns_ = 0;
};

}  // namespace spc
