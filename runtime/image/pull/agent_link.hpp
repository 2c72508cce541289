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
#include "image/layer/worker/layer_process.hpp"
#include "image/store/store_keeper.hpp"
#include "protocol/import.hpp"

namespace spc {

/// A new object of the store, from import's side: a publisher makes it. Destruction gives it up.
class StoreObject : public std::enable_shared_from_this<StoreObject> {
 public:
  explicit StoreObject(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Of a layer, once: the ends of the `layer-writer` that the publisher has started. They keep the
  /// object.
  Result<LayerProcess::Ends> writer();
  /// The layer's file for reading, when the writer has been waited for; -1 before.
  [[nodiscard]] int file() const { return file_.get(); }
  /// Requests a name for the layer; takes as long as writing it back and verifying it.
  Result<void> publish(const Digest& layer);
  /// Whether publish() was answered: true: the layer is in the store; Error: it was refused.
  Result<bool> is_published();
  /// Readable when is_published() has an answer.
  [[nodiscard]] pollfd watch() const {
    return {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  }

  /// Of a record, name or grant, as `message` says: all of its bytes; none: removes it.
  Result<void> put(ImportMessage message, std::string_view bytes);

 private:
  Result<ExitStatus> wait();
  Result<std::vector<UniqueFd>> receive(ImportMessage& answer, std::size_t most = 0);
  UniqueFd socket_, file_;
  std::string layer_;
};

/// import's side of protocol/import.hpp.
class AgentLink final : public Log, public StoreKeeper {
 public:
  /// `socket` is borrowed.
  explicit AgentLink(int socket) : socket_(socket) {}

  /// A line for the waiting user: info is progress, a warning must be seen.
  void write(LogLevel level, std::string_view line) noexcept override;

  /// Printed as numbers instead of lines for whoever asked.
  void meter(std::uint64_t done, std::uint64_t total) noexcept;

  /// A new object; `order`: for `layer-writer` (protocol/layer.hpp), nothing: put() follows.
  Result<std::shared_ptr<StoreObject>> new_object(std::string_view order = {});
  /// Removes the layer from the store. False: it is in use.
  Result<bool> evict(const Digest& layer);
  /// Unmounts what no step uses, but jobs hold for their next ones. False: there is no such thing
  /// here.
  Result<bool> release_held() { return evict(Digest{}); }

  Result<void> publish_record(const Digest& manifest, std::string_view bytes) override;
  Result<void> remove_record(const Digest& manifest) override;
  Result<void> set_name(const Digest& key, std::optional<std::uint32_t> uid,
                        std::string_view means) override;

  /// Readable when the agent is gone: it says nothing unasked.
  [[nodiscard]] pollfd watch() const { return {.fd = socket_, .events = POLLIN, .revents = 0}; }
  /// Error: the agent is gone.
  Result<void> check();

  /// What the image says of itself, for who asked for no more than that.
  Result<void> describe(std::string_view config);

  /// The last message is one of these.
  Result<void> done(const Digest& manifest);
  Result<void> failed(const Error& error);

 private:
  Result<std::vector<UniqueFd>> ask(const ImportMessage& question, ImportMessage& answer);
  Result<void> put(ImportMessage message, std::string_view bytes);

  int socket_;
};

}  // namespace spc
