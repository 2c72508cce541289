#pragma once

#include <poll.h>

#include <vector>

#include "base/result.hpp"
#include "protocol/bytes_from.hpp"

namespace spc {

/// A blob being fetched into a FetchSink, from a registry or a file. The owner polls its
/// descriptors and the HttpClient, for at most about 100 ms, and calls advance() each time.
class BlobStream {
 public:
  virtual ~BlobStream() = default;

  virtual void start() = 0;
  virtual void watch(std::vector<pollfd>& /*descriptors*/) const {}
  virtual void advance() = 0;  ///< also after its end
  /// After the sink answered Take::later.
  virtual void resume() = 0;

  [[nodiscard]] virtual bool finished() const = 0;
  /// Nothing comes yet, because another node is bringing it.
  [[nodiscard]] virtual bool waits_for_node() const { return false; }
  /// From where what comes now does.
  [[nodiscard]] virtual CameFrom comes_from() const { return CameFrom::registry; }
  /// Whether the blob is complete, once finished.
  virtual Result<void> outcome() = 0;
  /// A hint for the user if the bytes do not match the blob's digest.
  [[nodiscard]] virtual const char* whose_fault() const = 0;
  /// Told once, when it is finished and all its bytes were compared with its digest.
  virtual void proven(bool /*is_right*/) {}
  /// What was made of the bytes is wrong. True: some came from other nodes of the step, which are
  /// not asked for it again: it is worth another try.
  virtual bool blames_nodes() { return false; }
};

}  // namespace spc
