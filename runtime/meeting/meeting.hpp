#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/net/listener.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "meeting/address.hpp"
#include "meeting/gatherings.hpp"
#include "meeting/talk.hpp"

namespace spc {

/// srun's side of protocol/meeting.hpp: tells the nodes of its step that lack an image which nodes
/// to take it from.
///
/// A thread listens from `start` to `stop`, one connection a node. All is bounded: connections,
/// what is read at once, the time in which a client has to show the step's token, the questions of
/// a node. Whoever has the token, as every program of the step's user may, can spoil this step's
/// places and no other's; what the nodes then do is ask the registry.
class Meeting {
 public:
  /// With a line for the user: in the thread, about what goes on; in `stop`, about all that has
  /// been.
  enum class About { progress, all };
  using Say = std::function<void(About, const std::string&)>;

  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() { stop(); }

  /// Listens; nobody is answered before `start`. `fanout`: how many nodes are sent to one.
  Result<MeetingAddress> open(const PortRange& ports = {}, std::uint32_t fanout = 2);
  /// `nodes`: of the step; 0: unknown. `image`: how lines call it, or empty.
  void start(std::uint32_t nodes, const std::string& image, Say say);
  /// Ends the thread, which never waits for anybody.
  void stop();

 private:
  struct Connection {
    UniqueFd socket;
    std::int64_t deadline;  ///< for the token; 0: it has been shown
    MeetingTalk talk;
  };

  void serve();
  void accept_all(std::int64_t now);
  void drop_silent(std::int64_t now);
  /// False: nothing more is expected from it.
  bool read_some(Connection& connection);
  void close(int socket);
  void say_progress(std::int64_t now);
  [[nodiscard]] int wait_ms() const;

  MeetingToken token_{};
  UniqueFd listener_, events_, stop_read_, stop_write_;
  std::uint16_t port_ = 0;
  std::uint32_t fanout_ = 2;
  std::size_t most_ = 0, silent_ = 0;
  Say say_;
  std::string image_;
  std::thread thread_;
  std::map<int, Connection> connections_;
  Gatherings gatherings_;
  std::int64_t next_line_ = 0, pause_ = 0;
  std::string last_line_;
};

}  // namespace spc
