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
#include "share/spool.hpp"

struct MHD_Connection;
struct MHD_Daemon;

namespace spc {

/// Limits of a relay.
struct RelayLimits {
  unsigned connections = 64;
  /// a client that reads nothing for so long is disconnected
  unsigned stalled_seconds = 20;
  /// time without a request after which the relay ends, once `import` has ended
  std::chrono::milliseconds idle{60'000};
  /// upper limit of the relay's time once `import` has ended: the spool occupies the disk as long
  std::chrono::milliseconds after_import{15 * 60'000};
};

/// Serves the blobs of the index to other nodes over HTTP, as a registry would: `GET
/// /v2/NAME/blobs/sha256:HEX` (or `manifests`), from any byte on (`Range: bytes=N-`). A request
/// waits for bytes that have not arrived yet. For a blob that this node does not fetch the answer
/// is 404. Clients must present the step's key (`Authorization: Bearer HEX`) and their index
/// (`?node=N`). Beyond the limit of nodes, the answer is 503.
///
/// `GET /alive` returns three decimal numbers of the index, `here`, `leader` and `rate`, where
/// `rate` includes the rate at which nodes get bytes from this one. From `here` a waiting client
/// sees whether the node makes progress, from all three whether it is slow.
///
/// The relay uses one thread and bounded memory and connections. It needs only the descriptors that
/// it is started with.
class Relay {
 public:
  /// `listener`, `spool` and the index are borrowed.
  static Result<std::unique_ptr<Relay>> create(const SpoolIndex& index, int listener, int spool,
                                               const RelayLimits& limits = {});
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Waits for an event or until one of `others` is readable, at most for `patience`.
  void wait(std::chrono::milliseconds patience, std::span<const int> others);
  /// Handles all pending events without blocking.
  void work();
  /// Marks the end of `import`: incomplete blobs will not grow any more.
  void end_of_import();
  /// Returns whether `import` has ended and the relay has served long enough since.
  [[nodiscard]] bool is_over() const;

 private:
  struct Request;
  struct Callbacks;
  explicit Relay(const SpoolIndex& index, int spool, const RelayLimits& limits)
      : index_(index), spool_(spool), limits_(limits) {}

  /// Answers, or leaves the connection suspended: libmicrohttpd repeats the call after a resume.
  int answer(MHD_Connection* connection, std::string_view url, Request& request);
  int answer_blob(MHD_Connection* connection, const SpoolIndex::Entry& entry, Request& request);
  [[nodiscard]] bool has_key(MHD_Connection* connection) const;
  bool admit(std::uint32_t node, bool has_no_other, Request& request);
  ssize_t read(Request& request, std::uint64_t at, char* into, std::size_t most);
  void suspend(Request& request);
  [[nodiscard]] std::string progress() const;
  [[nodiscard]] bool can_go_on(const Request& request) const;
  void resume_some();
  void forget(Request* request);
  [[nodiscard]] bool will_grow(const SpoolIndex::Entry& entry) const {
    return !import_ended_ && entry.state == BlobState::comes;
  }

  const SpoolIndex& index_;
  int spool_;
  RelayLimits limits_;
  MHD_Daemon* server_ = nullptr;
  int events_ = -1;
  bool import_ended_ = false;
  std::vector<Request*> waiting_;             // suspended
  std::map<std::uint32_t, unsigned> served_;  // open requests by node
  BestRate they_get_;
  std::size_t open_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now(), ended_;
};

}  // namespace spc
