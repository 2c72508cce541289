#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "meeting/peer_order.hpp"
#include "protocol/meeting.hpp"

namespace spc {

/// The nodes of a step that lack an image, or one of several: what srun knows of them, without its
/// sockets.
class Gatherings {
 public:
  using Seconds = std::chrono::duration<double>;
  struct Member {
    std::uint32_t node_id = 0;
    std::string node;
    PeerAddress at;  ///< of its relay
    std::uint64_t done = 0, total = 0;
    BytesFrom from;
    bool has_all = false, died = false;
    Seconds joined{}, ready{};  ///< since some time
    unsigned questions = 0;
  };
  struct Gathering {
    PeerOrder order;
    PeerKey key{};
    std::vector<Member> members;  ///< by index
    unsigned cut_off = 0;         ///< of these, so many have reached none of their sources
  };
  /// Which member a connection speaks for.
  struct Seat {
    Digest image;
    std::uint32_t index = 0;
  };

  /// No more than so many members in all: a node that comes again and again gets no place at some
  /// time. `fanout`: of each order.
  explicit Gatherings(std::size_t most = 4096, std::uint32_t fanout = 2)
      : most_(most), fanout_(fanout) {}

  /// `seen_at`: the address from which it came, for a relay that does not know its own. Without a
  /// place: nothing.
  std::optional<MeetingRecord> join(const MeetingRecord& question, const std::string& node,
                                    const PeerAddress& seen_at, std::optional<Seat>& seat,
                                    Seconds now = {});
  /// Without the sources that it names, which are dead or slow.
  std::optional<MeetingRecord> more(const MeetingRecord& question, const Seat& seat);
  /// Progress, done or left. False: something else.
  bool told(const MeetingRecord& record, const Seat& seat, Seconds now = {});
  /// Its connection is closed: the relay of a node that has the image goes on, others are not asked
  /// any more.
  void gone(const Seat& seat);

  [[nodiscard]] const std::map<Digest, Gathering>& all() const { return all_; }

 private:
  Gathering* find(const Seat& seat);
  static MeetingRecord place_of(const Gathering& gathering, const Seat& seat);

  std::size_t most_;
  std::uint32_t fanout_;
  std::size_t members_ = 0;
  std::map<Digest, Gathering> all_;
};

/// One line for all nodes of a step that pull `image`, if that is known: "pulling app:1 on 2 nodes,
/// slowest node02 at 62 % of 1460 MB, registry 1.0 x". Empty: nobody pulls.
std::string progress_line(const Gatherings& gatherings, const std::string& image);

/// What it took in the end: "app:1 came to 4 of 4 nodes in 11.0 s (first 10.6, median 10.8):
/// registry 1.00 x, nodes 3.00 x, shared store 0.00 x, 1 node failed". Empty: nobody pulled.
std::string statistics_line(const Gatherings& gatherings, const std::string& image);

/// The same as a JSON object on one line: its keys are kept. Empty: nobody pulled.
std::string statistics_json(const Gatherings& gatherings, const std::string& image);

}  // namespace spc
