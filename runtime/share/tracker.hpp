#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/listener.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "protocol/tracker.hpp"
#include "share/peer_order.hpp"

namespace spc {

// --- srun address ---

/// Address at which srun listens for the nodes of its step: the value of kTrackerVariable.
struct TrackerAddress {
  std::uint16_t port = 0;
  TrackerToken token{};

  [[nodiscard]] std::string variable() const;
  static std::optional<TrackerAddress> parse(std::string_view variable);
};

// --- peer sessions ---

/// The nodes of a step that lack an image, for each image: srun's state, without its sockets.
class PeerSessions {
 public:
  using Seconds = std::chrono::duration<double>;
  struct Peer {
    std::uint32_t node_id = 0;
    std::string node;
    PeerAddress at;  ///< of its relay
    std::uint64_t done = 0, total = 0;
    BytesFrom from;
    bool has_all = false, died = false;
    Seconds joined{}, ready{};  ///< times since an arbitrary moment
    unsigned questions = 0;
  };
  struct Session {
    PeerOrder order;
    PeerKey key{};
    std::vector<Peer> peers;  ///< by index
    unsigned cut_off = 0;     ///< number of peers that have reached none of their sources
  };
  /// The peer that owns this connection.
  struct PeerId {
    Digest image;
    std::uint32_t index = 0;
  };

  /// `most` limits the number of all peers, so that a node that keeps rejoining is refused at
  /// some point. `fanout`: number of children of a node in each order.
  explicit PeerSessions(std::size_t most = 4096, std::uint32_t fanout = 2)
      : most_(most), fanout_(fanout) {}

  /// Adds a node. `seen_at` is the connection's source address, for a relay that does not know its
  /// own. Returns an empty optional if there is no place.
  std::optional<TrackerRecord> join(const TrackerRecord& question, const std::string& node,
                                    const PeerAddress& seen_at, std::optional<PeerId>& id,
                                    Seconds now = {});
  /// Returns other sources than those that `question` names, which are dead or slow.
  std::optional<TrackerRecord> more(const TrackerRecord& question, const PeerId& id);
  /// Handles progress, done and left. Returns false for any other record.
  bool update(const TrackerRecord& record, const PeerId& id, Seconds now = {});
  /// Handles the end of a connection. The relay of a node that has the image stays a source; other
  /// nodes are not offered any more.
  void disconnect(const PeerId& id);

  [[nodiscard]] const std::map<Digest, Session>& all() const { return all_; }

 private:
  Session* find(const PeerId& id);
  static TrackerRecord place_of(const Session& session, const PeerId& id);

  std::size_t most_;
  std::uint32_t fanout_;
  std::size_t peers_ = 0;
  std::map<Digest, Session> all_;
};

/// Returns one line for all nodes of a step that pull `image`, if that is known: "pulling app:1 on
/// 2 nodes, slowest node02 at 62 % of 1.5 GB". Empty if no node pulls.
std::string progress_line(const PeerSessions& sessions, const std::string& image);

/// Returns the line after the last of these: "pulled app:1 on 2 nodes: 1.5 GB in 11.0 s". Empty if
/// no node has the image.
std::string closing_line(const PeerSessions& sessions, const std::string& image);

/// Returns the final statistics: "app:1 came to 4 of 4 nodes in 11.0 s (first 10.6, median 10.8):
/// registry 1.00 x, nodes 3.00 x, shared store 0.00 x, 1 node failed". Empty if no node pulled.
std::string statistics_line(const PeerSessions& sessions, const std::string& image);

/// Returns the same as a JSON object on one line, whose keys are stable. Empty if no node pulled.
std::string statistics_json(const PeerSessions& sessions, const std::string& image);

// --- protocol ---

/// The protocol between one node and srun, without the socket: a hello with the step's token, then
/// one record after the other.
class TrackerProtocol {
 public:
  /// `sessions` outlives it.
  TrackerProtocol(PeerSessions& sessions, const PeerAddress& seen_at)
      : sessions_(sessions), seen_at_(seen_at) {}

  /// Returns the buffer for the next bytes, never empty.
  [[nodiscard]] std::span<char> room();

  struct Outcome {
    bool stays_open = true;                 ///< false: close the connection
    std::optional<TrackerKind> kind{};      ///< of the record that is now complete
    std::optional<TrackerRecord> answer{};  ///< answer to that record
  };
  /// Processes `bytes` bytes that were received into `room()`, at time `now`.
  Outcome take(std::size_t bytes, const TrackerToken& token, PeerSessions::Seconds now);

  [[nodiscard]] bool has_greeted() const { return has_greeted_; }
  /// Handles the end of the connection.
  void end() {
    if (id_) sessions_.disconnect(*id_);
  }

 private:
  [[nodiscard]] std::size_t wanted() const {
    return has_greeted_ ? sizeof(TrackerRecord) : sizeof(TrackerHello);
  }
  bool greet(const TrackerToken& token);
  Outcome handle(PeerSessions::Seconds now);

  PeerSessions& sessions_;
  PeerAddress seen_at_;
  bool has_greeted_ = false;
  std::string node_;
  std::optional<PeerSessions::PeerId> id_;
  std::size_t received_ = 0;
  std::array<char, sizeof(TrackerRecord)> bytes_{};
};

// --- tracker server ---

/// srun's side of protocol/tracker.hpp: tells the nodes of its step that lack an image which nodes
/// to fetch it from.
///
/// A thread listens from `start` to `stop`, with one connection per node. Connections, bytes read
/// at once, the time until a client presents the step's token, and the questions of a node are
/// limited. Every program of the step's user can obtain the token. With it, a program can only
/// disturb the order of this step, and the nodes then ask the registry.
class Tracker {
 public:
  /// Receives lines for the user: progress in the thread, statistics of the whole step in `stop`.
  enum class About { progress, all };
  using Say = std::function<void(About, const std::string&)>;

  Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;
  ~Tracker() { stop(); }

  /// Opens the listener; connections are answered after `start`. `fanout`: children of each node.
  Result<TrackerAddress> open(const PortRange& ports = {}, std::uint32_t fanout = 2);
  /// Starts the thread. `nodes`: of the step, 0 if unknown. `image`: its name in lines, or empty.
  void start(std::uint32_t nodes, const std::string& image, Say say);
  /// Ends the thread, which never blocks on a client.
  void stop();

 private:
  struct Connection {
    UniqueFd socket;
    std::int64_t deadline;  ///< for the token; 0: it was presented
    TrackerProtocol protocol;
  };

  void serve();
  void accept_all(std::int64_t now);
  void drop_silent(std::int64_t now);
  /// Returns false if the connection is to be closed.
  bool read_some(Connection& connection);
  void close(int socket);
  void say_progress(std::int64_t now);
  void say_closing();
  [[nodiscard]] int wait_ms() const;

  TrackerToken token_{};
  UniqueFd listener_, events_, stop_read_, stop_write_;
  std::uint16_t port_ = 0;
  std::uint32_t fanout_ = 2;
  std::size_t most_ = 0, silent_ = 0;
  Say say_;
  std::string image_;
  std::thread thread_;
  std::map<int, Connection> connections_;
  PeerSessions sessions_;
  std::int64_t next_line_ = 0, pause_ = 0;
  std::string last_line_;
};

// --- tracker client ---

/// This node's connection to the step's srun (protocol/tracker.hpp). It is opened for the first
/// record and closed with this object, which tells srun that this node serves no more layers. After
/// a failure it is not retried.
class TrackerClient {
 public:
  /// Sends a join or more record and returns srun's answer. Fails if the answer does not arrive
  /// within two seconds, including the connection.
  Result<TrackerRecord> ask(const TrackerRecord& question);
  /// Sends a progress, done or left record.
  Result<void> tell(const TrackerRecord& record);

 private:
  Result<void> send(TrackerRecord record);

  UniqueFd socket_;
  bool tried_ = false;
};

}  // namespace spc
