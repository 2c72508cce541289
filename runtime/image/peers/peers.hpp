#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/net/listener.hpp"
#include "base/result.hpp"
#include "image/config/config.hpp"
#include "image/peers/alive_question.hpp"
#include "image/peers/node_networks.hpp"
#include "image/peers/source_pace.hpp"
#include "image/registry/registry_session.hpp"
#include "image/registry/user_source_link.hpp"
#include "image/relay/spool.hpp"

namespace spc {

/// What Peers needs.
struct PeersContext {
  HttpClient& http;
  Log& log;
  const PeersConfig& config;
  Platform platform;
  std::uint32_t nodes = 0;  ///< of the step
  /// A question to srun, and a word that needs no answer: UserSourceLink.
  std::function<Result<MeetingRecord>(const MeetingRecord&)> meet;
  std::function<Result<void>(const MeetingRecord&)> tell;
  std::function<Result<UniqueFd>()> new_file;  ///< without a name, in the store
  int agent = -1;                              ///< pidfd: the relay ends with it; borrowed
  std::string relay;                           ///< the program; empty: the one beside this
};

/// The other nodes of the step that lack the same image. srun says which of them to ask; what they
/// say is believed if it has the right digest. Whatever goes wrong here, the registry serves.
class Peers {
 public:
  explicit Peers(PeersContext context);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  enum class Lack { bytes, rights };
  /// Joins the nodes that lack the image that `top` names, a manifest or an index, for this
  /// platform; or that have it, and may not use it until the registry has said that it is still
  /// public. Does so once.
  void meet(const Digest& top, Lack lack = Lack::bytes);

  /// Another node.
  struct Source {
    std::uint32_t index;
    RegistrySession session;
    bool is_dead = false;    ///< does not answer, or has ended: it may come back
    bool is_barred = false;  ///< has sent wrong bytes
    bool is_slow = false;    ///< against what can be had: the last that is asked
    std::chrono::steady_clock::time_point last_byte{};  ///< of any blob
  };
  /// The first that answers and is not in `tried`; null: none.
  Source* next(const std::set<std::uint32_t>& tried);
  /// Asks srun for others in place of those that are dead or in `useless`. False: there are none.
  bool ask_for_more(const std::set<std::uint32_t>& useless);
  /// How far the node is from which bytes come; srun is asked for another one if it is slow.
  /// `takes_nothing`: for the time being, of what it sends.
  void watch_pace(Source& source, bool takes_nothing);
  void note_bytes(std::uint64_t bytes, CameFrom from);
  /// They are on this node already.
  void note_here(std::uint64_t bytes);
  /// They come from elsewhere: who takes from this node sees what it gets as what can be had.
  void note_no_source() { leader_ = 0; }
  /// It is not asked for anything, until it answers look_again().
  void leave(Source& source, const Error& why);
  /// Asks those that were left, now and then: a node may just have had too much to do. For those
  /// that take from elsewhere meanwhile.
  void look_again();
  /// How often one of them has answered, and had what this node has.
  [[nodiscard]] unsigned came_back() const { return came_back_; }
  void bar(const std::set<std::uint32_t>& sources, const Digest& blob);
  /// So often that it has to come from the registry.
  [[nodiscard]] bool were_wrong_twice(const Digest& blob) const;
  [[nodiscard]] bool has_sources() const { return !sources_.empty(); }
  /// Behind the path of each request.
  [[nodiscard]] std::string suffix() const { return "?node=" + std::to_string(index_); }
  [[nodiscard]] HttpClient& http() { return context_.http; }

  // What this node has for others.
  void put_document(const Digest& digest, std::string_view bytes);
  /// There will be none of that name.
  void will_not_put(const Digest& digest) {
    if (const auto slot = slot_of(digest, 0)) drop(*slot);
  }
  /// These blobs will be fetched, and no others; so many bytes of the image are here already.
  void will_fetch(const std::vector<std::pair<Digest, std::uint64_t>>& blobs, std::uint64_t here);
  std::optional<Spool::Slot> slot_of(const Digest& blob, std::uint64_t size);
  /// False: it is not kept.
  bool write(Spool::Slot slot, std::uint64_t offset, std::span<const std::byte> bytes);
  /// What was written; 0: it is lost.
  std::size_t read(Spool::Slot slot, std::uint64_t offset, std::span<std::byte> into) const;
  [[nodiscard]] int spool_file() const { return spool_ ? spool_->file() : -1; }
  void complete(Spool::Slot slot);
  void drop(Spool::Slot slot);
  /// Another process of this node brings it, or has: others get it elsewhere.
  void will_not_fetch(const Digest& blob, std::uint64_t size);
  /// The file system is nearly full: nothing is kept for others.
  void stop_serving();
  [[nodiscard]] bool is_serving() const { return spool_.has_value(); }

  /// For srun's line; now and then.
  void tell_progress(std::uint64_t done, std::uint64_t total);
  void tell_done();
  [[nodiscard]] bool srun_listens() const { return !is_alone_; }
  [[nodiscard]] const BytesFrom& bytes() const { return from_; }
  /// Among the nodes that lack the image.
  [[nodiscard]] std::uint32_t index() const { return index_; }

 private:
  using Clock = std::chrono::steady_clock;
  void take_place(const MeetingRecord& place);
  void find_reachable();
  void look_for_faster(Source& source);
  bool ask_srun_for_others(const std::set<std::uint32_t>& useless);
  void start_relay(Listener listener, const PeerKey& key);
  void tell(MeetingRecord record, MeetingKind kind);
  /// A firewall, perhaps: each node more would cost a time-out.
  [[nodiscard]] bool are_unreachable() const {
    return !has_helped_ && unreachable_ >= kMostUnreachable;
  }

  PeersContext context_;
  NodeNetworks networks_;
  std::vector<Network> wanted_;
  bool has_met_ = false;
  bool is_alone_ = true;  ///< srun does not answer
  Digest order_;          ///< of the nodes that lack the same
  std::uint32_t index_ = 0;
  PeerKey key_{};
  std::list<Source> sources_;
  std::map<Digest, int> wrong_;
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
  std::uint64_t here_ = 0, leader_ = 0, pace_ = 0;  // as on the relay's board
  Source* watched_ = nullptr;
  std::optional<AliveQuestion> alive_;
  Clock::time_point asked_{}, watched_at_{};
  SourcePace source_pace_;
};

}  // namespace spc
