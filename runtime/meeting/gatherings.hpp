#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "meeting/peer_order.hpp"
#include "protocol/meeting.hpp"

namespace spc {

/// The nodes of a step that lack an image, or one of several: what srun knows of them, without its sockets.
class Gatherings {
 public:
  struct Member {
    std::uint32_t node_id = 0;
    std::string node;
    PeerAddress at;  ///< of its relay
    std::uint64_t done = 0, total = 0;
    bool has_all = false;
    unsigned questions = 0;
  };
  struct Gathering {
    PeerOrder order;
    PeerKey key{};
    std::vector<Member> members;  ///< by index
  };
  /// Which member a connection speaks for.
  struct Seat {
    Digest image;
    std::uint32_t index = 0;
  };

  /// No more than so many members in all: a node that comes again and again gets no place at some time.
  explicit Gatherings(std::size_t most = 4096) : most_(most) {}

  /// `seen_at`: the address from which it came, for a relay that does not know its own. Without a place: nothing.
  std::optional<MeetingRecord> join(const MeetingRecord& question, const std::string& node, const PeerAddress& seen_at,
                                    std::optional<Seat>& seat);
  /// Without the sources that it names, which are dead or slow.
  std::optional<MeetingRecord> more(const MeetingRecord& question, const Seat& seat);
  /// Progress, done or left. False: something else.
  bool told(const MeetingRecord& record, const Seat& seat);
  /// Its connection is closed: the relay of a node that has the image goes on, others are not asked any more.
  void gone(const Seat& seat);

  [[nodiscard]] const std::map<Digest, Gathering>& all() const { return all_; }

 private:
  Gathering* find(const Seat& seat);
  static MeetingRecord place_of(const Gathering& gathering, const Seat& seat);

  std::size_t most_;
  std::size_t members_ = 0;
  std::map<Digest, Gathering> all_;
};

/// One line for all nodes of a step that pull: "2 nodes, slowest node02 at 62 % of 1460 MB". Empty: nobody pulls.
std::string progress_line(const Gatherings& gatherings);

}  // namespace spc
