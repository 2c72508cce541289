#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "image/pull/layer_process.hpp"
#include "image/store/store.hpp"
#include "protocol/import.hpp"

namespace spc {

/// A new store object as seen by `import`: a publisher of the agent creates it. The destructor
/// discards it unless it was published.
class StoreObject : public std::enable_shared_from_this<StoreObject> {
 public:
  explicit StoreObject(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Returns the pipe ends of the `layer-writer` that the publisher has started. Valid once, for
  /// layers only. The object keeps owning them.
  Result<LayerProcess::Ends> writer();
  /// Returns the layer's file for reading once the writer has been waited for, -1 before.
  [[nodiscard]] int file() const { return file_.get(); }
  /// Asks the publisher to publish the layer. The answer takes as long as writing back and
  /// verifying.
  Result<void> publish(const Digest& layer);
  /// Returns true if the layer is published, false while the answer is pending. Error: the
  /// publisher refused it.
  Result<bool> is_published();
  /// Readable when is_published() has an answer.
  [[nodiscard]] pollfd watch() const {
    return {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  }

  /// Writes all bytes of the record, name or grant that `message` identifies. Empty bytes remove
  /// it.
  Result<void> put(ImportMessage message, std::string_view bytes);

 private:
  Result<ExitStatus> wait();
  Result<std::vector<UniqueFd>> receive(ImportMessage& answer, std::size_t most = 0);
  UniqueFd socket_, file_;
  std::string layer_;
};

/// The side of `import` in protocol/import.hpp.
class AgentLink final : public Log, public StoreKeeper {
 public:
  /// `socket` is borrowed.
  explicit AgentLink(int socket) : socket_(socket) {}

  /// Returns whether its own user has started this process, as `scontainer` does for a store of the
  /// user. Otherwise root has, and the request is one of another user.
  [[nodiscard]] bool is_of_own_user() const;

  /// Sends a line to the waiting user. LogLevel::info is progress. A warning is always shown.
  void write(LogLevel level, std::string_view line) noexcept override;

  /// Sends progress as numbers instead of lines, if the request asked for numbers.
  void meter(std::uint64_t done, std::uint64_t total) noexcept;

  /// Requests a new object. `order` is for `layer-writer` (protocol/layer.hpp); without one, put()
  /// follows.
  Result<std::shared_ptr<StoreObject>> new_object(std::string_view order = {});
  /// Removes the layer from the store. Returns false if it is in use.
  Result<bool> evict(const Digest& layer);
  /// Unmounts layers that jobs hold for later steps and no step uses. Returns false if there are
  /// none.
  Result<bool> release_held() { return evict(Digest{}); }

  /// Starts a server for `layers` layers in place. Returns the sockets that take their FuseLoans.
  Result<std::vector<UniqueFd>> new_server(std::size_t layers);

  Result<void> publish_record(const Digest& manifest, std::string_view bytes) override;
  Result<void> remove_record(const Digest& manifest) override;
  Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid,
                        std::string_view means) override;

  /// Readable only when the agent has exited: it sends no unsolicited message.
  [[nodiscard]] pollfd watch() const { return {.fd = socket_, .events = POLLIN, .revents = 0}; }
  /// Returns an error if the agent has exited.
  Result<void> check();

  /// Sends the image configuration to a caller that requested only this.
  Result<void> describe(std::string_view config);

  /// Report the result. Each of these two is the last message.
  Result<void> done(const Digest& manifest);
  Result<void> failed(const Error& error);

 private:
  Result<std::vector<UniqueFd>> ask(const ImportMessage& question, ImportMessage& answer);
  Result<void> put(ImportMessage message, std::string_view bytes);

  int socket_;
};

}  // namespace spc
