#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "image/relay/best_rate.hpp"
#include "image/relay/board.hpp"

struct MHD_Connection;
struct MHD_Daemon;

namespace spc {

/// What one relay bears.
struct RelayLimits {
  unsigned connections = 64;
  unsigned stalled_seconds = 20;           ///< a node that takes nothing for so long is cut off
  std::chrono::milliseconds idle{60'000};  ///< after `import`: without a request
  std::chrono::milliseconds after_import{15 *
                                         60'000};  ///< with requests: the spool takes disk as long
};

/// Sends what is on the board to other nodes, over HTTP as a registry would: `GET
/// /v2/NAME/blobs/sha256:HEX` (or `manifests`), from any byte on (`Range: bytes=N-`). What has not
/// come yet is waited for; what this node does not fetch is 404. Who asks has to show the step's
/// key (`Authorization: Bearer HEX`), and says which node it is (`?node=N`): so many nodes are
/// served, others are told 503. `GET /alive` has three numbers of the board, in decimal: `here`,
/// `leader` and `pace`, with what nodes get from this one. Whoever waits sees by the first that the
/// node gets on, and by all whether it is slow.
///
/// One thread, bounded memory and connections; it only needs the descriptors that it has.
class Relay {
 public:
  /// `listener` and `spool` are borrowed, and the board.
  static Result<std::unique_ptr<Relay>> create(const RelayBoard& board, int listener, int spool,
                                               const RelayLimits& limits = {});
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Waits at most so long for something to do, or until one of `others` is readable.
  void wait(std::chrono::milliseconds patience, std::span<const int> others);
  /// Does what there is to do.
  void work();
  /// Nothing of what is not complete will come.
  void end_of_import();
  /// Whether `import` has ended and the relay has served long enough since.
  [[nodiscard]] bool is_over() const;

 private:
  struct Request;
  struct Callbacks;
  explicit Relay(const RelayBoard& board, int spool, const RelayLimits& limits)
      : board_(board), spool_(spool), limits_(limits) {}

  /// Answers, or leaves the connection suspended: then it is asked again.
  int answer(MHD_Connection* connection, std::string_view url, Request& request);
  int answer_blob(MHD_Connection* connection, const RelayBoard::Entry& entry, Request& request);
  [[nodiscard]] bool has_key(MHD_Connection* connection) const;
  bool admit(std::uint32_t node, bool has_no_other, Request& request);
  ssize_t read(Request& request, std::uint64_t at, char* into, std::size_t most);
  void suspend(Request& request);
  [[nodiscard]] std::string pace() const;
  [[nodiscard]] bool can_go_on(const Request& request) const;
  void resume_some();
  void forget(Request* request);
  [[nodiscard]] bool will_grow(const RelayBoard::Entry& entry) const {
    return !import_ended_ && entry.state == BlobState::comes;
  }

  const RelayBoard& board_;
  int spool_;
  RelayLimits limits_;
  MHD_Daemon* server_ = nullptr;
  int events_ = -1;
  bool import_ended_ = false;
  std::vector<Request*> waiting_;             // suspended
  std::map<std::uint32_t, unsigned> served_;  // nodes, with their open requests
  BestRate they_get_;
  std::size_t open_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now(), ended_;
};

}  // namespace spc
